/* The types of the extension module _ring. */
#ifndef HINDMOST_RING_MODULE_H
#define HINDMOST_RING_MODULE_H

#include "python_abi.h"
#include "ring_write.h"

typedef struct {
    PyObject_HEAD
    struct hm_ring ring;
    Py_buffer buffer;
} Ring;

extern HM_HIDDEN PyTypeObject *hm_ring_type;
/* Add Loop and Hook to the module; -1 with an exception set where that fails. */
HM_HIDDEN int hm_add_hooks(PyObject *module);
/* Add Stamp, likewise. */
HM_HIDDEN int hm_add_stamp(PyObject *module);

#endif
