/* Waits, tests and starts: where the requests of nonblocking and persistent collectives end and begin. */
#include "pmpi_real.h"
#include "pmpi_requests.h"

typedef HM_HANDLE H;

enum { MOST_HELD = 64 };

/* The collectives' requests among those a call is given, as they were before it: it clears what it completes. */
struct held {
    int count;
    struct {
        int at;
        H handle;
    } entries[MOST_HELD];
};

static void hold(struct held *held, const void *requests, int count) {
    held->count = 0;
    if (!hm_requests_any())
        return;
    for (int i = 0; i < count && held->count < MOST_HELD; i++) {
        H handle = hm_handle_at(requests, i);
        if (!hm_request_known(handle))
            continue;
        held->entries[held->count].at = i;
        held->entries[held->count++].handle = handle;
    }
}

static struct hm_request first_of(const struct held *held) {
    struct hm_request found = {.comm = NULL};
    if (held->count > 0)
        hm_request_find(held->entries[0].handle, &found);
    return found;
}

static void release(const struct held *held, const void *requests) {
    struct hm_request done;
    for (int i = 0; i < held->count; i++)
        if (hm_handle_at(requests, held->entries[i].at) == hm_library.request_null)
            hm_request_done(held->entries[i].handle, &done);
}

/* With whom a call that is given these messages' requests waits. */
struct waited {
    uint16_t comm, peer;
    uint8_t flags;
};

enum { MOST_SEEN = 256 };

/* Add a peer to a list, once; `next` is where it would be if the peers came in the same order again. */
static bool add_peer(struct hm_partners *with, int *next, uint64_t word) {
    uint16_t peer = hm_message_peer(word);
    int at = *next < with->count ? *next : 0, i = at;
    if (with->count && with->peers[at ? at - 1 : with->count - 1] == peer) /* many messages to one peer, in a row */
        i = at ? at - 1 : with->count - 1;
    else if (!with->count || with->peers[at] != peer)
        for (i = 0; i < with->count && with->peers[i] != peer; i++)
            ;
    if (i == HM_PARTNERS)
        return false;
    if (i == with->count)
        with->peers[with->count++] = peer;
    if (hm_message_flags(word) & HM_SENDS)
        with->sends |= 1u << i;
    else
        with->receives |= 1u << i;
    *next = i + 1;
    return true;
}

/* `fortran`: the requests are Fortran's, integers with any MPI. */
static struct waited list_peers(const void *requests, int count, bool fortran) {
    struct hm_partners *with = hm_partners_of(&hm_pmpi.ring, hm_thread.slot - 1);
    struct waited found = {HM_NONE16, HM_NONE16, HM_SEVERAL};
    int next = 0, most = count < MOST_SEEN ? count : MOST_SEEN;
    with->count = 0;
    with->sends = with->receives = 0;
    with->more = count > most;
    for (int i = 0; i < most; i++) {
        H handle = fortran ? ((const uint32_t *)requests)[i] : hm_handle_at(requests, i);
        uint64_t word = hm_message_find(handle);
        if (handle == hm_library.request_null || hm_is_shared(handle) || (word && hm_message_peer(word) == HM_NONE16))
            continue;
        if (word && found.comm == HM_NONE16)
            found.comm = hm_message_comm(word);
        if (!word || hm_message_comm(word) != found.comm || !add_peer(with, &next, word))
            with->more = 1;
    }
    if (with->count)
        found.peer = with->peers[0];
    return found;
}

static struct waited peers_of(const void *requests, int count) {
    if (count != 1 && hm_has_slot())
        return list_peers(requests, count, false);
    uint64_t word = count == 1 ? hm_message_find(hm_handle_at(requests, 0)) : 0;
    if (!word)
        return (struct waited){HM_NONE16, HM_NONE16, 0};
    return (struct waited){hm_message_comm(word), hm_message_peer(word), hm_message_flags(word)};
}

static void begin(struct hm_call *call, struct hm_communicator *comm, uint32_t seq, const struct waited *waited) {
    struct hm_communicator of = {.index = waited->comm};
    hm_begin_p2p(call, &of, HM_OP_wait, seq, waited->flags, waited->peer);
    call->comm = comm;
}

/* A wait begins: for the first collective among its requests, or for messages. */
static void begin_wait(struct hm_call *call, const struct held *held, const void *requests, int count) {
    struct hm_request first = first_of(held);
    struct hm_communicator *comm = first.comm;
    struct waited waited = comm ? (struct waited){comm->index, HM_NONE16, 0} : peers_of(requests, count);
    begin(call, comm, first.seq, &waited);
}

void hm_begin_fortran_wait(struct hm_call *call, const int *requests, int count) {
    struct waited waited = hm_has_slot() ? list_peers(requests, count, true) : (struct waited){HM_NONE16, HM_NONE16, 0};
    begin(call, NULL, 0, &waited);
}

#define WAIT(symbol, declaration, arguments, requests, count)                                                          \
    HM_EXPORT int symbol declaration {                                                                                 \
        HM_REAL(symbol, declaration)                                                                                   \
        if (!hm_observed())                                                                                            \
            return real arguments;                                                                                     \
        struct hm_call call;                                                                                           \
        struct held held;                                                                                              \
        hold(&held, requests, count);                                                                                  \
        begin_wait(&call, &held, requests, count);                                                                     \
        int result = real arguments;                                                                                   \
        hm_end_p2p(&call, HM_OP_wait, 0, result, -1, 0);                                                               \
        release(&held, requests);                                                                                      \
        return result;                                                                                                 \
    }

/* After so long without a test: whether the rank slept, which is a pause of its polling. Where it ran, or would have,
 * that is its self time. In a gap that was not predicted this is unknown: then it counts as self time as well. */
static bool paused(struct hm_thread *thread, uint64_t *now) {
    uint64_t length = *now - thread->stretch_start, sampled_ns = thread->sampled_ns;
    struct hm_usage spent = thread->spent, *all = &thread->spent;
    bool known = thread->sampled;
    *now = hm_long_stretch(thread, *now);
    if (!known || !all->cpu_known)
        return false;
    uint64_t used = all->cpu_ns + (all->runqueue_known ? all->runqueue_ns : 0);
    if (sampled_ns)
        used -= spent.cpu_ns + (all->runqueue_known ? spent.runqueue_ns : 0);
    if (used * 2 >= length)
        return false;
    thread->sampled_ns = sampled_ns;
    *all = spent;
    return true;
}

/* A test begins. A rank that polls waits from its first test to the one that succeeds: what is between two of them is
 * not its self time, except for a long gap of something else. One that tests again and again loses the CPU now and
 * then: that is none. */
static void poll(void) {
    struct hm_thread *thread = &hm_thread;
    uint64_t now = hm_time();
    bool goes_on = thread->polled && thread->stretch_start == thread->polled, brief = now - thread->polled < HM_LONG_NS;
    thread->depth = 1;
    if (goes_on && (brief || thread->polls_briefly)) {
        thread->polls_briefly = true;
    } else {
        if (!goes_on) {
            thread->polled_since = now = hm_stretch_ends(now);
            thread->polled = 0;
        } else if (!paused(thread, &now)) {
            thread->own_ns += now - thread->stretch_start;
            thread->polled_since = now;
        }
        thread->polls_briefly = false;
    }
}

/* Which of a call's requests a test has completed: all of them, or those at `count` places. */
struct tested {
    bool all;
    int count;
    const int *at;
};

static bool completes(const struct tested *tested, int at) {
    for (int i = 0; i < tested->count; i++)
        if (tested->at[i] == at)
            return true;
    return tested->all;
}

static bool completes_any(const struct tested *tested) { return tested->all || tested->count > 0; }

/* A test ends: a record for each collective that it completed, the first of which is what was waited for. If the first
 * test succeeds there was nothing to wait for. */
static void end_poll(const struct held *held, const struct tested *tested) {
    struct hm_thread *thread = &hm_thread;
    uint64_t start = thread->polled_since, end = thread->polled || !completes_any(tested) ? hm_time() : start;
    bool any = false;
    for (int i = 0; i < held->count; i++) {
        struct hm_request done;
        if (!completes(tested, held->entries[i].at) || !hm_request_done(held->entries[i].handle, &done))
            continue;
        any = true;
        hm_event(&hm_pmpi.ring, hm_what(HM_P2P, 0, (uint16_t)HM_OP_wait), start, end - start,
                 hm_where(done.seq, HM_NONE16, done.comm->index), 0);
        start = end;
    }
    thread->polled = any ? 0 : end;
    if (any) {
        hm_polled();
    } else if (!hm_polls_on(HM_OP_wait)) {
        struct hm_request first = first_of(held);
        hm_polls(HM_OP_wait, 0, hm_where(first.seq, HM_NONE16, first.comm ? first.comm->index : HM_NONE16));
    }
    if (any || !thread->polls_briefly) {
        hm_stretch_begins(end, (uint32_t)HM_OP_wait * 7u);
    } else {
        thread->stretch_start = end;
        thread->sampled = false;
    }
    thread->depth = 0;
}

/* A test of messages ends: one that completes nothing leaves no record. */
static void end_test(const struct tested *tested, const void *requests, int count) {
    if (tested->all || tested->count) /* below 0: there was nothing to complete */
        return hm_polled();
    if (hm_polls_on(HM_OP_wait))
        return;
    struct waited waited = peers_of(requests, count);
    hm_polls(HM_OP_wait, waited.flags, hm_where(0, waited.peer, waited.comm));
}

#define TEST(symbol, declaration, arguments, requests, n, ...)                                                         \
    HM_EXPORT int symbol declaration {                                                                                 \
        HM_REAL(symbol, declaration)                                                                                   \
        struct held held;                                                                                              \
        if (!hm_observed())                                                                                            \
            return real arguments;                                                                                     \
        hold(&held, requests, n);                                                                                      \
        if (held.count)                                                                                                \
            poll();                                                                                                    \
        hm_thread.depth = 1;                                                                                           \
        int result = real arguments;                                                                                   \
        hm_thread.depth = 0;                                                                                           \
        struct tested tested = __VA_ARGS__;                                                                            \
        if (held.count == 0)                                                                                           \
            end_test(result == HM_MPI_SUCCESS ? &tested : &(struct tested){.all = true}, requests, n);                 \
        else                                                                                                           \
            end_poll(&held, result == HM_MPI_SUCCESS ? &tested : &(struct tested){0});                                 \
        if (result != HM_MPI_SUCCESS)                                                                                  \
            release(&held, requests);                                                                                  \
        return result;                                                                                                 \
    }

WAIT(MPI_Wait, (H * request, void *status), (request, status), request, 1)
WAIT(MPI_Waitall, (int n, H *requests, void *statuses), (n, requests, statuses), requests, n)
WAIT(MPI_Waitany, (int n, H *requests, int *index, void *status), (n, requests, index, status), requests, n)
WAIT(MPI_Waitsome, (int n, H *requests, int *done, int *indices, void *statuses),
     (n, requests, done, indices, statuses), requests, n)
TEST(MPI_Test, (H * request, int *flag, void *status), (request, flag, status), request, 1, {.all = *flag})
TEST(MPI_Testall, (int n, H *requests, int *flag, void *statuses), (n, requests, flag, statuses), requests, n,
     {.all = *flag})
TEST(MPI_Testany, (int n, H *requests, int *index, int *flag, void *status), (n, requests, index, flag, status),
     requests, n, {.count = *flag, .at = index})
TEST(MPI_Testsome, (int n, H *requests, int *done, int *indices, void *statuses),
     (n, requests, done, indices, statuses), requests, n, {.count = *done, .at = indices})

static int start_collective(int (*real)(H *), H *request, const struct hm_request *of) {
    struct hm_call call;
    hm_begin_collective(&call, of->comm, of->operation, HM_NONBLOCKING);
    int result = real(request);
    uint8_t flags = result == HM_MPI_SUCCESS ? HM_NONBLOCKING : HM_NONBLOCKING | HM_ERROR;
    hm_end_collective(&call, of->operation, flags, of->root, of->bytes);
    hm_request_started(hm_handle_at(request, 0), call.seq);
    return result;
}

static int start_other(int (*real)(H *), H *request) {
    struct hm_call call;
    hm_begin_p2p(&call, NULL, HM_OP_start, 0, 0, HM_NONE16);
    int result = real(request);
    hm_end_p2p(&call, HM_OP_start, HM_NONBLOCKING, result, -1, 0);
    return result;
}

HM_EXPORT int MPI_Start(H *request) {
    struct hm_request found;
    HM_REAL(MPI_Start, (H *))
    if (!hm_observed())
        return real(request);
    if (hm_requests_any() && hm_request_find(hm_handle_at(request, 0), &found))
        return start_collective(real, request, &found);
    return start_other(real, request);
}

/* Each request is started separately, so that each collective gets its number; the standard defines it so. */
HM_EXPORT int MPI_Startall(int n, H *requests) {
    HM_REAL(MPI_Startall, (int, H *))
    struct held held;
    if (!hm_observed())
        return real(n, requests);
    hold(&held, requests, n);
    if (held.count > 0) {
        int result = HM_MPI_SUCCESS;
        for (int i = 0; i < n && result == HM_MPI_SUCCESS; i++)
            result = MPI_Start(hm_library.int_handles ? (H *)((uint32_t *)requests + i) : requests + i);
        return result;
    }
    struct hm_call call;
    hm_begin_p2p(&call, NULL, HM_OP_start, 0, 0, HM_NONE16);
    int result = real(n, requests);
    hm_end_p2p(&call, HM_OP_start, HM_NONBLOCKING, result, -1, 0);
    return result;
}

HM_EXPORT int MPI_Request_free(H *request) {
    HM_REAL(MPI_Request_free, (H *))
    H handle = hm_pmpi.active ? hm_handle_at(request, 0) : 0;
    int result = real(request);
    if (handle && result == HM_MPI_SUCCESS && hm_requests_any())
        hm_request_forget(handle);
    return result;
}
