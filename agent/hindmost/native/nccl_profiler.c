/* The NCCL profiler plugin: every collective, send and receive of this process, with its GPU time, into one ring.
 *
 * NCCL calls it on its hot threads: an operation starts and stops on the thread that enqueues it, and each channel of
 * its kernel is reported afterwards by NCCL's proxy thread. In those callbacks nothing is allocated, locked, waited for
 * or written out; all memory is static. An operation's GPU interval is from the first channel's start to the last
 * channel's stop. It includes waiting for the last rank to arrive.
 */
#define _GNU_SOURCE
#include "identity_env.h"
#include "nccl_profiler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVENTS = NCCL_COLLECTIVE | NCCL_P2P | NCCL_KERNEL_CHANNEL };
enum { CONTEXTS = 128 }; /* communicators with an id of their own; operations of further ones carry none */

struct hm_ring hm_nccl_ring;

static bool enabled;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct context contexts[CONTEXTS];
static struct context no_context = {.comm = HM_NONE16, .slot = -1};
static int *masks; /* NCCL has one for all communicators, and looks at it for each operation */
static int first_rank, first_ranks; /* of the first communicator, where no launcher names this process */

static void in_child(void) { enabled = false; }

__attribute__((destructor)) static void at_exit(void) {
    if (enabled)
        hm_ring_close(&hm_nccl_ring);
}

static void make_ring(void) {
    char command[HM_COMMAND_BYTES];
    struct hm_identity who = {.framework = "nccl", .command = command};
    if (!hm_wanted())
        return;
    who.job_id = getenv("HINDMOST_JOB_ID");
    if (!hm_place_from_environment(&who)) {
        who.rank = first_rank;
        who.world_size = first_ranks;
    }
    hm_read_command(command);
    const char *directory = getenv("HINDMOST_RING_DIR");
    int error = hm_ring_create(&hm_nccl_ring, directory, &who, HM_NCCL, hm_ring_capacity(HM_DEFAULT_CAPACITY));
    if (error) {
        fprintf(stderr, "hindmost: this rank's NCCL calls are not recorded: %s: %s\n", directory, strerror(error));
        return;
    }
    hm_nccl_register_names();
    enabled = pthread_atfork(NULL, NULL, in_child) == 0;
}

static struct context *take_context(void) {
    for (int i = 0; i < CONTEXTS; i++) {
        uint32_t free = 0;
        if (__atomic_compare_exchange_n(&contexts[i].taken, &free, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            contexts[i].slot = i < HM_OPEN_SLOTS ? i : -1;
            contexts[i].started = contexts[i].finished = 0;
            memset(contexts[i].algorithm, 0, sizeof contexts[i].algorithm);
            memset(contexts[i].doubted, 0, sizeof contexts[i].doubted);
            return &contexts[i];
        }
    }
    return &no_context;
}

static void open_communicator(void **context, int *mask, const char *name, uint64_t id, int ranks, int rank) {
    first_rank = rank;
    first_ranks = ranks;
    pthread_once(&once, make_ring);
    *mask = 0;
    *context = &no_context;
    if (!enabled)
        return;
    struct context *taken = take_context();
    if (taken != &no_context)
        taken->comm = hm_ring_comm(&hm_nccl_ring, id ? id : 1, rank, ranks, name && *name ? name : "nccl");
    *context = taken;
    masks = mask;
    *mask = EVENTS;
}

static int close_communicator(void *context) {
    struct context *closed = context;
    if (enabled && closed && closed != &no_context) {
        if (closed->slot >= 0)
            hm_leave(&hm_nccl_ring, closed->slot);
        __atomic_store_n(&closed->taken, 0, __ATOMIC_RELEASE);
    }
    return NCCL_OK;
}

/* ---- what NCCL calls ---- */

static void start_event(void *context, void **handle, uint64_t type, void *parent, const union nccl_what *what) {
    *handle = NULL;
    if (!enabled || !context)
        return;
    if (type == NCCL_COLLECTIVE)
        hm_nccl_start_collective(context, handle, &what->collective);
    else if (type == NCCL_P2P)
        hm_nccl_start_p2p(context, handle, &what->p2p);
    else if (type == NCCL_KERNEL_CHANNEL)
        hm_nccl_start_channel(handle, parent, what->kernel.timer);
}

static int start_v4(void *context, void **handle, struct nccl_descriptor_v4 *descriptor) {
    start_event(context, handle, descriptor->type, descriptor->parent, &descriptor->what);
    return NCCL_OK;
}

static int start_v5(void *context, void **handle, struct nccl_descriptor_v5 *descriptor) {
    start_event(context, handle, descriptor->type, descriptor->parent, &descriptor->what);
    return NCCL_OK;
}

static int stop_event(void *handle) {
    if (enabled)
        hm_nccl_stop(handle);
    return NCCL_OK;
}

static int record_state(void *handle, int state, union nccl_state *arguments) {
    if (enabled && state == NCCL_KERNEL_CHANNEL_STOP && arguments)
        hm_nccl_stop_channel(handle, arguments->kernel.timer);
    return NCCL_OK;
}

static int init_v4(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks, int rank,
                   nccl_log log) {
    (void)nodes, (void)log;
    open_communicator(context, mask, name, id, ranks, rank);
    return NCCL_OK;
}

static int init_v5(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank,
                   nccl_log log) {
    (void)nodes, (void)log;
    open_communicator(context, mask, name, id, ranks, rank);
    return NCCL_OK;
}

#define EXPORT __attribute__((visibility("default")))

/* Stop or go on asking NCCL for events, on all communicators; for measuring what observing costs. */
EXPORT void hindmost_nccl_pause(int paused) {
    if (enabled && masks)
        __atomic_store_n(masks, paused ? 0 : EVENTS, __ATOMIC_RELAXED);
}

EXPORT const struct nccl_profiler_v4 ncclProfiler_v4 = {
    "hindmost", init_v4, start_v4, stop_event, record_state, close_communicator,
};

EXPORT const struct nccl_profiler_v5 ncclProfiler_v5 = {
    "hindmost", init_v5, start_v5, stop_event, record_state, close_communicator,
};
