/* A training loop in C, between its hooks (_hooks.c) and the types by which Python sees them (_hook_types.c). */
#ifndef HINDMOST_HOOKS_H
#define HINDMOST_HOOKS_H

#include "_ring.h"
#include "torch_steps.h"

/* Methods of the object that a Loop is made with. None raises but what is no fault of its own: Ctrl-C. */
enum rare { FIRST, TICK, CLOSES, GPU, ACCOUNT, WAY, RARE };

enum { RAISED = 3 };              /* an exception's type, value and trace */
#define HM_NOBODY ((unsigned long)-1) /* no thread has this ident */

typedef struct {
    PyObject_HEAD
    struct hm_seen seen;
    Ring *ring;
    unsigned long thread; /* the ident of the training thread; 0: unknown as yet, ask first() */
    char surely;          /* it did what only a thread that trains does; until then such a one takes its place */
    long long ticks, mask, unrecorded; /* steps with a bit of these are not measured, or not even recorded */
    long long own, due;            /* ns of the training thread that hooks took; when Python wants account of it */
    long long started;             /* when the optimizer's step in progress began */
    long long waits, copies;       /* the ring's indices of the names of waits for the GPU, and of copies to it */
    long long passing;             /* train steps gone by unrecorded, the one in progress included */
    int stepped, optimizing, backwards;
    int skip, fruitless; /* batches that are not searched for a tensor from now on, and after the next without one */
    char fed, measuring, on_gpu, tokens;
    unsigned long engine; /* a thread of autograd's in which optimizers step while the training thread is in backward */
    unsigned long rival;  /* another thread that trains */
    uintptr_t within;     /* an optimizer that has stepped within the backward in progress */
    char prompted; /* a backward began since the optimizer's last step did, in its closure or after it */
    PyObject *gradients, *clock; /* clock: NULL, but in tests */
    PyObject *rare[RARE];
    PyObject *kind, *way; /* the type of the last batch, and the keys to the tensor that tells its work */
    PyObject *raised[RAISED]; /* what is to be raised when the hook is done */
} Loop;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    Loop *loop;
    PyObject *original, *attributes;
    /* Of a hook that stands in a function itself, and of what calls that function as it was. */
    PyObject *function;
    vectorcallfunc plain;
} Hook;

extern HM_HIDDEN PyObject *hm_dataset_name, *hm_shape_name; /* the attributes, interned */

/* The result, unless something is to be raised; an error of the hooked function's own comes first. */
HM_HIDDEN PyObject *hm_unless_raised(Loop *loop, PyObject *result, bool failed);
/* What seen.closes is for a Loop. */
HM_HIDDEN void hm_closes(struct hm_seen *seen, enum hm_loop_name kind, uint64_t number, int64_t start, int64_t end);

/* The hooks, as they are called: see places in _hook_types.c. */
HM_HIDDEN PyObject *hm_call_fetch(PyObject *self, PyObject *const *args, size_t count, PyObject *names);
HM_HIDDEN PyObject *hm_call_backward(PyObject *self, PyObject *const *args, size_t count, PyObject *names);
HM_HIDDEN PyObject *hm_call_step_begins(PyObject *self, PyObject *const *args, size_t count, PyObject *names);
HM_HIDDEN PyObject *hm_call_step_ends(PyObject *self, PyObject *const *args, size_t count, PyObject *names);

/* Hook.enter() and Hook.leave(): see _hook_place.c. */
HM_HIDDEN PyObject *hm_enter_function(PyObject *self, PyObject *unused);
HM_HIDDEN PyObject *hm_leave_function(PyObject *self, PyObject *unused);
HM_HIDDEN void hm_give_back(Hook *hook);

/* Loop.definition(), Loop.watch() and Loop.unwatch(): see _hook_waits.c. */
HM_HIDDEN PyObject *hm_definition(PyObject *self, PyObject *function);
HM_HIDDEN PyObject *hm_watch(PyObject *self, PyObject *args);
HM_HIDDEN PyObject *hm_unwatch(PyObject *self, PyObject *unused);

#endif
