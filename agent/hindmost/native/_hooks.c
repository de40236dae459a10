/* What is called before and after torch's functions, in C: the twin of probes/torch_hooks.py, under the same tests.
 *
 * Hooks run between a training loop's own work, in caches that are cold for them, where what they cost is the memory
 * that they touch. So what every step needs is here, in a few cache lines, and is written to the ring at once; what is
 * rare (a step that is measured, the books that are kept twice a second) is Python's, called by its name in `rare`.
 */
#include "_hooks.h"

enum { SHOWN_SLOT = 8 }; /* of the open table: the innermost phases of loops that mark so many are not shown */
enum { MOST_SKIPPED = 63 }; /* batches that are not searched for a tensor, after many that had none */
/* Python says when its books are due; where only evaluations run, they may be late by so much. */
static const int64_t OVERDUE_NS = 100000000;

/* The places that gpu() gets. */
enum gpu_place { FETCHES, READY, BACKWARD_BEGINS, BACKWARD_ENDS, OPTIMIZER_ENDS };

PyObject *hm_dataset_name, *hm_shape_name;

static void keep_error(Loop *loop) {
    if (loop->raised[0])
        PyErr_Clear();
    else
        PyErr_Fetch(&loop->raised[0], &loop->raised[1], &loop->raised[2]);
}

/* The result, unless something is to be raised; an error of the hooked function's own comes first. */
PyObject *hm_unless_raised(Loop *loop, PyObject *result, bool failed) {
    if (!loop->raised[0])
        return result;
    PyObject *type = loop->raised[0], *value = loop->raised[1], *trace = loop->raised[2];
    memset(loop->raised, 0, sizeof loop->raised);
    if (failed) {
        Py_DecRef(type);
        Py_DecRef(value);
        Py_DecRef(trace);
        return NULL;
    }
    Py_DecRef(result);
    PyErr_Restore(type, value, trace);
    return NULL;
}

/* A loop that is being collected gets no call. */
#define CALL_RARE(loop, which, ...)                                                                                   \
    do                                                                                                                \
        if ((loop)->rare[which])                                                                                      \
            done(loop, PyObject_CallFunction((loop)->rare[which], __VA_ARGS__));                                      \
    while (0)

static void done(Loop *loop, PyObject *result) {
    if (!result)
        keep_error(loop);
    Py_DecRef(result);
}

static int64_t now(Loop *loop) {
    if (!loop->clock)
        return (int64_t)hm_now();
    PyObject *told = PyObject_CallNoArgs(loop->clock);
    int64_t time = told ? PyLong_AsLongLong(told) : 0;
    if (!told || (time == -1 && PyErr_Occurred()))
        keep_error(loop);
    Py_DecRef(told);
    return time;
}

/* Whether this is the thread that trains. Any may seem so that fetches; one that `trains` takes its place for good. */
static bool in_training_thread(Loop *loop, bool trains) {
    unsigned long here = PyThread_get_thread_ident();
    if (!loop->thread || (trains && !loop->surely))
        CALL_RARE(loop, FIRST, "i", trains);
    return here == loop->thread;
}

void hm_closes(struct hm_seen *seen, enum hm_loop_name kind, uint64_t number, int64_t start, int64_t end) {
    Loop *loop = (Loop *)((char *)seen - offsetof(Loop, seen));
    CALL_RARE(loop, CLOSES, "iKLLK", kind == HM_TRAIN, (unsigned long long)number, (long long)start, (long long)end,
              (unsigned long long)seen->work);
}

static void gpu(Loop *loop, enum gpu_place place) {
    if (loop->on_gpu && loop->measuring)
        CALL_RARE(loop, GPU, "i", place);
}

static void tick(Loop *loop, int64_t time) {
    if (loop->seen.is_explicit)
        return;
    loop->ticks++;
    if (!(loop->ticks & loop->mask) || loop->measuring)
        CALL_RARE(loop, TICK, "LL", (long long)time, loop->ticks);
}

static void show(Loop *loop, enum hm_loop_name name, int64_t start) {
    if (loop->ring && loop->ring->ring.base)
        hm_enter(&loop->ring->ring, SHOWN_SLOT, hm_what(HM_PHASE, 0, loop->seen.names[name]), (uint64_t)start,
                 hm_where(0, HM_NONE16, HM_NONE16));
}

static void show_no_more(Loop *loop) {
    if (loop->ring && loop->ring->ring.base)
        hm_leave(&loop->ring->ring, SHOWN_SLOT);
}

/* Account for what a hook took since start, and give account of it all where that is due, or overdue by so much. */
static void took_since(Loop *loop, int64_t start, int64_t overdue) {
    int64_t end = now(loop);
    loop->own += end - start;
    if (end >= loop->due + overdue)
        CALL_RARE(loop, ACCOUNT, "L", (long long)end);
}

/* Samples or tokens in a tensor of this shape; -1 with an exception set where it has none. */
static long long size_of(PyObject *shape, bool tokens) {
    Py_ssize_t count = PySequence_Size(shape);
    long long size = count < 0 ? -1 : 1;
    if (count == 0 && !tokens)
        return 0;
    for (Py_ssize_t i = 0; i < (tokens ? count : 1) && size >= 0; i++) {
        PyObject *item = PySequence_GetItem(shape, i);
        long long dimension = item ? PyLong_AsLongLong(item) : -1;
        Py_DecRef(item);
        size = dimension < 0 ? -1 : size * dimension;
    }
    return size;
}

/* The shape of the tensor that tells a batch's work; NULL with an exception set. */
static PyObject *shape_of(PyObject *batch, PyObject *way) {
    PyObject *found = Py_NewRef(batch);
    for (Py_ssize_t i = 0; found && i < PyTuple_Size(way); i++)
        Py_XSETREF(found, PyObject_GetItem(found, PyTuple_GetItem(way, i)));
    PyObject *shape = found ? PyObject_GetAttr(found, hm_shape_name) : NULL;
    Py_DecRef(found);
    return shape;
}

/* Look for the tensor that tells the work of batches of this type. */
static bool find_way(Loop *loop, PyObject *batch) {
    PyObject *way = PyObject_CallFunction(loop->rare[WAY], "(O)", batch);
    if (!way)
        keep_error(loop);
    if (!way || !PyTuple_Check(way)) {
        Py_DecRef(way);
        return false;
    }
    Py_XSETREF(loop->kind, Py_NewRef((PyObject *)Py_TYPE(batch)));
    Py_XSETREF(loop->way, way);
    return true;
}

/* Whether it is known where the tensor is. Where none was found again and again, few batches are searched. */
static bool way_is_known(Loop *loop, PyObject *batch) {
    if ((PyObject *)Py_TYPE(batch) == loop->kind)
        return true;
    if (loop->skip) {
        loop->skip--;
        return false;
    }
    bool found = find_way(loop, batch);
    loop->skip = found ? 0 : loop->fruitless;
    loop->fruitless = found ? 0 : (loop->fruitless << 1 | 1) & MOST_SKIPPED;
    return found;
}

/* Samples or tokens in a batch; 0 unknown. */
static uint64_t work_of(Loop *loop, PyObject *batch) {
    if (!way_is_known(loop, batch))
        return 0;
    PyObject *shape = shape_of(batch, loop->way);
    long long size = shape ? size_of(shape, loop->tokens) : -1;
    Py_DecRef(shape);
    if (size >= 0)
        return (uint64_t)size;
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
        keep_error(loop);
    PyErr_Clear();
    Py_CLEAR(loop->kind); /* unlike the last: it is looked at anew */
    return 0;
}

/* Whether the step that begins goes unrecorded, because hooks take too much of such short steps. */
static bool passes(Loop *loop, int64_t start, bool gradients) {
    if ((loop->ticks & loop->unrecorded) && gradients && !loop->seen.is_explicit) {
        if (!loop->passing++)
            hm_ends(&loop->seen, start);
        return true;
    }
    if (loop->passing)
        hm_passed(&loop->seen, start, (uint64_t)loop->passing);
    loop->passing = 0;
    return false;
}

static bool gradients_are_on(Loop *loop) {
    PyObject *on = PyObject_CallNoArgs(loop->gradients);
    if (!on)
        keep_error(loop);
    Py_DecRef(on); /* True and False are not freed */
    return on != Py_False;
}

/* What tells an iterator's source: its data set, or else itself. */
static uint64_t source_of(PyObject *iterator) {
    PyObject *dataset = PyObject_GetAttr(iterator, hm_dataset_name);
    if (!dataset)
        PyErr_Clear();
    uint64_t source = (uintptr_t)(dataset ? dataset : iterator);
    Py_DecRef(dataset);
    return source;
}

/* When the fetch began; -1: nothing of it is recorded. */
static int64_t fetch_begins(Loop *loop, PyObject *iterator) {
    if (!in_training_thread(loop, false) || (loop->passing && !loop->stepped))
        return -1;
    int64_t start = now(loop);
    bool gradients = gradients_are_on(loop);
    if (loop->stepped) {
        loop->stepped = 0;
        tick(loop, start);
        if (passes(loop, start, gradients))
            return -1;
        gpu(loop, FETCHES);
    }
    loop->fed = true;
    loop->optimizing = 0;
    hm_input_begins(&loop->seen, start, source_of(iterator), gradients);
    show(loop, HM_INPUT, start);
    took_since(loop, start, OVERDUE_NS); /* an evaluation has no optimizer, where this is done otherwise */
    return start;
}

static void fetch_ends(Loop *loop, int64_t start, PyObject *batch) {
    if (PyThread_get_thread_ident() != loop->thread) /* another has taken its place meanwhile */
        return;
    int64_t end = now(loop);
    show_no_more(loop);
    hm_input_ends(&loop->seen, start, end, work_of(loop, batch));
    gpu(loop, READY);
    loop->own += now(loop) - end;
}

static int64_t backward_begins(Loop *loop) {
    if (loop->backwards || loop->passing)
        return -1;
    if (!in_training_thread(loop, true)) {
        loop->rival = PyThread_get_thread_ident();
        return -1;
    }
    int64_t start = now(loop);
    loop->backwards = 1;
    loop->prompted = true;
    hm_backward_begins(&loop->seen, start);
    show(loop, HM_BACKWARD, start);
    gpu(loop, BACKWARD_BEGINS);
    loop->own += now(loop) - start;
    return start;
}

/* An optimizer's step has ended; one that is no phase has been made within backward. */
static void stepped(Loop *loop, int64_t end, uintptr_t optimizer, bool is_phase) {
    loop->stepped++;
    bool measured = loop->measuring, ends = !loop->fed || loop->stepped > HM_REPEATS;
    if (ends) /* a loop that fetches nothing: the step ends here */
        tick(loop, end);
    if (is_phase)
        hm_optimizer_ends(&loop->seen, loop->started, end, optimizer);
    else
        hm_stepped(&loop->seen, end, optimizer);
    if (ends && !measured)
        gpu(loop, READY);
    took_since(loop, end, 0);
}

static void backward_ends(Loop *loop, int64_t start) {
    int64_t end = now(loop);
    loop->backwards = 0;
    show_no_more(loop);
    hm_backward_ends(&loop->seen, start, end);
    gpu(loop, BACKWARD_ENDS);
    uintptr_t within = loop->within;
    loop->within = 0;
    if (within)
        stepped(loop, end, within, false);
    else
        loop->own += now(loop) - end;
}

/* On a GPU hooks of gradients run in a thread of autograd's: an optimizer that steps in one is the training thread's. */
static void steps_elsewhere(Loop *loop, PyObject *optimizer) {
    unsigned long here = PyThread_get_thread_ident();
    if (here == loop->rival)
        return;
    if (loop->backwards) {
        loop->engine = here;
        loop->within = (uintptr_t)optimizer;
    } else if (loop->passing && here == loop->engine)
        loop->stepped = 1;
}

static void step_begins(Loop *loop, PyObject *optimizer) {
    if (!in_training_thread(loop, true)) {
        steps_elsewhere(loop, optimizer);
        return;
    }
    if (loop->prompted) /* since the previous step began: that one ended, or raised and reported no end */
        loop->optimizing = 0;
    loop->prompted = false;
    if (loop->optimizing++ || loop->passing)
        return;
    loop->started = now(loop);
    hm_optimizer_begins(&loop->seen, loop->started);
    loop->own += now(loop) - loop->started;
}

static void step_ends(Loop *loop, PyObject *optimizer) {
    if (!loop->optimizing || PyThread_get_thread_ident() != loop->thread || --loop->optimizing)
        return;
    if (loop->passing) {
        loop->stepped++;
        return;
    }
    int64_t end = now(loop);
    gpu(loop, OPTIMIZER_ENDS);
    stepped(loop, end, (uintptr_t)optimizer, true);
}

PyObject *hm_call_fetch(PyObject *self, PyObject *const *args, size_t count, PyObject *names) {
    Hook *hook = (Hook *)self;
    Loop *loop = hook->loop;
    int64_t start = PyVectorcall_NARGS(count) ? fetch_begins(loop, args[0]) : -1;
    if (loop->raised[0])
        return hm_unless_raised(loop, NULL, false);
    PyObject *result = hm_vectorcall(hook->original, args, count, names);
    if (start < 0)
        return result;
    if (result)
        fetch_ends(loop, start, result);
    else if (PyThread_get_thread_ident() == loop->thread) {
        show_no_more(loop);
        hm_input_fails(&loop->seen);
    }
    return hm_unless_raised(loop, result, !result);
}

PyObject *hm_call_backward(PyObject *self, PyObject *const *args, size_t count, PyObject *names) {
    Hook *hook = (Hook *)self;
    Loop *loop = hook->loop;
    int64_t start = backward_begins(loop);
    if (loop->raised[0])
        return hm_unless_raised(loop, NULL, false);
    PyObject *result = hm_vectorcall(hook->original, args, count, names);
    if (start < 0)
        return result;
    PyObject *type = NULL, *value = NULL, *trace = NULL;
    if (!result)
        PyErr_Fetch(&type, &value, &trace);
    backward_ends(loop, start);
    if (!result)
        PyErr_Restore(type, value, trace);
    return hm_unless_raised(loop, result, !result);
}

PyObject *hm_call_step_begins(PyObject *self, PyObject *const *args, size_t count, PyObject *names) {
    (void)names;
    Loop *loop = ((Hook *)self)->loop;
    step_begins(loop, PyVectorcall_NARGS(count) ? args[0] : NULL);
    return hm_unless_raised(loop, Py_NewRef(Py_None), false);
}

PyObject *hm_call_step_ends(PyObject *self, PyObject *const *args, size_t count, PyObject *names) {
    (void)names;
    Loop *loop = ((Hook *)self)->loop;
    step_ends(loop, PyVectorcall_NARGS(count) ? args[0] : NULL);
    return hm_unless_raised(loop, Py_NewRef(Py_None), false);
}
