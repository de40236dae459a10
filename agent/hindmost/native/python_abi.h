/* What _ring uses of CPython's C interface, declared here, so that no Python.h is needed and one build serves every
 * CPython from 3.10 on that has the GIL. It is the stable ABI, whose numbers and layouts no version may change, but for
 * the functions marked below, which those versions export too. An interpreter without one of them refuses to load what
 * needs it, and pure Python does the same.
 */
#ifndef HINDMOST_PYTHON_ABI_H
#define HINDMOST_PYTHON_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

typedef ssize_t Py_ssize_t;
typedef struct PyTypeObject PyTypeObject;
typedef struct {
    Py_ssize_t ob_refcnt;
    PyTypeObject *ob_type;
} PyObject;
#define PyObject_HEAD PyObject ob_base;

typedef PyObject *(*PyCFunction)(PyObject *, PyObject *);
typedef PyObject *(*vectorcallfunc)(PyObject *, PyObject *const *, size_t, PyObject *);
typedef int (*visitproc)(PyObject *, void *);

typedef struct {
    const char *ml_name;
    PyCFunction ml_meth;
    int ml_flags;
    const char *ml_doc;
} PyMethodDef;

/* Not of the stable ABI, and alike in 3.10 to 3.14: native/_hook_waits.c reads the definition of a function. */
typedef struct {
    PyObject_HEAD
    PyTypeObject *d_type;
    PyObject *d_name, *d_qualname;
} PyDescrObject;

typedef struct {
    PyDescrObject d_common;
    PyMethodDef *d_method;
    vectorcallfunc vectorcall;
} PyMethodDescrObject;

typedef struct {
    PyObject_HEAD
    PyMethodDef *m_ml;
    PyObject *m_self, *m_module, *m_weakreflist;
    vectorcallfunc vectorcall;
} PyCFunctionObject;

typedef struct {
    const char *name;
    int type;
    Py_ssize_t offset;
    int flags;
    const char *doc;
} PyMemberDef;

typedef struct {
    const char *name;
    PyObject *(*get)(PyObject *, void *);
    int (*set)(PyObject *, PyObject *, void *);
    const char *doc;
    void *closure;
} PyGetSetDef;

typedef struct {
    int slot;
    void *pfunc;
} PyType_Slot;

typedef struct {
    const char *name;
    int basicsize, itemsize;
    unsigned flags;
    PyType_Slot *slots;
} PyType_Spec;

typedef struct {
    PyObject ob_base;
    PyObject *(*m_init)(void);
    Py_ssize_t m_index;
    PyObject *m_copy;
} PyModuleDef_Base;

typedef struct {
    PyModuleDef_Base m_base;
    const char *m_name, *m_doc;
    Py_ssize_t m_size;
    PyMethodDef *m_methods;
    void *m_slots, *m_traverse, *m_clear, *m_free;
} PyModuleDef;

typedef struct {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
} Py_buffer;

/* tests/probe/test_python_abi.py compares each number with Python.h's. */
enum {
    METH_VARARGS = 0x1,
    METH_KEYWORDS = 0x2,
    METH_NOARGS = 0x4,
    METH_O = 0x8,
    METH_FASTCALL = 0x80,
    PyBUF_WRITABLE = 0x1,
    READONLY = 1,
    T_OBJECT = 6,
    T_ULONG = 12,
    T_BOOL = 14,
    T_LONGLONG = 17,
    T_ULONGLONG = 18,
    T_PYSSIZET = 19,
    Py_tp_call = 50,
    Py_tp_clear = 51,
    Py_tp_dealloc = 52,
    Py_tp_methods = 64,
    Py_tp_new = 65,
    Py_tp_traverse = 71,
    Py_tp_members = 72,
    Py_tp_getset = 73,
    Py_TPFLAGS_DEFAULT = 0,
    Py_TPFLAGS_HAVE_VECTORCALL = 1 << 11,
    Py_TPFLAGS_HAVE_GC = 1 << 14,
    Py_TPFLAGS_TUPLE_SUBCLASS = 1 << 26,
};
enum { PYTHON_ABI_VERSION = 3 }; /* of the stable ABI: what a module says that it was built for */

extern PyObject _Py_NoneStruct, _Py_FalseStruct, _Py_TrueStruct;
extern PyObject *PyExc_Exception, *PyExc_TypeError, *PyExc_ValueError;
#define Py_None (&_Py_NoneStruct)
#define Py_False (&_Py_FalseStruct)
#define Py_True (&_Py_TrueStruct)

int PyArg_ParseTuple(PyObject *args, const char *format, ...);
void PyErr_Clear(void);
int PyErr_ExceptionMatches(PyObject *type);
void PyErr_Fetch(PyObject **type, PyObject **value, PyObject **trace);
PyObject *PyErr_Format(PyObject *type, const char *format, ...);
PyObject *PyErr_Occurred(void);
void PyErr_Restore(PyObject *type, PyObject *value, PyObject *trace);
void PyErr_SetString(PyObject *type, const char *text);
long long PyLong_AsLongLong(PyObject *value);
unsigned long long PyLong_AsUnsignedLongLong(PyObject *value);
PyObject *PyLong_FromUnsignedLongLong(unsigned long long value);
int PyModule_AddObject(PyObject *module, const char *name, PyObject *value);
PyObject *PyModule_Create2(PyModuleDef *module, int abi);
PyObject *PyObject_CallFunction(PyObject *function, const char *format, ...);
PyObject *PyObject_CallNoArgs(PyObject *function);
void PyObject_Free(void *object);
void PyObject_GC_Del(void *object);
void PyObject_GC_UnTrack(void *object);
PyObject *PyObject_GenericGetDict(PyObject *object, void *context);
int PyObject_GenericSetDict(PyObject *object, PyObject *value, void *context);
PyObject *PyObject_GetAttr(PyObject *object, PyObject *name);
PyObject *PyObject_GetAttrString(PyObject *object, const char *name);
PyObject *PyObject_GetItem(PyObject *object, PyObject *key);
PyObject *PySequence_GetItem(PyObject *sequence, Py_ssize_t index);
Py_ssize_t PySequence_Size(PyObject *sequence);
unsigned long PyThread_get_thread_ident(void);
PyObject *PyTuple_GetItem(PyObject *tuple, Py_ssize_t index);
Py_ssize_t PyTuple_Size(PyObject *tuple);
PyObject *PyType_FromSpec(PyType_Spec *spec);
PyObject *PyType_GenericAlloc(PyTypeObject *type, Py_ssize_t items);
unsigned long PyType_GetFlags(PyTypeObject *type);
int PyType_IsSubtype(PyTypeObject *type, PyTypeObject *of);
int PyUnicode_Compare(PyObject *left, PyObject *right);
PyObject *PyUnicode_InternFromString(const char *text);
void Py_DecRef(PyObject *object);
void Py_IncRef(PyObject *object);
PyObject *Py_NewRef(PyObject *object);

/* In the stable ABI from 3.11, the buffer's layout as it was before. */
int PyObject_GetBuffer(PyObject *object, Py_buffer *view, int flags);
void PyBuffer_Release(Py_buffer *view);
/* In the stable ABI from 3.12. */
PyObject *PyVectorcall_Call(PyObject *function, PyObject *args, PyObject *keywords);

#define Py_TYPE(object) (((PyObject *)(object))->ob_type)
#define Py_RETURN_NONE return Py_NewRef(Py_None)
#define Py_VISIT(object)                                                                                              \
    do {                                                                                                              \
        int visited_ = (object) ? visit((PyObject *)(object), arg) : 0;                                               \
        if (visited_)                                                                                                 \
            return visited_;                                                                                          \
    } while (0)
/* Set first, then let go: what is let go may run Python that looks here. */
#define Py_XSETREF(place, value)                                                                                      \
    do {                                                                                                              \
        PyObject *old_ = (PyObject *)(place);                                                                         \
        (place) = (value);                                                                                            \
        Py_DecRef(old_);                                                                                              \
    } while (0)
#define Py_CLEAR(place) Py_XSETREF(place, NULL)

static inline Py_ssize_t PyVectorcall_NARGS(size_t count) { return (Py_ssize_t)(count & (SIZE_MAX >> 1)); }

/* Exported from 3.11 on: 3.10 has the one that takes keywords as a dictionary. A strong reference would keep a library that
 * is bound at once from loading there, and end the process at the first call of one that is bound lazily. */
__attribute__((weak)) PyObject *PyObject_Vectorcall(PyObject *function, PyObject *const *args, size_t count,
                                                    PyObject *names);
PyObject *PyObject_VectorcallDict(PyObject *function, PyObject *const *args, size_t count, PyObject *keywords);
PyObject *PyDict_New(void);
int PyDict_SetItem(PyObject *dict, PyObject *key, PyObject *value);

static inline PyObject *hm_vectorcall(PyObject *function, PyObject *const *args, size_t count, PyObject *names) {
    if (PyObject_Vectorcall)
        return PyObject_Vectorcall(function, args, count, names);
    if (!names)
        return PyObject_VectorcallDict(function, args, count, NULL);
    PyObject *keywords = PyDict_New(), *result = NULL;
    int failed = keywords == NULL;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_Size(names); i++)
        failed = PyDict_SetItem(keywords, PyTuple_GetItem(names, i), args[PyVectorcall_NARGS(count) + i]) != 0;
    if (!failed)
        result = PyObject_VectorcallDict(function, args, count, keywords);
    Py_DecRef(keywords);
    return result;
}

static inline int PyTuple_Check(PyObject *object) {
    return (PyType_GetFlags(Py_TYPE(object)) & Py_TPFLAGS_TUPLE_SUBCLASS) != 0;
}

static inline int PyObject_TypeCheck(PyObject *object, PyTypeObject *type) {
    return Py_TYPE(object) == type || PyType_IsSubtype(Py_TYPE(object), type);
}

#endif
