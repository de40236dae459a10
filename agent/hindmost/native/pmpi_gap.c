/* What a rank did in the gap between two MPI calls: how much CPU it had and how long it was in the run queue.
 *
 * Both take system calls, about 1 us together, so they are made only around gaps of 1 ms and more. The
 * length of a gap is known when it ends, but its first sample is needed when it begins. So the shim learns from earlier
 * steps which calls a long gap follows, by their place since the last long gap and by their operation.
 * Where a long gap was not predicted, it carries no CPU time; none is guessed.
 */
#define _GNU_SOURCE
#include "pmpi.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static int schedstat = -1;

/* Kept open: the main thread's "CPU ns, run-queue ns, slices". */
void hm_usage_init(void) { schedstat = open("/proc/self/schedstat", O_RDONLY | O_CLOEXEC); }

static void read_queued(struct hm_usage *usage) {
    char text[96], *end = text;
    ssize_t size = schedstat < 0 ? -1 : pread(schedstat, text, sizeof text - 1, 0);
    if (size > 0) {
        text[size] = '\0';
        strtoull(text, &end, 10);
        usage->runqueue_known = *end == ' ';
        usage->runqueue_ns = strtoull(end, NULL, 10);
    }
}

static void read_ran(struct hm_usage *usage) {
    struct timespec t;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0) {
        usage->cpu_known = true;
        usage->cpu_ns = (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
    }
}

/* The gap has begun: the queue first. A kernel lets others run at the end of a system call, this one's among them:
 * such a wait is part of the gap, and of the queue as well. */
void hm_sample(struct hm_thread *thread) {
    thread->before = (struct hm_usage){0};
    read_queued(&thread->before);
    read_ran(&thread->before);
    thread->sampled = true;
}

uint64_t hm_long_stretch(struct hm_thread *thread, uint64_t now) {
    uint8_t *sure = &thread->expected[thread->after];
    *sure = *sure >= 2 ? 3 : *sure + 2;
    thread->position = 0;
    if (!thread->sampled)
        return now;
    struct hm_usage after = {0}, *before = &thread->before, *spent = &thread->spent;
    read_ran(&after); /* the queue last: who was due to run while this one computed runs when this call ends */
    read_queued(&after);
    now = hm_time();
    if (thread->sampled_ns == 0)
        *spent = (struct hm_usage){.cpu_known = true, .runqueue_known = true};
    spent->cpu_known &= after.cpu_known && before->cpu_known;
    spent->runqueue_known &= after.runqueue_known && before->runqueue_known;
    spent->cpu_ns += after.cpu_ns - before->cpu_ns;
    spent->runqueue_ns += after.runqueue_ns - before->runqueue_ns;
    thread->sampled_ns += now - thread->stretch_start;
    return now;
}
