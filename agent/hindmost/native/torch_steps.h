/* Where a training loop's steps begin and end, from what its framework does: the twin of probes/torch_steps.py, which says
 * what each function means; tests/probe/test_torch_steps.py holds both to the same truths. Times are ns of CLOCK_MONOTONIC.
 *
 * Everything is written at once: where nothing waits to be worked off, a process that is killed has lost nothing.
 */
#ifndef HINDMOST_TORCH_STEPS_H
#define HINDMOST_TORCH_STEPS_H

#include "ring_write.h"

enum {
    HM_REPEATS = 8,     /* so many steps of one optimizer after one fetch: the loop fetches no more */
    HM_AHEAD = 16,      /* batches that a loader may be ahead of the step that uses them */
    HM_SOURCES = 8,     /* different sources of input; the least recently used is forgotten */
    HM_OPTIMIZERS = 16, /* optimizers of a step whose repeated steps are counted */
    HM_STEP_SLOT = 0    /* of the open table */
};

enum hm_loop_name { HM_INPUT, HM_FORWARD, HM_BACKWARD, HM_OPTIMIZER, HM_TRAIN, HM_EVAL, HM_LOOP_NAMES };

struct hm_source {
    uint64_t id;
    uint64_t used; /* when it was fetched from last */
    uint64_t work[HM_AHEAD];
    uint8_t first, waiting; /* of work: batches that were fetched and not yet used */
    uint8_t fetched, before; /* batches since some were used, and between the two uses before */
    bool trains;            /* a backward followed */
};

struct hm_seen {
    struct hm_ring *ring;           /* NULL, or without a base: nothing is written */
    uint16_t names[HM_LOOP_NAMES];  /* the ring's indices */
    bool is_explicit;               /* the loop marks its own steps: none is recognised */
    bool attended;                  /* the step in progress is to be written by closes() */
    bool fed, evaluating, backward; /* as in the twin */
    bool prompted, trainers, unfed, strayed;
    int64_t boundary, ready, last, ended; /* -1: none */
    uint64_t numbers[2];                  /* the next train and eval step */
    uint64_t work;                        /* samples or tokens that this step used */
    uint64_t source, leader, fetches;
    int unprompted, stepped, known; /* stepped: different optimizers in this step; known: sources */
    struct {
        uint64_t id;
        int steps;
    } optimizers[HM_OPTIMIZERS];
    struct hm_source sources[HM_SOURCES];
    /* Writes a step that is attended. */
    void (*closes)(struct hm_seen *seen, enum hm_loop_name kind, uint64_t number, int64_t start, int64_t end);
};

HM_HIDDEN void hm_seen_init(struct hm_seen *seen);
HM_HIDDEN void hm_input_begins(struct hm_seen *seen, int64_t now, uint64_t source, bool gradients);
HM_HIDDEN void hm_input_ends(struct hm_seen *seen, int64_t start, int64_t now, uint64_t work);
HM_HIDDEN void hm_input_fails(struct hm_seen *seen);
HM_HIDDEN void hm_backward_begins(struct hm_seen *seen, int64_t now);
HM_HIDDEN void hm_backward_ends(struct hm_seen *seen, int64_t start, int64_t now);
HM_HIDDEN void hm_optimizer_begins(struct hm_seen *seen, int64_t now);
HM_HIDDEN void hm_optimizer_ends(struct hm_seen *seen, int64_t start, int64_t now, uint64_t optimizer);
HM_HIDDEN void hm_stepped(struct hm_seen *seen, int64_t now, uint64_t optimizer);
HM_HIDDEN void hm_forgets(struct hm_seen *seen);
HM_HIDDEN void hm_pauses(struct hm_seen *seen, int64_t now);
HM_HIDDEN void hm_ends(struct hm_seen *seen, int64_t now);
HM_HIDDEN void hm_passed(struct hm_seen *seen, int64_t now, uint64_t count);
HM_HIDDEN void hm_finish(struct hm_seen *seen);

#endif
