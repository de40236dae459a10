/* Operations from their start on the host to the end of their last channel on the GPU.
 *
 * What NCCL keeps as an event's handle is not a pointer but a place in the pool and that place's generation, so a report
 * that comes after its operation was given up falls on nothing.
 *
 * NCCL finds a kernel's times by the number of the work on its channel. Together with grouped sends and receives (an
 * all-to-all, a pipeline) it gives collectives the times of other work, from ms before their launch. Such times are
 * not written: of these operations it is known when they were enqueued.
 */
#include "nccl_profiler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    OPERATIONS = 2048, /* in flight; the oldest is given up for a new one */
    TRIES = 8,         /* places that others are just filling, before an operation goes unrecorded */
    GPU_CLOCK_NS = 1000000000,
    FRESH_S = 4,       /* clocks that were compared longer ago may have drifted */
    EARLY_NS = 200000, /* clocks compared are right to 60 us on H200s: what began earlier before it was enqueued did not */
    DOUBTED = 32       /* calls of a function that follow one with another's times are not believed either */
};

enum { CHANNELS = 256, FREE = 0, FILLING, IN_FLIGHT, STATE = 3 };

struct operation {
    uint32_t generation; /* of this place; its low two bits: FREE, FILLING, IN_FLIGHT */
    uint32_t remaining;  /* the host's stop and the channels' stops still to come */
    uint32_t stopped;    /* channels that have */
    struct context *context;
    uint64_t what, where, bytes;
    uint64_t host_start, host_end;
    uint64_t gpu_start, gpu_end;
    void *next; /* the other profiler's handle of it */
};

/* The other profiler's handle of an operation's channel, which ends by an event of its own. */
struct channel {
    void *next;
    uint32_t generation; /* of the operation */
};

/* NCCL's word for a function, and the ring's. */
static const struct {
    const char *nccl, *ring;
} names[] = {
    {"", "nccl_other"},         {"AllReduce", "all_reduce"}, {"Broadcast", "broadcast"},
    {"Reduce", "reduce"},       {"AllGather", "all_gather"}, {"ReduceScatter", "reduce_scatter"},
    {"AlltoAll", "all_to_all"}, {"Gather", "gather"},        {"Scatter", "scatter"},
    {"Send", "send"},           {"Recv", "recv"},            {"\1", "gpu_clock"},
};

static const char *const algorithms[] = {"TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
static const char *const protocols[] = {"LL", "LL128", "SIMPLE"};

static struct operation operations[OPERATIONS];
static struct channel channels[CHANNELS][OPERATIONS]; /* of memory it takes what is used: nothing without another profiler */
static uint32_t next_operation;
static uint64_t clock_said; /* host ns of the last gpu_clock mark */
static struct {
    uint64_t host; /* 0: never */
    int64_t ahead; /* ns of the host's clock before the GPU's: so much, or less */
} compared[2];     /* the closest pairs: before the last gpu_clock mark, and since */

void hm_nccl_register_names(void) {
    char text[HM_NAME_BYTES];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        hm_ring_name(&hm_nccl_ring, names[i].ring);
    for (size_t i = 0; i < sizeof algorithms / sizeof *algorithms; i++)
        for (size_t j = 0; j < sizeof protocols / sizeof *protocols; j++) {
            snprintf(text, sizeof text, "algorithm %s %s", algorithms[i], protocols[j]);
            hm_ring_name(&hm_nccl_ring, text);
        }
}

/* ---- the open table: each communicator's oldest collective in flight ---- */

static void show(struct context *context, uint32_t seq) {
    struct recent *recent = &context->recent[seq % HM_NCCL_RECENT];
    hm_enter(&hm_nccl_ring, context->slot, recent->what, recent->start, hm_where(seq, HM_NONE16, context->comm));
}

static uint32_t started(struct context *context, uint64_t what, uint64_t now) {
    uint32_t seq = context->started;
    context->recent[seq % HM_NCCL_RECENT] = (struct recent){what, now};
    __atomic_store_n(&context->started, seq + 1, __ATOMIC_SEQ_CST);
    if (context->slot >= 0 && __atomic_load_n(&context->finished, __ATOMIC_SEQ_CST) == seq)
        show(context, seq);
    return seq;
}

/* The slot is freed before it is counted: a thread that then sees another operation in flight shows that one. */
static void finished(struct context *context) {
    if (context->slot >= 0)
        hm_leave(&hm_nccl_ring, context->slot);
    uint32_t done = __atomic_add_fetch(&context->finished, 1, __ATOMIC_SEQ_CST);
    if (context->slot >= 0 && __atomic_load_n(&context->started, __ATOMIC_SEQ_CST) != done)
        show(context, done);
}

/* ---- operations ---- */

/* A handle of hindmost's: bit 63, which no address has and so no handle of another profiler; 31 bits of the generation; 1 for
 * a channel's; 8 bits for which; the operation's place. */
#define OWN ((uintptr_t)1 << 63)
#define CHANNEL_TAG ((uintptr_t)1 << 31)
enum { GENERATION_SHIFT = 32, CHANNEL_SHIFT = 16, PLACE_MASK = 0xFFFF, GENERATION_MASK = 0x7FFFFFFF };

static void *handle_of(const struct operation *operation) {
    uintptr_t generation = operation->generation & GENERATION_MASK;
    return (void *)(OWN | generation << GENERATION_SHIFT | (uintptr_t)(operation - operations));
}

static bool is_own(const void *handle) { return (uintptr_t)handle & OWN; }

static bool is_channel(const void *handle) { return (uintptr_t)handle & CHANNEL_TAG; }

enum { TAKEN_AGAIN = 3 };

/* Steps that a place has gone since the handle's operation was in flight there: 0 while it is, 2 once it is done, TAKEN_AGAIN
 * when another takes the place. */
static uint32_t steps_since(const void *handle, const struct operation *operation) {
    uint32_t then = (uint32_t)((uintptr_t)handle >> GENERATION_SHIFT);
    return (__atomic_load_n(&operation->generation, __ATOMIC_ACQUIRE) - then) & GENERATION_MASK;
}

static struct operation *place_of(const void *handle) { return &operations[((uintptr_t)handle & PLACE_MASK) % OPERATIONS]; }

/* The operation that a handle stands for; NULL when it has been given up meanwhile. */
static struct operation *operation_of(const void *handle) {
    struct operation *operation = place_of(handle);
    return is_own(handle) && steps_since(handle, operation) == 0 ? operation : NULL;
}

/* The other profiler's handle of what NCCL keeps as one: of an event that hindmost does not record, the same. NULL where it
 * has none, or where the operation's place has been another's since. */
void *hm_nccl_next_of(void *handle) {
    if (!is_own(handle))
        return handle;
    struct operation *operation = place_of(handle);
    uint32_t which = (uintptr_t)handle >> CHANNEL_SHIFT & (CHANNELS - 1);
    void *next = operation->next;
    if (is_channel(handle)) {
        const struct channel *channel = &channels[which][operation - operations];
        uint32_t then = (uint32_t)((uintptr_t)handle >> GENERATION_SHIFT) & GENERATION_MASK;
        bool same = __atomic_load_n(&channel->generation, __ATOMIC_ACQUIRE) == then;
        next = same ? __atomic_load_n(&channel->next, __ATOMIC_RELAXED) : NULL;
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return steps_since(handle, operation) < TAKEN_AGAIN ? next : NULL;
}

/* What a kernel takes before its first channel starts and after its last one has stopped, which no channel reports:
 * 2.7 to 3.3 us for all-reduces of 4 KiB to 64 MiB on H200, alike on all ranks (bench/gpu/nccl_offset.py). It is added
 * in front: whether a call came before or after another does not change by it, nor do the ends on which ranks agree. */
#define KERNEL_EDGES_NS 3000

/* Whether no clock that was compared lately shows that this GPU time lies before that host time. What was seen to stop
 * had stopped: the least that the host's clock was ever ahead of the GPU's is the most that it can be. */
static bool can_be_after(uint64_t gpu, uint64_t host, uint64_t now) {
    for (int i = 0; i < 2; i++) {
        uint64_t when = __atomic_load_n(&compared[i].host, __ATOMIC_ACQUIRE);
        int64_t ahead = __atomic_load_n(&compared[i].ahead, __ATOMIC_RELAXED);
        bool fresh = when && (int64_t)(now - when) < (int64_t)FRESH_S * GPU_CLOCK_NS;
        if (fresh && (int64_t)gpu + ahead < (int64_t)host - EARLY_NS)
            return false;
    }
    return true;
}

/* Whether the times that channels reported can be the operation's: it began after it was enqueued, and has ended. */
static bool can_be_its_own(const struct operation *operation, uint64_t now) {
    uint64_t since = now - operation->host_start;
    return operation->gpu_end >= operation->gpu_start &&
           operation->gpu_end - operation->gpu_start <= since + since / 1024 + EARLY_NS &&
           can_be_after(operation->gpu_start, operation->host_start, now);
}

/* Whether times of such an operation are believed, given that these can be its own or not. NCCL's numbers stay apart
 * for a while: the next ones, of work not quite so long ago, only look right. */
static bool believed(struct context *context, uint64_t what, bool own) {
    uint8_t *doubted = &context->doubted[(what >> 48) % HM_NCCL_FUNCTIONS];
    uint8_t left = own ? __atomic_load_n(doubted, __ATOMIC_RELAXED) : DOUBTED + 1;
    if (left)
        __atomic_store_n(doubted, left - 1, __ATOMIC_RELAXED);
    return !left;
}

/* Record an operation and free its slot, from the first of two threads. Without any channel's report only
 * the enqueueing is known, which says nothing of how long the operation took. */
static void write_down(struct operation *operation, uint32_t generation) {
    bool seen = operation->stopped > 0, own = seen && can_be_its_own(operation, hm_now());
    bool gpu = seen && believed(operation->context, operation->what, own);
    uint64_t host_start = operation->host_start, host_end = operation->host_end;
    uint64_t flags = hm_what(0, gpu ? HM_GPU_TIME : HM_NONBLOCKING, 0);
    uint64_t start = gpu ? operation->gpu_start - KERNEL_EDGES_NS : host_start;
    uint64_t end = gpu ? operation->gpu_end : host_end;
    uint64_t what = operation->what | flags, where = operation->where, bytes = operation->bytes;
    struct context *context = operation->context;
    if (!__atomic_compare_exchange_n(&operation->generation, &generation, generation + 2, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return;
    if (gpu)
        hm_event(&hm_nccl_ring, hm_what(HM_LAUNCH, 0, (uint16_t)(what >> 48)), host_start,
                 host_end > host_start ? host_end - host_start : 0, where, 0);
    hm_event(&hm_nccl_ring, what, start, end > start ? end - start : 0, where, bytes);
    if ((what >> 32 & 0xFF) == HM_COLLECTIVE)
        finished(context);
}

/* A place that is this thread's to fill. The operation that has been in flight there is written down with what is known
 * of it. NULL, and counted: none could be had. */
static struct operation *take_operation(uint32_t channels, void *next) {
    for (int i = 0; i < TRIES; i++) {
        struct operation *operation = &operations[__atomic_fetch_add(&next_operation, 1, __ATOMIC_RELAXED) % OPERATIONS];
        uint32_t generation = __atomic_load_n(&operation->generation, __ATOMIC_ACQUIRE);
        if ((generation & STATE) == IN_FLIGHT) {
            write_down(operation, generation);
            generation = __atomic_load_n(&operation->generation, __ATOMIC_ACQUIRE);
        }
        if ((generation & STATE) != FREE ||
            !__atomic_compare_exchange_n(&operation->generation, &generation, generation + FILLING, false,
                                         __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            continue;
        operation->remaining = channels + 1;
        operation->stopped = 0;
        operation->gpu_start = UINT64_MAX;
        operation->gpu_end = operation->host_end = 0;
        operation->next = next;
        return operation;
    }
    hm_refuse(&hm_nccl_ring);
    return NULL;
}

static void publish(struct operation *operation, void **handle) {
    __atomic_add_fetch(&operation->generation, 1, __ATOMIC_RELEASE);
    *handle = handle_of(operation);
}

static void one_less(struct operation *operation) {
    uint32_t generation = operation->generation;
    if (__atomic_sub_fetch(&operation->remaining, 1, __ATOMIC_ACQ_REL) == 0)
        write_down(operation, generation);
}

static uint16_t name_of(const char *function) {
    for (uint16_t i = NAME_ALL_REDUCE; i < NAME_GPU_CLOCK; i++)
        if (strcasecmp(function, names[i].nccl) == 0)
            return i;
    return NAME_OTHER;
}

/* Bytes of an element: "ncclFloat32" is 32 bits, "ncclBfloat16" 16, "ncclFloat8e4m3" 8. */
static uint64_t element_bytes(const char *datatype) {
    while (*datatype && (*datatype < '0' || *datatype > '9'))
        datatype++;
    return strtoul(datatype, NULL, 10) / 8;
}

static int position(const char *const *list, int count, const char *text) {
    for (int i = 0; text && i < count; i++)
        if (strcmp(list[i], text) == 0)
            return i;
    return -1;
}

/* Say with which algorithm, protocol and channels an operation runs, when that has changed. */
static void say_algorithm(struct context *context, uint16_t name, const struct nccl_collective *call, uint64_t where,
                          uint64_t now) {
    uint64_t key = (uintptr_t)call->algorithm * 31 + (uintptr_t)call->protocol * 7 + call->channels;
    if (context->algorithm[name] == key)
        return;
    context->algorithm[name] = key;
    int algorithm = position(algorithms, sizeof algorithms / sizeof *algorithms, call->algorithm);
    int protocol = position(protocols, sizeof protocols / sizeof *protocols, call->protocol);
    if (algorithm >= 0 && protocol >= 0)
        hm_event(&hm_nccl_ring, hm_what(HM_MARK, 0, (uint16_t)(NAME_ALGORITHMS + algorithm * 3 + protocol)), now, 0, where,
                 call->channels);
}

/* It counts in its communicator's sequence whether or not there is a place for it: the sequence is alike on all ranks. */
void hm_nccl_start_collective(struct context *context, void **handle, const struct nccl_collective *call, void *next) {
    uint16_t name = name_of(call->function), root = HM_NONE16;
    uint64_t now = hm_now(), what = hm_what(HM_COLLECTIVE, 0, name);
    uint32_t seq = started(context, what, now);
    struct operation *operation = take_operation(call->channels, next);
    if (!operation) {
        finished(context);
        return;
    }
    if (name == NAME_BROADCAST || name == NAME_REDUCE || name == NAME_GATHER || name == NAME_SCATTER)
        root = (uint16_t)call->root;
    operation->context = context;
    operation->what = what;
    operation->where = hm_where(seq, root, context->comm);
    operation->bytes = call->count * element_bytes(call->datatype);
    operation->host_start = now;
    say_algorithm(context, name, call, operation->where, now);
    publish(operation, handle);
}

void hm_nccl_start_p2p(struct context *context, void **handle, const struct nccl_p2p *call, void *next) {
    struct operation *operation = take_operation(call->channels, next);
    if (!operation)
        return;
    operation->context = context;
    operation->what = hm_what(HM_P2P, 0, name_of(call->function));
    operation->where = hm_where(0, (uint16_t)call->peer, context->comm);
    operation->bytes = call->count * element_bytes(call->datatype);
    operation->host_start = hm_now();
    publish(operation, handle);
}

/* ---- channels: NCCL's proxy thread ---- */

/* A channel's handle is its operation's: only the earliest start and the latest stop of all channels count. */
void hm_nccl_start_channel(void **handle, void *parent, const struct nccl_kernel_channel *channel, void *next) {
    struct operation *operation = operation_of(parent);
    if (!operation)
        return;
    uint64_t earliest = __atomic_load_n(&operation->gpu_start, __ATOMIC_RELAXED);
    while (channel->timer < earliest && !__atomic_compare_exchange_n(&operation->gpu_start, &earliest, channel->timer, true,
                                                                     __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    *handle = (void *)((uintptr_t)parent | CHANNEL_TAG | (uintptr_t)channel->channel << CHANNEL_SHIFT);
    if (next) {
        struct channel *kept = &channels[channel->channel][operation - operations];
        __atomic_store_n(&kept->next, next, __ATOMIC_RELAXED);
        __atomic_store_n(&kept->generation, (uint32_t)((uintptr_t)parent >> GENERATION_SHIFT) & GENERATION_MASK,
                         __ATOMIC_RELEASE);
    }
}

/* A reader of one half of each pair gets a difference that was right a moment ago. */
static void keep_pair(int which, uint64_t host, int64_t ahead) {
    __atomic_store_n(&compared[which].ahead, ahead, __ATOMIC_RELAXED);
    __atomic_store_n(&compared[which].host, host, __ATOMIC_RELEASE);
}

/* Once a second, the pair of host and GPU time that lay closest: the GPU's stop was seen soonest after it happened. */
static void compare_clocks(uint64_t gpu) {
    static bool busy;
    uint64_t host = hm_now();
    if (__atomic_test_and_set(&busy, __ATOMIC_ACQUIRE))
        return;
    if (!compared[1].host || (int64_t)(host - gpu) < compared[1].ahead)
        keep_pair(1, host, (int64_t)(host - gpu));
    if (host - clock_said >= GPU_CLOCK_NS) {
        uint64_t closest = compared[1].host;
        int64_t ahead = compared[1].ahead;
        hm_event(&hm_nccl_ring, hm_what(HM_MARK, 0, NAME_GPU_CLOCK), closest, 0, hm_where(0, HM_NONE16, HM_NONE16),
                 closest - (uint64_t)ahead);
        clock_said = host;
        keep_pair(0, closest, ahead);
        __atomic_store_n(&compared[1].host, 0, __ATOMIC_RELAXED);
    }
    __atomic_clear(&busy, __ATOMIC_RELEASE);
}

void hm_nccl_stop_channel(void *handle, uint64_t timer) {
    struct operation *operation = is_channel(handle) ? operation_of(handle) : NULL;
    if (!operation)
        return;
    uint64_t latest = __atomic_load_n(&operation->gpu_end, __ATOMIC_RELAXED);
    while (timer > latest && !__atomic_compare_exchange_n(&operation->gpu_end, &latest, timer, true, __ATOMIC_RELAXED,
                                                          __ATOMIC_RELAXED))
        ;
    if (__atomic_add_fetch(&operation->stopped, 1, __ATOMIC_ACQ_REL) == 1)
        compare_clocks(timer);
    one_less(operation);
}

/* The host is done with an operation: it has been enqueued. A channel's end has been recorded before. */
void hm_nccl_stop(void *handle) {
    struct operation *operation = is_channel(handle) ? NULL : operation_of(handle);
    if (operation) {
        operation->host_end = hm_now();
        one_less(operation);
    }
}
