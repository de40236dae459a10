/* A thread's clock for MPI calls: CLOCK_MONOTONIC, by the processor's counter where the kernel keeps time by it too.
 *
 * clock_gettime takes two to three times as long as reading the counter, and each call needs two times. So a thread reads
 * both once in HM_CLOCK_NS, and between adds what the counter has moved. The rate is that of the last tenths of a second:
 * a clock that NTP slews by 500 ppm, the most it does, is 0.5 us off at the end of such a millisecond. A thread's time
 * never goes back.
 */
#ifndef HINDMOST_PMPI_CLOCK_H
#define HINDMOST_PMPI_CLOCK_H

#include "ring_write.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#define HM_COUNTER() __rdtsc()
#else
#define HM_COUNTER() 0
#endif

enum {
    HM_CLOCK_NS = 1000000,       /* between two readings of the kernel's clock */
    HM_RATE_NS = 20000000,       /* a rate is taken over at least this, */
    HM_RATE_OLD_NS = 200000000,  /* begun anew after this, */
    HM_RATE_LOST_NS = 1000000000 /* and no longer trusted after a pause of this */
};

struct hm_clock {
    uint64_t counter, ns;           /* both, when they were last read together */
    uint64_t most;                  /* so far the counter may have moved since; 0: the kernel's clock is read each time */
    uint64_t rate;                  /* ns a count, 32 bits of them after the point */
    uint64_t from_counter, from_ns; /* where the next rate is taken from */
    uint64_t last;                  /* what was returned */
};

/* Look once, before threads call, whether the counter may be used: only where the kernel found it fit for itself. */
HM_HIDDEN void hm_clock_init(void);
/* Read the kernel's clock, and prepare for the time until the next such reading. */
HM_HIDDEN uint64_t hm_clock_read(struct hm_clock *clock);

static inline uint64_t hm_clock_now(struct hm_clock *clock) {
    uint64_t moved = HM_COUNTER() - clock->counter;
    if (__builtin_expect(moved >= clock->most, 0))
        return hm_clock_read(clock);
    uint64_t now = clock->ns + (moved * clock->rate >> 32);
    return clock->last = now > clock->last ? now : clock->last;
}

#endif
