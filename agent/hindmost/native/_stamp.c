/* Stamp(callee): calls it and records exactly when the call began and ended: the interpreter's next action begins then.
 * A clock inside a Python callee would miss the time to enter and leave it.
 */
#include "_ring.h"

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *told;
    long long entered, left, took; /* took: ns of all calls since it was set */
} Stamp;

static PyObject *stamp_call(PyObject *self, PyObject *const *args, size_t count, PyObject *names) {
    Stamp *stamp = (Stamp *)self;
    long long entered = stamp->entered = (long long)hm_now();
    PyObject *result = hm_vectorcall(stamp->told, args, count, names);
    stamp->left = (long long)hm_now();
    stamp->took += stamp->left - entered;
    return result;
}

static PyObject *stamp_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *told;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "O", &told))
        return NULL;
    Stamp *stamp = (Stamp *)PyType_GenericAlloc(type, 0);
    if (stamp) {
        stamp->call = stamp_call;
        stamp->told = Py_NewRef(told);
    }
    return (PyObject *)stamp;
}

static int stamp_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((Stamp *)self)->told);
    return 0;
}

static int stamp_clear(PyObject *self) {
    Stamp *stamp = (Stamp *)self;
    Py_XSETREF(stamp->told, Py_NewRef(Py_None));
    return 0;
}

static void stamp_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_DecRef(((Stamp *)self)->told);
    PyObject_GC_Del(self);
    Py_DecRef((PyObject *)type);
}

static PyMemberDef stamp_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Stamp, call), READONLY, NULL},
    {"entered", T_LONGLONG, offsetof(Stamp, entered), READONLY, NULL},
    {"left", T_LONGLONG, offsetof(Stamp, left), READONLY, NULL},
    {"took", T_LONGLONG, offsetof(Stamp, took), 0, NULL},
    {0},
};

static PyType_Slot stamp_slots[] = {
    {Py_tp_new, stamp_new},           {Py_tp_dealloc, stamp_dealloc}, {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, stamp_members},   {Py_tp_traverse, stamp_traverse}, {Py_tp_clear, stamp_clear},
    {0},
};

static PyType_Spec stamp_spec = {
    "_ring.Stamp", sizeof(Stamp), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, stamp_slots};

int hm_add_stamp(PyObject *module) {
    PyObject *type = PyType_FromSpec(&stamp_spec);
    return type ? PyModule_AddObject(module, "Stamp", type) : -1;
}
