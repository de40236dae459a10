/* Writer.event in C: the same records as the pure Python in ring/writer.py, under the same tests.
 *
 * Ring(buffer, capacity).event(kind, name, start_ns, duration_ns, seq=0, comm=NONE16, peer=NONE16, value=0, flags=0)
 */
#include "_ring.h"

enum { POSITIONAL = 4, FIELDS = 9 };

static const char *const field_names[FIELDS] = {"kind", "name", "start_ns", "duration_ns", "seq",
                                                "comm", "peer", "value",    "flags"};
static PyObject *fields[FIELDS]; /* the same, interned */
static const uint64_t most[FIELDS] = {0xFF,   0xFFFF, UINT64_MAX, UINT64_MAX, 0xFFFFFFFF,
                                      0xFFFF, 0xFFFF, UINT64_MAX, 0xFF};

PyTypeObject *hm_ring_type;

/* Which field a keyword names; -1: none. */
static int field_of(PyObject *keyword) {
    for (int i = 0; i < FIELDS; i++)
        if (keyword == fields[i])
            return i;
    for (int i = 0; i < FIELDS; i++)
        if (PyUnicode_Compare(keyword, fields[i]) == 0)
            return i;
    PyErr_Format(PyExc_TypeError, "event() got an unexpected keyword argument '%U'", keyword);
    return -1;
}

/* False: not an integer, or out of the field's range; no error is left set. */
static inline bool convert(PyObject *value, int field, uint64_t *to) {
    *to = PyLong_AsUnsignedLongLong(value);
    if (*to == UINT64_MAX && PyErr_Occurred()) {
        PyErr_Clear();
        return false;
    }
    return *to <= most[field];
}

static inline void write_fields(struct hm_ring *ring, const uint64_t *f) {
    hm_event(ring, hm_what((uint8_t)f[0], (uint8_t)f[8], (uint16_t)f[1]), f[2], f[3],
             hm_where((uint32_t)f[4], (uint16_t)f[6], (uint16_t)f[5]), f[7]);
}

/* 1: the fields are there; 0: one does not fit; -1: the call itself is wrong, with an exception set. */
static int read_fields(PyObject *const *args, Py_ssize_t count, PyObject *keywords, uint64_t *f) {
    Py_ssize_t named = keywords ? PyTuple_Size(keywords) : 0;
    bool good = true;
    if (count > FIELDS || count + named < POSITIONAL) {
        PyErr_SetString(PyExc_TypeError, "event() takes kind, name, start_ns, duration_ns and up to 5 more");
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        good &= convert(args[i], (int)i, &f[i]);
    for (Py_ssize_t i = 0; i < named; i++) {
        int field = field_of(PyTuple_GetItem(keywords, i));
        if (field < 0)
            return -1;
        good &= convert(args[count + i], field, &f[field]);
    }
    return good;
}

static PyObject *ring_event(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
    struct hm_ring *ring = &((Ring *)self)->ring;
    uint64_t f[FIELDS] = {0, 0, 0, 0, 0, HM_NONE16, HM_NONE16, 0, 0};
    int read = read_fields(args, count, keywords, f);
    if (read < 0)
        return NULL;
    if (ring->base && read)
        write_fields(ring, f);
    else if (ring->base)
        hm_refuse(ring);
    Py_RETURN_NONE;
}

/* Let go of the memory: from now on events go nowhere. */
static PyObject *ring_release(PyObject *self, PyObject *unused) {
    (void)unused;
    Ring *own = (Ring *)self;
    if (own->ring.base) {
        own->ring.base = NULL;
        PyBuffer_Release(&own->buffer);
    }
    Py_RETURN_NONE;
}

static PyObject *ring_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    PyObject *memory;
    unsigned long capacity;
    (void)keywords;
    if (!PyArg_ParseTuple(args, "Ok", &memory, &capacity))
        return NULL;
    Ring *self = (Ring *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    if (PyObject_GetBuffer(memory, &self->buffer, PyBUF_WRITABLE) < 0) {
        Py_DecRef((PyObject *)self);
        return NULL;
    }
    self->ring.base = self->buffer.buf;
    self->ring.head = (uint64_t *)(self->ring.base + HM_HEAD_OFFSET);
    self->ring.records = (uint64_t *)(self->ring.base + HM_RECORDS_OFFSET);
    self->ring.mask = capacity - 1;
    if (capacity == 0 || (size_t)self->buffer.len != HM_RECORDS_OFFSET + capacity * HM_RECORD_BYTES) {
        PyErr_SetString(PyExc_ValueError, "the buffer is no ring of this capacity");
        Py_DecRef((PyObject *)self);
        return NULL;
    }
    return (PyObject *)self;
}

static void ring_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    Py_DecRef(ring_release(self, NULL));
    PyObject_Free(self);
    Py_DecRef((PyObject *)type);
}

static PyMethodDef methods[] = {
    {"event", (PyCFunction)(void (*)(void))ring_event, METH_FASTCALL | METH_KEYWORDS, "Append one record."},
    {"release", ring_release, METH_NOARGS, "Let go of the memory."},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_new, ring_new},
    {Py_tp_dealloc, ring_dealloc},
    {Py_tp_methods, methods},
    {0},
};

static PyType_Spec spec = {"_ring.Ring", sizeof(Ring), 0, Py_TPFLAGS_DEFAULT, slots};

static PyModuleDef module = {.m_base.ob_base.ob_refcnt = 1, .m_name = "_ring", .m_size = -1};

__attribute__((visibility("default"))) PyObject *PyInit__ring(void) {
    for (int i = 0; i < FIELDS; i++)
        if (!(fields[i] = PyUnicode_InternFromString(field_names[i])))
            return NULL;
    PyObject *made = PyModule_Create2(&module, PYTHON_ABI_VERSION), *type = PyType_FromSpec(&spec);
    if (!made || !type || PyModule_AddObject(made, "Ring", type) < 0) {
        Py_DecRef(made);
        Py_DecRef(type);
        return NULL;
    }
    hm_ring_type = (PyTypeObject *)type;
    if (hm_add_hooks(made) < 0 || hm_add_stamp(made) < 0) {
        Py_DecRef(made);
        return NULL;
    }
    return made;
}
