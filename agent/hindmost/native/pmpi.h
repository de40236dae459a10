/* The PMPI shim's inside: what a wrapped call does before and after the real one.
 *
 * The rules: a call does what it would do without us, its result is handed on, and while `hm_pmpi.active` is false (no
 * job, before MPI_Init, after MPI_Finalize, in a forked child, with an MPI that we do not know) it costs one branch.
 */
#ifndef HINDMOST_PMPI_H
#define HINDMOST_PMPI_H

#include "mpi_library.h"
#include "pmpi_clock.h"

#define HM_EXPORT __attribute__((visibility("default")))
#define HM_COLD __attribute__((cold, noinline))
#define HM_LIKELY(x) __builtin_expect(!!(x), 1)

enum {
    HM_LONG_NS = 1000000,      /* gaps from here on are worth the 1 us that sampling CPU and run queue takes */
    HM_WINDOW_NS = 100000000,  /* over which point-to-point calls are counted */
    HM_MOST_CALLS = 256,       /* recorded of a window each for itself */
    HM_FEW_CALLS = 32,         /* recorded of a window that follows one with too many */
    HM_COMM_CACHE = 64,
    HM_PREDICTIONS = 256
};

/* A communicator that has been used. Its place outlives it: the next with the same members takes it over. */
struct hm_communicator {
    HM_HANDLE handle; /* 0: free */
    uint64_t members; /* hash of the set of world ranks in it */
    uint32_t ordinal; /* which of that set's communicators it is */
    uint32_t seq;     /* collectives begun on it */
    int rank, size;
    int blocks;     /* an all-to-all's: the ranks of the other side where it is an intercommunicator */
    int neighbors;  /* to which this rank sends, where there is a topology */
    uint16_t index; /* in the ring's table */
};

struct hm_usage {
    bool cpu_known, runqueue_known;
    uint64_t cpu_ns, runqueue_ns;
};

/* Point-to-point calls that share one record. */
struct hm_folded {
    uint64_t start, duration_ns;
    int64_t bytes;
    uint32_t calls; /* 0: none */
};

/* What a thread remembers from one call to the next. Its self time is a chain of gaps between MPI calls. */
struct hm_thread {
    bool files;             /* its file I/O is watched: the thread that called MPI_Init */
    int depth;              /* inside a wrapped call: what the library calls itself is not recorded */
    int slot;               /* in the open table, + 1; 0: none asked for yet, -1: none left */
    uint64_t gap_start;     /* end of its last collective; 0: none yet */
    uint64_t stretch_start; /* end of its last MPI call */
    uint64_t own_ns;        /* since gap_start */
    uint64_t sampled_ns;    /* of these, in gaps whose CPU and run-queue time is known */
    struct hm_usage spent;  /* in those */
    bool sampled;           /* `before` was taken at stretch_start */
    struct hm_usage before;
    uint32_t position; /* calls since the last long gap */
    uint32_t after;    /* what the current gap follows: key into `expected` */
    uint8_t expected[HM_PREDICTIONS]; /* how surely a long gap follows, 0 to 3 */
    struct hm_communicator *matched; /* of the message that MPI_Mprobe found and no MPI_Mrecv has received; NULL: none */
    int matched_source;
    uint64_t polled_since, polled;    /* the first and the last test of its polling; 0: it does not poll */
    bool polls_briefly;               /* two of them were less than HM_LONG_NS apart */
    struct hm_clock clock;
    uint64_t window_start;       /* of counting point-to-point calls */
    uint32_t window_count;
    uint32_t window_most;        /* of short ones that are recorded each for itself */
    struct hm_folded folded[2];  /* calls that were not, blocking and not */
    uint32_t generation; /* of the cache */
    HM_HANDLE cached_handle[HM_COMM_CACHE];
    struct hm_communicator *cached[HM_COMM_CACHE];
};

/* One call from begin to end. */
struct hm_call {
    struct hm_communicator *comm;
    uint64_t start;
    uint32_t seq;
};

struct hm_pmpi {
    bool active;
    int pid;              /* of the process that made the ring */
    uint32_t generation;  /* grows when a communicator is freed */
    uint32_t window_calls; /* point-to-point calls that a thread may record in a window */
    uint64_t short_ns;     /* shorter ones share a record beyond that */
    struct hm_ring ring;
};

extern HM_HIDDEN struct hm_pmpi hm_pmpi;
extern HM_HIDDEN __thread struct hm_thread hm_thread __attribute__((tls_model("initial-exec")));

/* Names in the ring, in the order of HM_OPERATIONS. */
enum hm_operation {
#define HM_NAME(id, text) HM_OP_##id,
#include "pmpi_names.h"
#undef HM_NAME
    HM_OPERATION_COUNT
};

HM_HIDDEN struct hm_communicator *hm_comm_find(HM_HANDLE comm);
HM_HIDDEN bool hm_comm_init(void);
HM_HIDDEN void hm_usage_init(void);
HM_HIDDEN int hm_take_slot(void);
HM_HIDDEN void hm_start_agent(void);
HM_HIDDEN void hm_attach(uint64_t start);
HM_HIDDEN void hm_leave_job(uint64_t start);
HM_HIDDEN void hm_detach(uint64_t start);
/* `flags`, `peer`: of the open operation, HM_SENDS and HM_SEVERAL. */
HM_HIDDEN void hm_begin_p2p(struct hm_call *call, struct hm_communicator *comm, enum hm_operation op, uint32_t seq,
                            uint8_t flags, uint16_t peer);
HM_HIDDEN void hm_begin_fortran_wait(struct hm_call *call, const int *requests, int count);
HM_HIDDEN void hm_write_folded(struct hm_thread *thread);
HM_HIDDEN void hm_end_p2p(struct hm_call *call, enum hm_operation op, uint8_t flags, int result, int peer,
                          int64_t bytes);

/* Bytes that this rank contributes; called after the call has succeeded, so that arguments are known to be good. */
HM_HIDDEN int64_t hm_type_bytes(int64_t count, HM_HANDLE type);

static inline uint64_t hm_time(void) { return hm_clock_now(&hm_thread.clock); }

static inline bool hm_observed(void) { return HM_LIKELY(hm_pmpi.active) && hm_thread.depth == 0; }

static inline struct hm_communicator *hm_comm_of(HM_HANDLE raw) {
    HM_HANDLE comm = hm_handle(raw);
    uint32_t place = (uint32_t)(comm * 0x9E3779B97F4A7C15ull >> 58);
    uint32_t generation = __atomic_load_n(&hm_pmpi.generation, __ATOMIC_ACQUIRE);
    if (HM_LIKELY(hm_thread.cached_handle[place] == comm && hm_thread.generation == generation))
        return hm_thread.cached[place];
    return hm_comm_find(comm);
}

/* A rank as the other side of a message: where it is any, or none. */
static inline uint16_t hm_peer(int rank) {
    if (HM_LIKELY((unsigned)rank < HM_ANY16))
        return (uint16_t)rank;
    return rank == hm_library.any_source ? HM_ANY16 : HM_NONE16;
}

static inline bool hm_has_slot(void) {
    if (!HM_LIKELY(hm_thread.slot != 0))
        hm_thread.slot = hm_take_slot();
    return HM_LIKELY(hm_thread.slot > 0);
}

static inline void hm_open(uint64_t what, uint64_t start, uint64_t where) {
    if (hm_has_slot())
        hm_enter(&hm_pmpi.ring, hm_thread.slot - 1, what, start, where);
}

static inline void hm_shut(void) {
    if (HM_LIKELY(hm_thread.slot > 0))
        hm_leave(&hm_pmpi.ring, hm_thread.slot - 1);
}

/* A test or a probe found nothing, once more: the open operation counts it. False: none is open yet. */
static inline bool hm_polls_on(enum hm_operation op) {
    uint64_t apart = hm_what(0, HM_SENDS | HM_SEVERAL, 0), *word;
    if (hm_thread.slot <= 0)
        return hm_thread.slot < 0;
    word = hm_open_slot(&hm_pmpi.ring, hm_thread.slot - 1);
    if ((word[0] & ~apart) != (hm_what(HM_P2P, HM_POLLS, (uint16_t)op) | 1))
        return false;
    __atomic_store_n(&word[2], word[2] + 1, __ATOMIC_RELAXED);
    return true;
}

/* The first one; what is open stands until something is found or another call comes. */
static inline void hm_polls(enum hm_operation op, uint8_t flags, uint64_t where) {
    if (!hm_has_slot())
        return;
    hm_open_slot(&hm_pmpi.ring, hm_thread.slot - 1)[2] = 0;
    hm_open(hm_what(HM_P2P, HM_POLLS | flags, (uint16_t)op), hm_time(), where);
}

/* Whatever was tested is complete. */
static inline void hm_polled(void) {
    if (hm_thread.slot > 0)
        hm_shut();
}

HM_HIDDEN uint64_t hm_long_stretch(struct hm_thread *thread, uint64_t now);
HM_HIDDEN void hm_sample(struct hm_thread *thread);

/* The gap since the last collective, just before the collective that ends it. */
static inline void hm_write_gap(struct hm_thread *thread, uint64_t index) {
    uint64_t cpu = 0, flags = 0;
    uint32_t runqueue_us = 0;
    if (thread->sampled_ns && thread->sampled_ns * 10 >= thread->own_ns * 9) {
        /* the queue is the main thread's: where it waited longer than this gap is, another thread is calling */
        bool queue = thread->spent.runqueue_known && thread->spent.runqueue_ns <= thread->own_ns;
        cpu = thread->spent.cpu_ns;
        runqueue_us = queue ? (uint32_t)(thread->spent.runqueue_ns / 1000) : 0;
        flags = (thread->spent.cpu_known ? HM_CPU_KNOWN : 0) | (queue ? HM_RUNQUEUE_KNOWN : 0);
    }
    thread->sampled_ns = 0;
    hm_write(&hm_pmpi.ring, index, hm_what(HM_SELF, (uint8_t)flags, HM_NONE16), thread->gap_start, thread->own_ns,
             hm_where(runqueue_us, HM_NONE16, HM_NONE16), cpu);
}

/* An MPI call begins: the gap of self time before it is over. Returns when: after a long one sampling takes a while,
 * most of all where the system call that it makes lets another process run first. */
static inline uint64_t hm_stretch_ends(uint64_t now) {
    struct hm_thread *thread = &hm_thread;
    if (now - thread->stretch_start >= HM_LONG_NS)
        now = hm_long_stretch(thread, now);
    else if (thread->expected[thread->after])
        thread->expected[thread->after]--;
    thread->own_ns += now - thread->stretch_start;
    return now;
}

/* An MPI call ends: a gap begins. `site` identifies the kind of call. */
static inline void hm_stretch_begins(uint64_t now, uint32_t site) {
    struct hm_thread *thread = &hm_thread;
    thread->stretch_start = now;
    thread->position++;
    thread->after = (thread->position * 31u + site) % HM_PREDICTIONS;
    thread->sampled = false;
    if (thread->expected[thread->after])
        hm_sample(thread);
}

static inline void hm_begin_collective(struct hm_call *call, struct hm_communicator *comm, enum hm_operation op,
                                       uint8_t flags) {
    hm_thread.depth = 1;
    call->comm = comm;
    call->seq = call->comm->seq++;
    if (__builtin_expect(hm_thread.folded[0].calls | hm_thread.folded[1].calls, 0))
        hm_write_folded(&hm_thread); /* they are of the time before this collective */
    call->start = hm_stretch_ends(hm_time());
    hm_open(hm_what(HM_COLLECTIVE, flags, (uint16_t)op), call->start, hm_where(call->seq, HM_NONE16, call->comm->index));
}

static inline void hm_end_collective(struct hm_call *call, enum hm_operation op, uint8_t flags, int root, int64_t bytes) {
    struct hm_ring *ring = &hm_pmpi.ring;
    struct hm_thread *thread = &hm_thread;
    uint64_t end = hm_time();
    uint64_t index = hm_claim(ring, thread->gap_start ? 2 : 1);
    if (HM_LIKELY(thread->gap_start))
        hm_write_gap(thread, index++);
    hm_write(ring, index, hm_what(HM_COLLECTIVE, flags, (uint16_t)op), call->start, end - call->start,
             hm_where(call->seq, root < 0 ? HM_NONE16 : (uint16_t)root, call->comm->index), (uint64_t)bytes);
    hm_shut();
    thread->gap_start = end;
    thread->own_ns = 0;
    hm_stretch_begins(end, (uint32_t)op * 7u + call->comm->index);
    thread->depth = 0;
}

#endif
