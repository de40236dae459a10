/* The types by which Python sees the hooks of a training loop: Loop, its state, and Hook, what is called. */
#include "_hooks.h"

static const char *const rare_names[RARE] = {"first", "tick", "closes", "gpu", "account", "way"};

static const struct {
    const char *name;
    vectorcallfunc call;
} places[] = {{"fetch", hm_call_fetch},
              {"backward", hm_call_backward},
              {"step_begins", hm_call_step_begins},
              {"step_ends", hm_call_step_ends}};

/* Hook(loop, place, original=None): what a function calls that stands in place of another, or what an optimizer calls. */
static PyObject *hook_new(PyTypeObject *type, PyObject *args, PyObject *keywords);

static int hook_traverse(PyObject *self, visitproc visit, void *arg) {
    Hook *hook = (Hook *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT((PyObject *)hook->loop);
    Py_VISIT(hook->original);
    Py_VISIT(hook->attributes);
    Py_VISIT(hook->function);
    return 0;
}

/* It may be called yet, by a finalizer: its loop stays, whose own clearing breaks the cycles through it. */
static int hook_clear(PyObject *self) {
    Hook *hook = (Hook *)self;
    hm_give_back(hook);
    Py_XSETREF(hook->original, Py_NewRef(Py_None));
    Py_CLEAR(hook->attributes);
    return 0;
}

static void hook_dealloc(PyObject *self) {
    Hook *hook = (Hook *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    hm_give_back(hook);
    Py_DecRef((PyObject *)hook->loop);
    Py_DecRef(hook->original);
    Py_DecRef(hook->attributes);
    Py_DecRef(hook->function);
    PyObject_GC_Del(self);
    Py_DecRef((PyObject *)type);
}

static PyMemberDef hook_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Hook, call), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(Hook, attributes), READONLY, NULL},
    {"original", T_OBJECT, offsetof(Hook, original), 0, NULL},
    {"function", T_OBJECT, offsetof(Hook, function), READONLY, NULL},
    {0},
};

static PyMethodDef hook_methods[] = {
    {"enter", hm_enter_function, METH_NOARGS, "Stand in the original itself; False where that cannot be."},
    {"leave", hm_leave_function, METH_NOARGS, "Have it be called as it was."},
    {0},
};

static PyGetSetDef hook_attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {0},
};

static PyType_Slot hook_slots[] = {
    {Py_tp_new, hook_new},           {Py_tp_dealloc, hook_dealloc},     {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, hook_members},   {Py_tp_getset, hook_attributes},   {Py_tp_traverse, hook_traverse},
    {Py_tp_clear, hook_clear},       {Py_tp_methods, hook_methods},     {0},
};

static PyType_Spec hook_spec = {
    "_ring.Hook", sizeof(Hook), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, hook_slots};

#define TOLD(name, format, ...)                                                                                       \
    static PyObject *told_##name(PyObject *self, PyObject *args) {                                                    \
        long long a = 0, b = 0, c = 1;                                                                                \
        if (!PyArg_ParseTuple(args, format, &a, &b, &c))                                                              \
            return NULL;                                                                                              \
        hm_##name(&((Loop *)self)->seen, ##__VA_ARGS__);                                                  \
        return hm_unless_raised((Loop *)self, Py_NewRef(Py_None), false);                                                \
    }
TOLD(input_begins, "L|LL", a, (uint64_t)b, c != 0)
TOLD(input_ends, "LL|L", a, b, args && PyTuple_Size(args) > 2 ? (uint64_t)c : 0)
TOLD(input_fails, "")
TOLD(backward_begins, "L", a)
TOLD(backward_ends, "LL", a, b)
TOLD(optimizer_begins, "L", a)
TOLD(optimizer_ends, "LLL", a, b, (uint64_t)c)
TOLD(forgets, "")
TOLD(pauses, "L", a)
TOLD(finish, "")

/* bind(ring, names): write to this ring, None for nowhere; names are its indices of enum hm_loop_name's. */
static PyObject *loop_bind(PyObject *self, PyObject *args) {
    Loop *loop = (Loop *)self;
    PyObject *ring;
    uint16_t *n = loop->seen.names;
    if (!PyArg_ParseTuple(args, "O(HHHHHH)", &ring, &n[0], &n[1], &n[2], &n[3], &n[4], &n[5]))
        return NULL;
    bool real = PyObject_TypeCheck(ring, hm_ring_type);
    Py_XSETREF(loop->ring, real ? (Ring *)Py_NewRef(ring) : NULL);
    loop->seen.ring = real ? &loop->ring->ring : NULL;
    Py_RETURN_NONE;
}

/* Loop(rare, gradients, clock=None) */
static PyObject *loop_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *rare, *gradients, *clock = Py_None;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "OO|O", &rare, &gradients, &clock))
        return NULL;
    Loop *loop = (Loop *)PyType_GenericAlloc(type, 0);
    if (!loop)
        return NULL;
    hm_seen_init(&loop->seen);
    loop->seen.closes = hm_closes;
    loop->gradients = Py_NewRef(gradients);
    loop->clock = clock == Py_None ? NULL : Py_NewRef(clock);
    loop->ticks = -1;
    loop->stepped = 1; /* the first fetch is a tick, too */
    for (int i = 0; i < RARE; i++)
        if (!(loop->rare[i] = PyObject_GetAttrString(rare, rare_names[i]))) {
            Py_DecRef((PyObject *)loop);
            return NULL;
        }
    return (PyObject *)loop;
}

/* What a loop holds, besides its ring: where, and how many. */
static const struct {
    size_t offset;
    int count;
} held[] = {{offsetof(Loop, gradients), 1}, {offsetof(Loop, clock), 1},   {offsetof(Loop, kind), 1},
            {offsetof(Loop, way), 1},       {offsetof(Loop, rare), RARE}, {offsetof(Loop, raised), RAISED}};
enum { HELD = sizeof held / sizeof *held };

static PyObject **held_by(Loop *loop, int which) {
    return (PyObject **)((char *)loop + held[which].offset);
}

static int loop_traverse(PyObject *self, visitproc visit, void *arg) {
    Loop *loop = (Loop *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT((PyObject *)loop->ring);
    for (int which = 0; which < HELD; which++)
        for (int i = 0; i < held[which].count; i++)
            Py_VISIT(held_by(loop, which)[i]);
    return 0;
}

/* Hooks of it may be called yet, by finalizers: no thread is the training thread any more, so that they do nothing. */
static int loop_clear(PyObject *self) {
    Loop *loop = (Loop *)self;
    loop->thread = HM_NOBODY;
    loop->surely = true;
    loop->seen.ring = NULL;
    loop->seen.attended = false;
    Py_CLEAR(loop->ring);
    for (int which = 0; which < HELD; which++)
        for (int i = 0; i < held[which].count; i++)
            Py_CLEAR(held_by(loop, which)[i]);
    return 0;
}

static void loop_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    loop_clear(self);
    PyObject_GC_Del(self);
    Py_DecRef((PyObject *)type);
}

static PyMemberDef loop_members[] = {
    {"thread", T_ULONG, offsetof(Loop, thread), 0, NULL},
    {"surely", T_BOOL, offsetof(Loop, surely), 0, NULL},
    {"fed", T_BOOL, offsetof(Loop, fed), 0, NULL},
    {"ticks", T_LONGLONG, offsetof(Loop, ticks), 0, NULL},
    {"mask", T_LONGLONG, offsetof(Loop, mask), 0, NULL},
    {"unrecorded", T_LONGLONG, offsetof(Loop, unrecorded), 0, NULL},
    {"own", T_LONGLONG, offsetof(Loop, own), 0, NULL},
    {"due", T_LONGLONG, offsetof(Loop, due), 0, NULL},
    {"measuring", T_BOOL, offsetof(Loop, measuring), 0, NULL},
    {"on_gpu", T_BOOL, offsetof(Loop, on_gpu), 0, NULL},
    {"tokens", T_BOOL, offsetof(Loop, tokens), 0, NULL},
    {"explicit", T_BOOL, offsetof(Loop, seen.is_explicit), 0, NULL},
    {"attended", T_BOOL, offsetof(Loop, seen.attended), 0, NULL},
    {"ended", T_LONGLONG, offsetof(Loop, seen.ended), 0, NULL},
    {"train", T_ULONGLONG, offsetof(Loop, seen.numbers[0]), 0, NULL},
    {"eval", T_ULONGLONG, offsetof(Loop, seen.numbers[1]), 0, NULL},
    {"waits", T_LONGLONG, offsetof(Loop, waits), 0, NULL},
    {"copies", T_LONGLONG, offsetof(Loop, copies), 0, NULL},
    {"work", T_ULONGLONG, offsetof(Loop, seen.work), 0, NULL},
    {0},
};

#define TOLD_METHOD(name) {#name, told_##name, METH_VARARGS, NULL}
static PyMethodDef loop_methods[] = {
    {"bind", loop_bind, METH_VARARGS, NULL},
    {"definition", hm_definition, METH_O, NULL},
    {"watch", hm_watch, METH_VARARGS, NULL},
    {"unwatch", hm_unwatch, METH_NOARGS, NULL},
    TOLD_METHOD(input_begins),
    TOLD_METHOD(input_ends),
    TOLD_METHOD(input_fails),
    TOLD_METHOD(backward_begins),
    TOLD_METHOD(backward_ends),
    TOLD_METHOD(optimizer_begins),
    TOLD_METHOD(optimizer_ends),
    TOLD_METHOD(forgets),
    TOLD_METHOD(pauses),
    TOLD_METHOD(finish),
    {0},
};

static PyType_Slot loop_slots[] = {
    {Py_tp_new, loop_new},         {Py_tp_dealloc, loop_dealloc}, {Py_tp_members, loop_members},
    {Py_tp_methods, loop_methods}, {Py_tp_traverse, loop_traverse}, {Py_tp_clear, loop_clear},
    {0},
};

static PyType_Spec loop_spec = {"_ring.Loop", sizeof(Loop), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, loop_slots};
static PyTypeObject *loop_type;

static PyObject *hook_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *loop, *original = Py_None;
    const char *place;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "O!s|O", loop_type, &loop, &place, &original))
        return NULL;
    Hook *hook = (Hook *)PyType_GenericAlloc(type, 0);
    for (size_t i = 0; hook && i < sizeof places / sizeof *places; i++)
        if (strcmp(place, places[i].name) == 0)
            hook->call = places[i].call;
    if (hook && !hook->call) {
        PyErr_Format(PyExc_ValueError, "there is no place %s", place);
        Py_CLEAR(hook);
    }
    if (hook) {
        hook->loop = (Loop *)Py_NewRef(loop);
        hook->original = Py_NewRef(original);
    }
    return (PyObject *)hook;
}

int hm_add_hooks(PyObject *module) {
    hm_dataset_name = PyUnicode_InternFromString("_dataset");
    hm_shape_name = PyUnicode_InternFromString("shape");
    loop_type = (PyTypeObject *)PyType_FromSpec(&loop_spec);
    PyObject *hook_type = PyType_FromSpec(&hook_spec);
    if (!hm_dataset_name || !hm_shape_name || !loop_type || !hook_type)
        return -1;
    Py_IncRef((PyObject *)loop_type);
    if (PyModule_AddObject(module, "Loop", (PyObject *)loop_type) < 0)
        return -1;
    return PyModule_AddObject(module, "Hook", hook_type);
}
