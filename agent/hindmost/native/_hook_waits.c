/* Waits of the training thread for its GPU, seen in the C functions of torch that may wait: `item`, `synchronize` …, and
 * calls that copy a tensor from the host to the GPU, which wait, too, unless the host's memory is pinned.
 *
 * Python finds such a function by its definition (PyMethodDef), whose pointer to the C function is replaced here, and
 * given back by unwatch(). Nothing that a script, a tracer or a compiler can see changes: the function, its name and its
 * type are as they were. A call that takes less than SHORT_NS, or that is another thread's, leaves no record.
 */
#include "_hooks.h"

enum { WATCHED = 16, SHORT_NS = 20000 };
/* What tells whether a call waited: nothing else does; the tensor, which is on the GPU; or what it was copied to. */
enum { ANY, OF_TENSOR, COPIES };

extern PyTypeObject PyMethodDescr_Type, PyCFunction_Type;
typedef PyObject *(*with_keywords)(PyObject *, PyObject *, PyObject *);

static struct {
    PyMethodDef *definition; /* NULL: this place is free */
    PyCFunction original;
    int how;
} watched[WATCHED];
static Loop *watching;
static bool inside; /* the training thread is in one of them: what that calls in turn is part of it */

static int64_t begins(void) {
    Loop *loop = watching;
    if (!loop || inside || loop->passing || PyThread_get_thread_ident() != loop->thread)
        return -1;
    inside = true;
    return (int64_t)hm_now();
}

/* Whether a tensor is on a GPU; one that is not has nothing to wait for. */
static bool on_gpu(PyObject *tensor) {
    PyObject *told = PyObject_GetAttrString(tensor, "is_cuda");
    if (!told)
        PyErr_Clear();
    Py_DecRef(told);
    return told == Py_True;
}

static PyObject *ends(int which, int64_t start, PyObject *self, PyObject *result) {
    if (start < 0)
        return result;
    int64_t took = (int64_t)hm_now() - start;
    inside = false;
    Loop *loop = watching;
    if (took < SHORT_NS || !result || !loop || !loop->seen.ring || !loop->seen.ring->base)
        return result;
    int how = watched[which].how;
    bool waited = how == ANY || on_gpu(self), copied = !waited && how == COPIES && on_gpu(result);
    if (waited || copied)
        hm_event(loop->seen.ring, hm_what(HM_PHASE, 0, (uint16_t)(copied ? loop->copies : loop->waits)), (uint64_t)start,
                 (uint64_t)took, hm_where(0, HM_NONE16, HM_NONE16), 0);
    return result;
}

/* A definition has no room to say which one it is: each place has functions of its own. */
#define PLACE(i)                                                                                                      \
    static PyObject *plain_##i(PyObject *self, PyObject *args) {                                                      \
        int64_t start = begins();                                                                                     \
        return ends(i, start, self, watched[i].original(self, args));                                                 \
    }                                                                                                                 \
    static PyObject *keywords_##i(PyObject *self, PyObject *args, PyObject *keywords) {                               \
        int64_t start = begins();                                                                                     \
        return ends(i, start, self, ((with_keywords)(void (*)(void))watched[i].original)(self, args, keywords));      \
    }
#define ALL(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15)
ALL(PLACE)
#define PLAIN(i) plain_##i,
#define KEYWORDS(i) (PyCFunction)(void (*)(void))keywords_##i,
static const PyCFunction plain[WATCHED] = {ALL(PLAIN)}, keywords[WATCHED] = {ALL(KEYWORDS)};

static PyMethodDef *definition_of(PyObject *function) {
    if (Py_TYPE(function) == &PyMethodDescr_Type)
        return ((PyMethodDescrObject *)function)->d_method;
    return Py_TYPE(function) == &PyCFunction_Type ? ((PyCFunctionObject *)function)->m_ml : NULL;
}

/* definition(function): where in memory it is; None of what is no function in C. */
PyObject *hm_definition(PyObject *self, PyObject *function) {
    (void)self;
    PyMethodDef *found = definition_of(function);
    return found ? PyLong_FromUnsignedLongLong((unsigned long long)(uintptr_t)found) : Py_NewRef(Py_None);
}

/* watch(function, how): whether its waits are seen from now on. The caller knows that its definition may be written to,
 * and that it stays. */
PyObject *hm_watch(PyObject *self, PyObject *args) {
    PyObject *function;
    int how, place = 0;
    if (!PyArg_ParseTuple(args, "Oi", &function, &how))
        return NULL;
    PyMethodDef *found = definition_of(function);
    while (place < WATCHED && watched[place].definition)
        place++;
    if (!found || place == WATCHED || (watching && watching != (Loop *)self))
        return Py_NewRef(Py_False);
    PyCFunction ours;
    if (found->ml_flags == METH_NOARGS || found->ml_flags == METH_O || found->ml_flags == METH_VARARGS)
        ours = plain[place];
    else if (found->ml_flags == (METH_VARARGS | METH_KEYWORDS))
        ours = keywords[place];
    else
        return Py_NewRef(Py_False);
    if (!watching)
        watching = (Loop *)Py_NewRef(self);
    watched[place].original = found->ml_meth;
    watched[place].how = how;
    watched[place].definition = found;
    __atomic_store_n(&found->ml_meth, ours, __ATOMIC_RELEASE);
    return Py_NewRef(Py_True);
}

/* Give all of them back. A thread that is inside of one goes on to the original, which stays known. */
PyObject *hm_unwatch(PyObject *self, PyObject *unused) {
    (void)unused;
    if (watching != (Loop *)self)
        Py_RETURN_NONE;
    for (int i = 0; i < WATCHED; i++)
        if (watched[i].definition) {
            if (watched[i].definition->ml_meth == plain[i] || watched[i].definition->ml_meth == keywords[i])
                __atomic_store_n(&watched[i].definition->ml_meth, watched[i].original, __ATOMIC_RELEASE);
            watched[i].definition = NULL;
        }
    watching = NULL;
    Py_DecRef(self);
    Py_RETURN_NONE;
}
