/* Where steps begin and end: torch_steps.h says more, and probes/torch_steps.py why. */
#include "torch_steps.h"

#include <string.h>

static bool writable(const struct hm_seen *seen) {
    return seen->ring && seen->ring->base;
}

static void write_phase(struct hm_seen *seen, enum hm_loop_name name, int64_t start, int64_t end) {
    if (writable(seen))
        hm_event(seen->ring, hm_what(HM_PHASE, 0, seen->names[name]), (uint64_t)start, (uint64_t)(end - start),
                 hm_where(0, HM_NONE16, HM_NONE16), 0);
}

static void show(struct hm_seen *seen, int64_t now, enum hm_loop_name kind) {
    if (!seen->is_explicit && writable(seen))
        hm_enter(seen->ring, HM_STEP_SLOT, hm_what(HM_STEP, 0, seen->names[kind]), (uint64_t)now,
                 hm_where((uint32_t)seen->numbers[kind - HM_TRAIN], HM_NONE16, HM_NONE16));
}

static void leave_step(struct hm_seen *seen) {
    if (writable(seen))
        hm_leave(seen->ring, HM_STEP_SLOT);
}

static void write_step(struct hm_seen *seen, enum hm_loop_name kind, int64_t start, int64_t end) {
    uint64_t number = seen->numbers[kind - HM_TRAIN]++;
    seen->ended = end;
    if (seen->attended)
        seen->closes(seen, kind, number, start, end);
    else if (writable(seen))
        hm_event(seen->ring, hm_what(HM_STEP, 0, seen->names[kind]), (uint64_t)start, (uint64_t)(end - start),
                 hm_where((uint32_t)number, HM_NONE16, HM_NONE16), seen->work);
    seen->work = 0;
}

/* The step in progress ends here and the next one begins. */
static void close_step(struct hm_seen *seen, int64_t now, enum hm_loop_name kind) {
    if (!seen->is_explicit)
        write_step(seen, kind, seen->boundary, now);
    else if (kind == HM_EVAL)
        seen->work = 0; /* else the next step that is marked would count it */
    if (kind == HM_TRAIN) {
        seen->unfed = !(seen->fed || seen->strayed);
        seen->strayed = false;
    }
    seen->boundary = seen->ready = now;
    seen->fed = seen->backward = seen->evaluating = false;
    seen->stepped = 0;
}

static void forward_until(struct hm_seen *seen, int64_t now) {
    if (0 <= seen->ready && seen->ready < now)
        write_phase(seen, HM_FORWARD, seen->ready, now);
}

static struct hm_source *find_source(struct hm_seen *seen, uint64_t id) {
    for (struct hm_source *source = seen->sources; source < seen->sources + seen->known; source++)
        if (source->id == id)
            return source;
    return NULL;
}

static struct hm_source *make_source(struct hm_seen *seen, uint64_t id) {
    struct hm_source *oldest = seen->sources;
    if (seen->known < HM_SOURCES)
        oldest += seen->known++;
    else
        for (struct hm_source *source = seen->sources; source < seen->sources + seen->known; source++)
            if (source->used < oldest->used)
                oldest = source;
    memset(oldest, 0, sizeof *oldest);
    oldest->id = id;
    return oldest;
}

/* Where the loop fetches nothing to train on, what it fetched was for an evaluation, and that has ended. */
static void tell_stray(struct hm_seen *seen) {
    if (!seen->fed || !seen->unfed || seen->backward)
        return;
    struct hm_source *source = find_source(seen, seen->source);
    if (source && source->trains)
        return;
    if (source)
        source->waiting = 0;
    seen->boundary = seen->ready = -1;
    seen->fed = seen->evaluating = false;
    seen->strayed = true;
}

/* The first sign of a step, where no fetch was. */
static void begin(struct hm_seen *seen, int64_t now) {
    tell_stray(seen);
    if (seen->boundary < 0) {
        seen->boundary = now;
        show(seen, now, HM_TRAIN);
    }
    if (seen->ready < 0)
        seen->ready = now;
}

/* One batch of each source is used: the oldest, for a loader may be some batches ahead. Where several are fetched
 * between uses again and again, of two loaders of one data set, as many. */
static void use_batches(struct hm_seen *seen) {
    for (struct hm_source *source = seen->sources; source < seen->sources + seen->known; source++) {
        int used = source->fetched > 1 && source->before > 1 ? source->fetched : 1;
        source->before = source->fetched;
        source->fetched = 0;
        for (; used && source->waiting; used--) {
            seen->work += source->work[source->first];
            source->first = (source->first + 1) % HM_AHEAD;
            source->waiting--;
        }
    }
}

static void forget_batches(struct hm_seen *seen) {
    for (struct hm_source *source = seen->sources; source < seen->sources + seen->known; source++)
        source->waiting = 0;
}

/* Whether this source has fed no backward while another has. */
static bool only_evaluates(struct hm_seen *seen, uint64_t id) {
    struct hm_source *source = find_source(seen, id);
    return seen->trainers && !(source && source->trains);
}

/* Whether an optimizer's step ends something: one before any backward only makes the optimizer's state. */
static bool trains(struct hm_seen *seen) {
    if (!seen->prompted && seen->unprompted <= HM_REPEATS)
        seen->unprompted++;
    return seen->prompted || seen->unprompted > HM_REPEATS;
}

/* How many steps this optimizer has made in this step; of more than are counted, each is taken for the first. */
static int count_step(struct hm_seen *seen, uint64_t optimizer) {
    for (int i = 0; i < seen->stepped; i++)
        if (seen->optimizers[i].id == optimizer)
            return ++seen->optimizers[i].steps;
    if (seen->stepped < HM_OPTIMIZERS) {
        seen->optimizers[seen->stepped].id = optimizer;
        seen->optimizers[seen->stepped++].steps = 1;
    }
    return 1;
}

static bool has_stepped(const struct hm_seen *seen, uint64_t optimizer) {
    for (int i = 0; i < seen->stepped; i++)
        if (seen->optimizers[i].id == optimizer)
            return true;
    return false;
}

void hm_seen_init(struct hm_seen *seen) {
    memset(seen, 0, sizeof *seen);
    seen->boundary = seen->ready = seen->last = seen->ended = -1;
}

void hm_input_begins(struct hm_seen *seen, int64_t now, uint64_t source, bool gradients) {
    if (seen->stepped)
        close_step(seen, now, HM_TRAIN);
    else if (seen->fed && (seen->evaluating || (!seen->backward && only_evaluates(seen, seen->source)))) {
        forward_until(seen, now);
        use_batches(seen);
        close_step(seen, now, HM_EVAL);
    }
    if (!(seen->fed || seen->backward))
        seen->boundary = now;
    seen->evaluating = !gradients;
    seen->source = source;
    show(seen, seen->boundary, gradients ? HM_TRAIN : HM_EVAL);
}

void hm_input_ends(struct hm_seen *seen, int64_t start, int64_t now, uint64_t work) {
    write_phase(seen, HM_INPUT, start, now);
    seen->fed = true;
    seen->backward = false;
    struct hm_source *source = find_source(seen, seen->source);
    if (!source)
        source = make_source(seen, seen->source);
    source->used = ++seen->fetches;
    if (source->fetched < HM_AHEAD)
        source->fetched++;
    if (source->waiting == HM_AHEAD) { /* the oldest is forgotten */
        source->first = (source->first + 1) % HM_AHEAD;
        source->waiting--;
    }
    source->work[(source->first + source->waiting++) % HM_AHEAD] = work;
    seen->ready = now;
}

void hm_input_fails(struct hm_seen *seen) {
    tell_stray(seen);
    if (seen->fed || seen->backward)
        return;
    seen->boundary = seen->ready = -1;
    if (!seen->is_explicit)
        leave_step(seen);
}

void hm_backward_begins(struct hm_seen *seen, int64_t now) {
    begin(seen, now);
    forward_until(seen, now);
    seen->backward = seen->prompted = true;
    use_batches(seen);
    struct hm_source *source = seen->fed ? find_source(seen, seen->source) : NULL;
    if (source)
        source->trains = seen->trainers = true;
    seen->evaluating = false;
}

void hm_backward_ends(struct hm_seen *seen, int64_t start, int64_t now) {
    write_phase(seen, HM_BACKWARD, start, now);
    seen->ready = seen->last = now;
}

void hm_optimizer_begins(struct hm_seen *seen, int64_t now) {
    begin(seen, now);
    seen->ready = now;
}

void hm_optimizer_ends(struct hm_seen *seen, int64_t start, int64_t now, uint64_t optimizer) {
    write_phase(seen, HM_OPTIMIZER, start, now);
    hm_stepped(seen, now, optimizer);
}

void hm_stepped(struct hm_seen *seen, int64_t now, uint64_t optimizer) {
    seen->ready = seen->last = now;
    if (!trains(seen))
        return;
    int repeats = count_step(seen, optimizer);
    if (!seen->leader || (repeats > 1 && !has_stepped(seen, seen->leader)))
        seen->leader = optimizer;
    if (optimizer == seen->leader && (!seen->fed || repeats > HM_REPEATS)) {
        close_step(seen, now, HM_TRAIN);
        show(seen, now, HM_TRAIN);
    }
}

void hm_forgets(struct hm_seen *seen) {
    if (seen->stepped)
        close_step(seen, seen->last, HM_TRAIN);
    seen->work = 0;
    forget_batches(seen);
    seen->boundary = seen->ready = -1;
    seen->fed = seen->backward = seen->evaluating = false;
}

void hm_pauses(struct hm_seen *seen, int64_t now) {
    if (!seen->evaluating || !seen->fed)
        return;
    forward_until(seen, now);
    use_batches(seen);
    close_step(seen, now, HM_EVAL);
    seen->boundary = seen->ready = -1;
}

void hm_ends(struct hm_seen *seen, int64_t now) {
    if (seen->stepped)
        close_step(seen, now, HM_TRAIN);
    leave_step(seen);
}

void hm_passed(struct hm_seen *seen, int64_t now, uint64_t count) {
    if (!seen->is_explicit)
        seen->numbers[0] += count;
    seen->boundary = seen->ready = now;
    forget_batches(seen);
}

void hm_finish(struct hm_seen *seen) {
    if (seen->stepped)
        close_step(seen, seen->last, HM_TRAIN);
    leave_step(seen);
}
