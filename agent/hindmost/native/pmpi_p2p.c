/* Point-to-point calls and waits. Their time is not a rank's own: it is taken out of the gap between collectives. */
#include "pmpi_real.h"
#include "pmpi_requests.h"

typedef HM_HANDLE H;

static int (*get_count)(const void *, H, int *);

/* Two statuses of any MPI fit; one is lent to a receive whose caller ignores its own. */
struct status {
    int words[16];
};

void hm_begin_p2p(struct hm_call *call, struct hm_communicator *comm, enum hm_operation op, uint32_t seq, uint8_t flags,
                  uint16_t peer) {
    hm_thread.depth = 1;
    call->comm = comm;
    call->seq = seq;
    call->start = hm_stretch_ends(hm_time());
    hm_open(hm_what(HM_P2P, flags, (uint16_t)op), call->start, hm_where(seq, peer, comm ? comm->index : HM_NONE16));
}

/* Very many short calls would push the collectives out of the ring, and cost the agent more than they tell. Beyond so
 * many in a window, those that follow share one record. What calls were made in which order is then not known anyway, so
 * that of the next window only a few are recorded each for itself. */
static bool worth_recording(struct hm_thread *thread, uint64_t end, uint64_t duration) {
    if (end - thread->window_start > HM_WINDOW_NS) {
        bool many = thread->window_count > hm_pmpi.window_calls && end - thread->window_start < 2 * HM_WINDOW_NS;
        hm_write_folded(thread);
        thread->window_start = end;
        thread->window_count = 0;
        thread->window_most = many && HM_FEW_CALLS < hm_pmpi.window_calls ? HM_FEW_CALLS : hm_pmpi.window_calls;
    }
    return thread->window_count++ < thread->window_most || duration >= hm_pmpi.short_ns;
}

static void fold(struct hm_folded *folded, uint64_t start, uint64_t duration, int64_t bytes) {
    if (folded->calls++ == 0)
        folded->start = start;
    folded->duration_ns += duration;
    folded->bytes += bytes;
}

/* One record for all blocking calls, as a wait, and one for the others, as a start; of no communicator and no peer. */
void hm_write_folded(struct hm_thread *thread) {
    for (int i = 0; i < 2; i++) {
        struct hm_folded *folded = &thread->folded[i];
        if (folded->calls)
            hm_event(&hm_pmpi.ring, hm_what(HM_P2P, i ? HM_NONBLOCKING : 0, i ? HM_OP_start : HM_OP_wait), folded->start,
                     folded->duration_ns, hm_where(folded->calls, HM_NONE16, HM_NONE16), (uint64_t)folded->bytes);
        *folded = (struct hm_folded){0};
    }
}

void hm_end_p2p(struct hm_call *call, enum hm_operation op, uint8_t flags, int result, int peer, int64_t bytes) {
    struct hm_thread *thread = &hm_thread;
    uint64_t now = hm_time(), duration = now - call->start;
    bool good = result == HM_MPI_SUCCESS;
    uint16_t other = peer < 0 || peer >= HM_NONE16 ? HM_NONE16 : (uint16_t)peer;
    if (worth_recording(thread, now, duration) || !good)
        hm_event(&hm_pmpi.ring, hm_what(HM_P2P, good ? flags : flags | HM_ERROR, (uint16_t)op), call->start, duration,
                 hm_where(call->seq, other, call->comm ? call->comm->index : HM_NONE16), good ? (uint64_t)bytes : 0);
    else
        fold(&thread->folded[flags == HM_NONBLOCKING], call->start, duration, bytes);
    hm_shut();
    hm_stretch_begins(now, (uint32_t)op * 7u);
    thread->depth = 0;
}

static void *status_or(void *given, struct status *own) { return given == hm_library.status_ignore ? own : given; }

static int source_of(const void *status) { return *(const int *)((const char *)status + hm_library.source_offset); }

/* Bytes that a receive got, -> 0 where they do not fit an int. */
static int64_t bytes_of(const void *status) {
    int bytes = 0;
    if (!get_count)
        get_count = (int (*)(const void *, H, int *))hm_library_symbol("PMPI_Get_count", NULL);
    return get_count && get_count(status, hm_library.byte, &bytes) == HM_MPI_SUCCESS && bytes > 0 ? bytes : 0;
}

/* A call that sends and receives waits for two. */
static uint8_t hm_both(int from, int to) {
    if (from == to || from < 0 || to < 0 || to >= HM_ANY16 || !hm_has_slot())
        return 0;
    struct hm_partners *with = hm_partners_of(&hm_pmpi.ring, hm_thread.slot - 1);
    with->count = 2;
    with->more = 0;
    with->receives = 1;
    with->sends = 2;
    with->peers[0] = hm_peer(from);
    with->peers[1] = (uint16_t)to;
    return HM_SEVERAL;
}

/* The message that this thread's MPI_Mrecv, which says no source, is about to receive. */
static void note_match(struct hm_communicator *comm, const void *status) {
    hm_thread.matched = comm;
    hm_thread.matched_source = source_of(status);
}

#define SEND(symbol, op_, flags, N)                                                                                    \
    HM_EXPORT int symbol(const void *buffer, N n, H type, int peer, int tag, H comm) {                                 \
        HM_REAL(symbol, (const void *, N, H, int, int, H))                                                             \
        if (!hm_observed())                                                                                            \
            return real(buffer, n, type, peer, tag, comm);                                                             \
        struct hm_call call;                                                                                           \
        hm_begin_p2p(&call, hm_comm_of(comm), HM_OP_##op_, 0, HM_SENDS, hm_peer(peer));                                \
        int result = real(buffer, n, type, peer, tag, comm);                                                           \
        hm_end_p2p(&call, HM_OP_##op_, flags, result, peer, result ? 0 : hm_type_bytes(n, type));                      \
        return result;                                                                                                 \
    }

#define POST(symbol, op_, N)                                                                                           \
    HM_EXPORT int symbol(const void *buffer, N n, H type, int peer, int tag, H comm, H *request) {                     \
        HM_REAL(symbol, (const void *, N, H, int, int, H, H *))                                                        \
        if (!hm_observed())                                                                                            \
            return real(buffer, n, type, peer, tag, comm, request);                                                    \
        struct hm_call call;                                                                                           \
        uint16_t other = hm_peer(peer);                                                                                \
        hm_begin_p2p(&call, hm_comm_of(comm), HM_OP_##op_, 0, HM_OP_##op_ == HM_OP_send ? HM_SENDS : 0, other);        \
        int result = real(buffer, n, type, peer, tag, comm, request);                                                  \
        hm_message_add(hm_handle_at(request, 0), call.comm->index, other, HM_OP_##op_ == HM_OP_send);                  \
        hm_end_p2p(&call, HM_OP_##op_, HM_NONBLOCKING, result, peer, result ? 0 : hm_type_bytes(n, type));             \
        return result;                                                                                                 \
    }

/* A persistent request: it is started again and again, to the same peer. */
#define KEEP(symbol, sends, N)                                                                                         \
    HM_EXPORT int symbol(const void *buffer, N n, H type, int peer, int tag, H comm, H *request) {                     \
        HM_REAL(symbol, (const void *, N, H, int, int, H, H *))                                                        \
        int result = real(buffer, n, type, peer, tag, comm, request);                                                  \
        if (hm_observed() && result == HM_MPI_SUCCESS)                                                                 \
            hm_message_add(hm_handle_at(request, 0), hm_comm_of(comm)->index, hm_peer(peer), sends);                   \
        return result;                                                                                                 \
    }

#define RECV(symbol, N)                                                                                                \
    HM_EXPORT int symbol(void *buffer, N n, H type, int source, int tag, H comm, void *status) {                       \
        HM_REAL(symbol, (void *, N, H, int, int, H, void *))                                                           \
        if (!hm_observed())                                                                                            \
            return real(buffer, n, type, source, tag, comm, status);                                                   \
        struct hm_call call;                                                                                           \
        struct status own;                                                                                             \
        void *given = status_or(status, &own);                                                                         \
        hm_begin_p2p(&call, hm_comm_of(comm), HM_OP_recv, 0, 0, hm_peer(source));                                      \
        int result = real(buffer, n, type, source, tag, comm, given);                                                  \
        hm_end_p2p(&call, HM_OP_recv, 0, result, result ? source : source_of(given), result ? 0 : bytes_of(given));    \
        return result;                                                                                                 \
    }

#define SENDRECV(symbol, N)                                                                                            \
    HM_EXPORT int symbol(const void *in, N n, H type, int to, int tag, void *out, N m, H mtype, int from, int mtag,    \
                         H comm, void *status) {                                                                       \
        HM_REAL(symbol, (const void *, N, H, int, int, void *, N, H, int, int, H, void *))                             \
        if (!hm_observed())                                                                                            \
            return real(in, n, type, to, tag, out, m, mtype, from, mtag, comm, status);                                \
        struct hm_call call;                                                                                           \
        hm_begin_p2p(&call, hm_comm_of(comm), HM_OP_sendrecv, 0, hm_both(from, to), hm_peer(from));                    \
        int result = real(in, n, type, to, tag, out, m, mtype, from, mtag, comm, status);                              \
        hm_end_p2p(&call, HM_OP_sendrecv, 0, result, from, result ? 0 : hm_type_bytes(n, type));                       \
        return result;                                                                                                 \
    }

#define SENDRECV_REPLACE(symbol, N)                                                                                    \
    HM_EXPORT int symbol(void *buffer, N n, H type, int to, int tag, int from, int mtag, H comm, void *status) {       \
        HM_REAL(symbol, (void *, N, H, int, int, int, int, H, void *))                                                 \
        if (!hm_observed())                                                                                            \
            return real(buffer, n, type, to, tag, from, mtag, comm, status);                                           \
        struct hm_call call;                                                                                           \
        hm_begin_p2p(&call, hm_comm_of(comm), HM_OP_sendrecv, 0, hm_both(from, to), hm_peer(from));                    \
        int result = real(buffer, n, type, to, tag, from, mtag, comm, status);                                         \
        hm_end_p2p(&call, HM_OP_sendrecv, 0, result, from, result ? 0 : hm_type_bytes(n, type));                       \
        return result;                                                                                                 \
    }

#define MRECV(symbol, N)                                                                                               \
    HM_EXPORT int symbol(void *buffer, N n, H type, H *message, void *status) {                                        \
        HM_REAL(symbol, (void *, N, H, H *, void *))                                                                   \
        if (!hm_observed())                                                                                            \
            return real(buffer, n, type, message, status);                                                             \
        struct hm_call call;                                                                                           \
        struct status own;                                                                                             \
        void *given = status_or(status, &own);                                                                         \
        int source = hm_thread.matched ? hm_thread.matched_source : -1;                                                \
        hm_begin_p2p(&call, hm_thread.matched, HM_OP_recv, 0, 0, source < 0 ? HM_NONE16 : hm_peer(source));            \
        hm_thread.matched = NULL;                                                                                      \
        int result = real(buffer, n, type, message, given);                                                            \
        hm_end_p2p(&call, HM_OP_recv, 0, result, source, result ? 0 : bytes_of(given));                                \
        return result;                                                                                                 \
    }

SEND(MPI_Send, send, 0, int)
SEND(MPI_Ssend, send, 0, int)
SEND(MPI_Bsend, send, 0, int)
SEND(MPI_Rsend, send, 0, int)
POST(MPI_Isend, send, int)
POST(MPI_Issend, send, int)
POST(MPI_Ibsend, send, int)
POST(MPI_Irsend, send, int)
POST(MPI_Irecv, recv, int)
KEEP(MPI_Send_init, true, int)
KEEP(MPI_Ssend_init, true, int)
KEEP(MPI_Bsend_init, true, int)
KEEP(MPI_Rsend_init, true, int)
KEEP(MPI_Recv_init, false, int)
RECV(MPI_Recv, int)
MRECV(MPI_Mrecv, int)
SENDRECV(MPI_Sendrecv, int)
SENDRECV_REPLACE(MPI_Sendrecv_replace, int)

#ifdef HM_LARGE
SEND(MPI_Send_c, send, 0, int64_t)
SEND(MPI_Ssend_c, send, 0, int64_t)
SEND(MPI_Bsend_c, send, 0, int64_t)
SEND(MPI_Rsend_c, send, 0, int64_t)
POST(MPI_Isend_c, send, int64_t)
POST(MPI_Issend_c, send, int64_t)
POST(MPI_Ibsend_c, send, int64_t)
POST(MPI_Irsend_c, send, int64_t)
POST(MPI_Irecv_c, recv, int64_t)
KEEP(MPI_Send_init_c, true, int64_t)
KEEP(MPI_Ssend_init_c, true, int64_t)
KEEP(MPI_Bsend_init_c, true, int64_t)
KEEP(MPI_Rsend_init_c, true, int64_t)
KEEP(MPI_Recv_init_c, false, int64_t)
RECV(MPI_Recv_c, int64_t)
MRECV(MPI_Mrecv_c, int64_t)
SENDRECV(MPI_Sendrecv_c, int64_t)
SENDRECV_REPLACE(MPI_Sendrecv_replace_c, int64_t)
#endif

HM_EXPORT int MPI_Probe(int source, int tag, H comm, void *status) {
    HM_REAL(MPI_Probe, (int, int, H, void *))
    if (!hm_observed())
        return real(source, tag, comm, status);
    struct hm_call call;
    hm_begin_p2p(&call, hm_comm_of(comm), HM_OP_probe, 0, 0, hm_peer(source));
    int result = real(source, tag, comm, status);
    hm_end_p2p(&call, HM_OP_probe, 0, result, source, 0);
    return result;
}

HM_EXPORT int MPI_Mprobe(int source, int tag, H comm, H *message, void *status) {
    HM_REAL(MPI_Mprobe, (int, int, H, H *, void *))
    if (!hm_observed())
        return real(source, tag, comm, message, status);
    struct hm_call call;
    struct status own;
    void *given = status_or(status, &own);
    hm_begin_p2p(&call, hm_comm_of(comm), HM_OP_probe, 0, 0, hm_peer(source));
    int result = real(source, tag, comm, message, given);
    if (result == HM_MPI_SUCCESS)
        note_match(call.comm, given);
    hm_end_p2p(&call, HM_OP_probe, 0, result, source, 0);
    return result;
}

/* A probe that finds nothing leaves no record. One that comes again and again is how a rank waits. */
#define PROBES(symbol, declaration, arguments, matches)                                                                \
    HM_EXPORT int symbol declaration {                                                                                 \
        HM_REAL(symbol, declaration)                                                                                   \
        struct status own;                                                                                             \
        void *given = hm_observed() ? status_or(status, &own) : status;                                                \
        if (!hm_observed())                                                                                            \
            return real arguments;                                                                                     \
        hm_thread.depth = 1;                                                                                           \
        int result = real arguments;                                                                                   \
        if (result != HM_MPI_SUCCESS || *flag)                                                                         \
            hm_polled();                                                                                               \
        else if (!hm_polls_on(HM_OP_probe))                                                                            \
            hm_polls(HM_OP_probe, 0, hm_where(0, hm_peer(source), hm_comm_of(comm)->index));                           \
        if (matches && result == HM_MPI_SUCCESS && *flag)                                                              \
            note_match(hm_comm_of(comm), given);                                                                       \
        hm_thread.depth = 0;                                                                                           \
        return result;                                                                                                 \
    }

PROBES(MPI_Iprobe, (int source, int tag, H comm, int *flag, void *status), (source, tag, comm, flag, given), false)
PROBES(MPI_Improbe, (int source, int tag, H comm, int *flag, H *message, void *status),
       (source, tag, comm, flag, message, given), true)
