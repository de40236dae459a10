/* The way into a Python that does not look at PYTHONPATH: one that is run with -I or -E, or by a script that sets it anew.
 *
 * Before Python starts, its table of built-in modules gets one more, called sitecustomize, which Python imports when it
 * starts, from there first. It runs the sitecustomize.py in HINDMOST_INJECT, as PYTHONPATH's would have been, and that one the
 * user's own. Only -S keeps Python from that import. Where Python's functions are not there to be called (another program,
 * a Python without dynamic symbols), nothing happens.
 */
#define _GNU_SOURCE
#include "python_abi.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    Py_file_input = 257,
    Py_mod_exec = 2,
    Py_mod_multiple_interpreters = 3,
    PER_INTERPRETER_GIL = 2, /* a value of the slot before */
    VERSION_3_12 = 0x030C0000 /* which asks for it */
};

typedef struct {
    int slot;
    void *value;
} Slot;

#define WEAK __attribute__((weak))
extern WEAK const unsigned long Py_Version; /* from 3.11 */
WEAK int PyImport_AppendInittab(const char *name, PyObject *(*init)(void));
WEAK PyObject *PyModuleDef_Init(PyModuleDef *module);
WEAK PyObject *PyDict_New(void);
WEAK int PyDict_SetItemString(PyObject *dict, const char *key, PyObject *value);
WEAK PyObject *PyEval_EvalCode(PyObject *code, PyObject *globals, PyObject *locals);
WEAK PyObject *PyEval_GetBuiltins(void);
WEAK PyObject *PyUnicode_DecodeFSDefault(const char *text);
WEAK PyObject *Py_CompileString(const char *text, const char *name, int start);
WEAK void Py_DecRef(PyObject *object);
WEAK int PyUnstable_Module_SetGIL(PyObject *module, void *gil); /* without the GIL, where layouts are others */

static const char program[] = "import sys\n"
                              "from importlib.util import module_from_spec, spec_from_file_location\n"
                              "spec = spec_from_file_location('sitecustomize', path)\n"
                              "sys.modules['sitecustomize'] = module = module_from_spec(spec)\n"
                              "spec.loader.exec_module(module)\n";
static char path[4096];

/* -1, with the exception, where the user's own sitecustomize raises. */
static int run(PyObject *module) {
    (void)module;
    PyObject *globals = PyDict_New(), *file = PyUnicode_DecodeFSDefault(path), *result = NULL;
    PyObject *code = Py_CompileString(program, "<hindmost>", Py_file_input);
    if (globals && file && code && PyDict_SetItemString(globals, "__builtins__", PyEval_GetBuiltins()) == 0 &&
        PyDict_SetItemString(globals, "path", file) == 0)
        result = PyEval_EvalCode(code, globals, globals);
    int status = result ? 0 : -1;
    Py_DecRef(globals);
    Py_DecRef(file);
    Py_DecRef(code);
    Py_DecRef(result);
    return status;
}

static PyObject *define(void) {
    static Slot slots[3] = {{Py_mod_exec, run}};
    static PyModuleDef module = {.m_base.ob_base.ob_refcnt = 1, .m_name = "sitecustomize", .m_slots = slots};
    if (&Py_Version && Py_Version >= VERSION_3_12)
        slots[1] = (Slot){Py_mod_multiple_interpreters, (void *)PER_INTERPRETER_GIL};
    return PyModuleDef_Init(&module);
}

static bool is_python(void) {
    return strncmp(program_invocation_short_name, "python", 6) == 0 && PyImport_AppendInittab && PyEval_EvalCode &&
           !PyUnstable_Module_SetGIL;
}

__attribute__((constructor)) static void enter(void) {
    const char *job = getenv("HINDMOST_JOB_ID"), *inject = getenv("HINDMOST_INJECT");
    if (!job || !*job || !inject || !*inject || !is_python())
        return;
    int length = snprintf(path, sizeof path, "%s/sitecustomize.py", inject);
    if (length > 0 && (size_t)length < sizeof path && access(path, R_OK) == 0)
        PyImport_AppendInittab("sitecustomize", define);
}
