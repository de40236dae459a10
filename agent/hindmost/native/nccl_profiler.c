/* The NCCL profiler plugin: every collective, send and receive of this process, with its GPU time, into one ring.
 *
 * NCCL calls it on its hot threads: an operation starts and stops on the thread that enqueues it, and each channel of
 * its kernel is reported afterwards by NCCL's proxy thread. In those callbacks nothing is allocated, locked, waited for
 * or written out; all memory is static. An operation's GPU interval is from the first channel's start to the last
 * channel's stop. It includes waiting for the last rank to arrive.
 *
 * Another profiler, which would have NCCL's one slot without hindmost, stands behind this one: nccl_next.c. With a version
 * of the interface before 4, which has no GPU times, calls are passed on to it and nothing is recorded.
 */
#define _GNU_SOURCE
#include "identity_env.h"
#include "nccl_profiler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EVENTS = NCCL_COLLECTIVE | NCCL_P2P | NCCL_KERNEL_CHANNEL, FIRST_WITH_TIMES = 4 };
enum { CONTEXTS = HM_COMMS }; /* communicators with an id of their own; operations of further ones carry none */

struct hm_ring hm_nccl_ring;

static bool enabled;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct context contexts[CONTEXTS];
static struct context no_context = {.comm = HM_NONE16, .slot = -1};
static int *masks; /* NCCL has one for all communicators, and looks at it for each operation */
static int joined; /* what it was last set to */
static bool paused;
static int nccl_version;            /* of the interface that NCCL speaks */
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

/* Ask NCCL for what hindmost and the other profiler want. The other may change its mind at any time. */
static void ask(bool first) {
    int wanted = (enabled && !paused ? EVENTS : 0) | hm_next_mask();
    if (first || __atomic_load_n(&joined, __ATOMIC_RELAXED) != wanted) {
        __atomic_store_n(&joined, wanted, __ATOMIC_RELAXED);
        __atomic_store_n(masks, wanted, __ATOMIC_RELAXED);
    }
}

static void begin(void) {
    hm_next_load(nccl_version);
    if (nccl_version >= FIRST_WITH_TIMES)
        make_ring();
    else if (hm_wanted())
        fprintf(stderr,
                "hindmost: this rank's NCCL calls are not recorded: this NCCL speaks version %d of the profiler interface; "
                "use NCCL 2.27 or later\n",
                nccl_version);
}

static int open_communicator(int version, void **context, int *mask, const struct nccl_opened *opened) {
    nccl_version = version;
    first_rank = opened->rank;
    first_ranks = opened->ranks;
    pthread_once(&once, begin);
    struct context *taken = take_context();
    if (enabled && taken != &no_context)
        taken->comm = hm_ring_comm(&hm_nccl_ring, opened->id ? opened->id : 1, opened->rank, opened->ranks,
                                   opened->name && *opened->name ? opened->name : "nccl");
    if (taken != &no_context)
        hm_next_init(version, &taken->next, opened);
    *context = taken;
    masks = mask;
    ask(true);
    return NCCL_OK;
}

static int close_communicator(void *context) {
    struct context *closed = context;
    if (!closed || closed == &no_context)
        return NCCL_OK;
    hm_next_finalize(&closed->next);
    if (enabled && closed->slot >= 0)
        hm_leave(&hm_nccl_ring, closed->slot);
    __atomic_store_n(&closed->taken, 0, __ATOMIC_RELEASE);
    return NCCL_OK;
}

/* ---- what NCCL calls ---- */

/* The other's event comes first: its handle is kept in the place that hindmost's operation takes. Where hindmost records
 * nothing, NCCL keeps the other's handle itself. */
static int start_event(int version, struct context *context, void **handle, struct nccl_descriptor *descriptor) {
    uint64_t type = version >= 5 ? descriptor->type : descriptor->old_type;
    void *parent = descriptor->parent, *next;
    *handle = NULL;
    if (!context)
        return NCCL_OK;
    if (hm_next_mask()) {
        bool here = type == NCCL_KERNEL_CHANNEL || (type == NCCL_PROXY_OP && descriptor->what.proxy_op.pid == getpid());
        if (here)
            descriptor->parent = hm_nccl_next_of(parent);
        next = hm_next_start(&context->next, descriptor);
        descriptor->parent = parent;
        if ((intptr_t)next >= 0) /* no address: it would be taken for hindmost's */
            *handle = next;
    }
    ask(false);
    next = *handle;
    if (!enabled || version < FIRST_WITH_TIMES)
        return NCCL_OK;
    if (type == NCCL_COLLECTIVE)
        hm_nccl_start_collective(context, handle, &descriptor->what.collective, next);
    else if (type == NCCL_P2P)
        hm_nccl_start_p2p(context, handle, &descriptor->what.p2p, next);
    else if (type == NCCL_KERNEL_CHANNEL)
        hm_nccl_start_channel(handle, parent, &descriptor->what.kernel, next);
    return NCCL_OK;
}

static int stop_event(void *handle) {
    void *next = hm_nccl_next_of(handle);
    if (enabled)
        hm_nccl_stop(handle);
    if (next)
        hm_next_stop(next);
    return NCCL_OK;
}

static int record_state(void *handle, int state, void *arguments) {
    void *next = hm_nccl_next_of(handle);
    const union nccl_state *times = arguments;
    if (enabled && state == NCCL_KERNEL_CHANNEL_STOP && times)
        hm_nccl_stop_channel(handle, times->kernel.timer);
    if (next)
        hm_next_record(next, state, arguments);
    return NCCL_OK;
}

static int init_old(int version, void **context, int *mask) {
    return open_communicator(version, context, mask, &(struct nccl_opened){.rank = -1});
}

static int init_v4(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks, int rank,
                   nccl_log log) {
    return open_communicator(4, context, mask, &(struct nccl_opened){id, name, nodes, ranks, rank, log});
}

static int init_new(int version, void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank,
                    nccl_log log) {
    return open_communicator(version, context, mask, &(struct nccl_opened){id, name, nodes, ranks, rank, log});
}

#define EXPORT __attribute__((visibility("default")))

/* Stop or go on asking NCCL for events, on all communicators; for measuring what observing costs. */
EXPORT void hindmost_nccl_pause(int pause) {
    paused = pause;
    if (enabled && masks)
        ask(true);
}

#define TABLE(VERSION, ...)                                                                                              \
    static int start_v##VERSION(void *context, void **handle, void *descriptor) {                                        \
        return start_event(VERSION, context, handle, descriptor);                                                        \
    }                                                                                                                    \
    EXPORT const struct nccl_profiler ncclProfiler_v##VERSION = {                                                        \
        "hindmost", {__VA_ARGS__}, start_v##VERSION, stop_event, record_state, close_communicator}

#define INIT_OLD(VERSION)                                                                                                \
    static int init_v##VERSION(void **context, int *mask) { return init_old(VERSION, context, mask); }

#define INIT_NEW(VERSION)                                                                                                \
    static int init_v##VERSION(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank, \
                               nccl_log log) {                                                                           \
        return init_new(VERSION, context, id, mask, name, nodes, ranks, rank, log);                                      \
    }

INIT_OLD(1)
INIT_OLD(2)
INIT_OLD(3)
INIT_NEW(5)
INIT_NEW(6)

TABLE(1, .v1 = init_v1);
TABLE(2, .v1 = init_v2);
TABLE(3, .v1 = init_v3);
TABLE(4, .v4 = init_v4);
TABLE(5, .v5 = init_v5);
TABLE(6, .v5 = init_v6);
