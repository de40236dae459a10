/* What is known of Horovod's own thread, and of the tensors that TensorFlow hands to it. */
#ifndef HINDMOST_HOROVOD_CYCLES_H
#define HINDMOST_HOROVOD_CYCLES_H

#include "pmpi.h"

enum { HM_CYCLES = 64 };

/* What probes read, by one address; agent/hindmost/probes/horovod_cycles.py has the same layout. Nanoseconds of
 * CLOCK_MONOTONIC; 0: not yet. */
struct hm_cycles {
    uint64_t cycles;           /* of Horovod's thread that have begun */
    uint64_t yielded_ns;       /* when the training thread last found what it waits for not done */
    uint64_t handed_ns;        /* when TensorFlow last handed a tensor over */
    uint64_t reduced_ns;       /* when it last got one back */
    uint64_t handed;           /* how often the former happened */
    uint64_t fetched;          /* batches that a training function took from tf.data */
    uint64_t fetching_us;      /* how long these took, added up */
    uint64_t samples;          /* in these: the first dimension of each batch's first tensor, added up */
    uint64_t began[HM_CYCLES]; /* when cycle number i began, at i % HM_CYCLES */
};

extern HM_HIDDEN struct hm_cycles hm_cycles;

/* Whether an address lies in the Horovod library that is watched. */
HM_HIDDEN bool hm_of_horovod(const void *address);

#endif
