/* Hooks inside a Python function: each caller calls the hook, and no other function becomes visible.
 *
 * From Python 3.12 on a function can name what is called instead (PyFunction_SetVectorcall). So tracebacks contain no
 * frame of ours, nor the time for one. What the hook calls in turn is a Hook, too, which calls the
 * function as it was. Before 3.12, and for what is no function of Python's, a function is put in the place of the other.
 */
#include "_hooks.h"

enum { TAKEN = 16 }; /* functions in which hooks stand at one time */

#define WEAK __attribute__((weak))
extern WEAK const char PyFunction_Type[];
WEAK void PyFunction_SetVectorcall(PyObject *function, vectorcallfunc call);
WEAK vectorcallfunc PyVectorcall_Function(PyObject *callable);

/* A hook that goes gives its function back, so none is kept here that is not. */
static struct {
    PyObject *function;
    Hook *hook;
} taken[TAKEN];
static vectorcallfunc ordinary; /* how Python calls its functions */

static PyObject *call_taken(PyObject *function, PyObject *const *args, size_t count, PyObject *names) {
    for (int i = 0; i < TAKEN; i++)
        if (taken[i].function == function) {
            PyObject *hook = Py_NewRef((PyObject *)taken[i].hook);
            PyObject *result = ((Hook *)hook)->call(hook, args, count, names);
            Py_DecRef(hook);
            return result;
        }
    return ordinary(function, args, count, names); /* a caller that stored this object earlier */
}

static PyObject *call_plain(PyObject *self, PyObject *const *args, size_t count, PyObject *names) {
    Hook *hook = (Hook *)self;
    return hook->plain(hook->function, args, count, names);
}

/* What calls the function as it was, in place of the hook's original. */
static bool make_plain(Hook *hook, vectorcallfunc plain) {
    Hook *made = (Hook *)PyType_GenericAlloc(Py_TYPE(hook), 0);
    if (!made)
        return false;
    made->call = call_plain;
    made->plain = plain;
    made->loop = (Loop *)Py_NewRef((PyObject *)hook->loop);
    made->function = Py_NewRef(hook->original);
    made->original = Py_NewRef(Py_None);
    hook->plain = plain;
    hook->function = hook->original;
    hook->original = (PyObject *)made;
    return true;
}

/* Whether it stands in its original from now on; False where that cannot be. */
PyObject *hm_enter_function(PyObject *self, PyObject *unused) {
    (void)unused;
    Hook *hook = (Hook *)self;
    PyObject *function = hook->function ? hook->function : hook->original;
    int i = 0;
    while (i < TAKEN && taken[i].function)
        i++;
    if (!PyFunction_SetVectorcall || (const char *)Py_TYPE(function) != PyFunction_Type || i == TAKEN)
        return Py_NewRef(Py_False);
    vectorcallfunc plain = PyVectorcall_Function(function);
    if (plain == call_taken) /* another hook stands there */
        return Py_NewRef(Py_False);
    if (!hook->function && !make_plain(hook, plain))
        return NULL;
    if (!ordinary)
        ordinary = plain;
    taken[i].function = function;
    taken[i].hook = hook;
    PyFunction_SetVectorcall(function, call_taken);
    return Py_NewRef(Py_True);
}

void hm_give_back(Hook *hook) {
    for (int i = 0; i < TAKEN; i++)
        if (taken[i].function && taken[i].hook == hook) {
            PyFunction_SetVectorcall(hook->function, hook->plain);
            taken[i].function = NULL;
        }
}

PyObject *hm_leave_function(PyObject *self, PyObject *unused) {
    (void)unused;
    hm_give_back((Hook *)self);
    Py_RETURN_NONE;
}
