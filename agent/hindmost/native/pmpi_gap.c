/* What a rank did in the gap between two collectives: how much CPU it had and how long it stood in the run queue.
 *
 * Both take system calls, about 1 us together, so they are asked for only around gaps of 1 ms and more. Such a gap is
 * known when it ends, but the first of the two samples is due when it begins: which of the collectives of a step a
 * long gap follows is learned from the steps before, by its place since the last long gap, its operation and its
 * communicator. A gap that was not foreseen carries no CPU time; it is not guessed.
 */
#define _GNU_SOURCE
#include "pmpi.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static int schedstat = -1;

/* Kept open: the main thread's "CPU ns, run-queue ns, slices". */
void hm_usage_init(void) { schedstat = open("/proc/self/schedstat", O_RDONLY | O_CLOEXEC); }

static struct hm_usage usage_now(void) {
    struct hm_usage usage = {0};
    struct timespec t;
    char text[96], *end = text;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0) {
        usage.cpu_known = true;
        usage.cpu_ns = (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
    }
    ssize_t size = schedstat < 0 ? -1 : pread(schedstat, text, sizeof text - 1, 0);
    if (size > 0) {
        text[size] = '\0';
        strtoull(text, &end, 10);
        usage.runqueue_known = *end == ' ';
        usage.runqueue_ns = strtoull(end, NULL, 10);
    }
    return usage;
}

void hm_sample(struct hm_thread *thread) {
    thread->usage = usage_now();
    thread->sampled = true;
}

/* Waits in point-to-point calls burn CPU too; with more of them than this share, CPU time says nothing of the gap. */
enum { MOST_INSIDE_PERCENT = 10 };

void hm_long_gap(struct hm_call *call) {
    struct hm_thread *thread = &hm_thread;
    uint8_t *sure = &thread->long_gap[thread->after];
    *sure = *sure >= 2 ? 3 : *sure + 2;
    thread->position = 0;
    if (!thread->sampled)
        return;
    struct hm_usage now = usage_now(), *before = &thread->usage;
    if (now.cpu_known && before->cpu_known && thread->inside * 100 <= call->gap * MOST_INSIDE_PERCENT) {
        uint64_t cpu = now.cpu_ns - before->cpu_ns;
        call->gap_cpu = cpu > thread->inside ? cpu - thread->inside : 0;
        call->gap_flags |= HM_CPU_KNOWN;
    }
    if (now.runqueue_known && before->runqueue_known) {
        call->gap_runqueue_us = (uint32_t)((now.runqueue_ns - before->runqueue_ns) / 1000);
        call->gap_flags |= HM_RUNQUEUE_KNOWN;
    }
}
