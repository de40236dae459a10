/* Fortran's names for the common calls: `use mpi` and mpif.h (name_), and mpi_f08 (name_f08_, name_f08ts_).
 *
 * An MPI's Fortran layer calls its own inside, past the C names, so these are wrapped by themselves. Everything comes by
 * reference, handles are integers, and with mpi_f08 the error code may be left out.
 */
#define _GNU_SOURCE
#include "pmpi_real.h"
#include "pmpi_requests.h"

#include <dlfcn.h>

typedef const int *I;

/* A Fortran handle as C has it. MPICH's kind has one integer for both. */
static HM_HANDLE from_fortran(const char *function, HM_HANDLE (**convert)(int), int handle) {
    if (hm_library.int_handles)
        return (HM_HANDLE)(unsigned)handle;
    if (!*convert)
        *convert = (HM_HANDLE(*)(int))hm_library_symbol(function, NULL);
    return *convert ? (*convert)(handle) : 0;
}

static struct hm_communicator *communicator(I comm) {
    static HM_HANDLE (*convert)(int);
    HM_HANDLE handle = from_fortran("PMPI_Comm_f2c", &convert, *comm);
    return hm_comm_of(handle ? handle : hm_library.comm_null);
}

static int64_t bytes_of(int64_t count, I type) {
    static HM_HANDLE (*convert)(int);
    HM_HANDLE handle = from_fortran("PMPI_Type_f2c", &convert, *type);
    return handle ? hm_type_bytes(count, handle) : 0;
}

static int64_t sum(I counts, int n) {
    int64_t total = 0;
    for (int i = 0; i < n; i++)
        total += counts[i];
    return total;
}

#define ALL(WRITE, name, ...)                                                                                          \
    WRITE(name##_, __VA_ARGS__)                                                                                        \
    WRITE(name##_f08_, __VA_ARGS__)                                                                                    \
    WRITE(name##_f08ts_, __VA_ARGS__)

/* `real`, the library's Fortran function of this name. Only a program that was linked with it can be here. */
#define FORTRAN_REAL(symbol, declaration)                                                                              \
    static void(*real) declaration;                                                                                    \
    if (!real && !(real = (void(*) declaration)dlsym(RTLD_NEXT, HM_TEXT(symbol))))                                     \
        return;

#define COLLECTIVE(symbol, op_, declaration, arguments, root, bytes)                                                   \
    HM_EXPORT void symbol declaration {                                                                                \
        FORTRAN_REAL(symbol, declaration)                                                                              \
        if (!hm_observed()) {                                                                                          \
            real arguments;                                                                                            \
            return;                                                                                                    \
        }                                                                                                              \
        struct hm_call call;                                                                                           \
        hm_begin_collective(&call, communicator(comm), HM_OP_##op_, 0);                                                \
        real arguments;                                                                                                \
        bool good = !error || *error == HM_MPI_SUCCESS;                                                                \
        hm_end_collective(&call, HM_OP_##op_, good ? 0 : HM_ERROR, root, good ? (bytes) : 0);                          \
    }

/* CALL(symbol, operation, flags, peer, bytes, begin, declaration, arguments) */
#define CALL(symbol, op_, flags, peer, bytes, begin, declaration, arguments)                                           \
    HM_EXPORT void symbol declaration {                                                                                \
        FORTRAN_REAL(symbol, declaration)                                                                              \
        if (!hm_observed()) {                                                                                          \
            real arguments;                                                                                            \
            return;                                                                                                    \
        }                                                                                                              \
        struct hm_call call;                                                                                           \
        begin;                                                                                                         \
        real arguments;                                                                                                \
        int result = error ? *error : HM_MPI_SUCCESS;                                                                  \
        hm_end_p2p(&call, HM_OP_##op_, flags, result, peer, result ? 0 : (bytes));                                     \
    }

#define MESSAGE(op_, way, peer) hm_begin_p2p(&call, communicator(comm), HM_OP_##op_, 0, way, hm_peer(peer))
#define POSTED(peer, sends)                                                                                            \
    (hm_message_add((HM_HANDLE)(unsigned)*request, call.comm->index, hm_peer(peer), sends), bytes_of(*n, type))
#define NO_MESSAGE hm_begin_p2p(&call, NULL, HM_OP_comm_create, 0, 0, HM_NONE16)

#define AT_ROOT (*root == call.comm->rank)

ALL(COLLECTIVE, mpi_barrier, barrier, (I comm, int *error), (comm, error), -1, 0)
ALL(COLLECTIVE, mpi_bcast, broadcast, (void *buffer, I n, I type, I root, I comm, int *error),
    (buffer, n, type, root, comm, error), *root, bytes_of(*n, type))
ALL(COLLECTIVE, mpi_reduce, reduce, (void *in, void *out, I n, I type, I op, I root, I comm, int *error),
    (in, out, n, type, op, root, comm, error), *root, bytes_of(*n, type))
ALL(COLLECTIVE, mpi_allreduce, all_reduce, (void *in, void *out, I n, I type, I op, I comm, int *error),
    (in, out, n, type, op, comm, error), -1, bytes_of(*n, type))
ALL(COLLECTIVE, mpi_scan, scan, (void *in, void *out, I n, I type, I op, I comm, int *error),
    (in, out, n, type, op, comm, error), -1, bytes_of(*n, type))
ALL(COLLECTIVE, mpi_exscan, scan, (void *in, void *out, I n, I type, I op, I comm, int *error),
    (in, out, n, type, op, comm, error), -1, bytes_of(*n, type))
ALL(COLLECTIVE, mpi_reduce_scatter_block, reduce_scatter,
    (void *in, void *out, I m, I type, I op, I comm, int *error), (in, out, m, type, op, comm, error), -1,
    call.comm->blocks * bytes_of(*m, type))
ALL(COLLECTIVE, mpi_reduce_scatter, reduce_scatter, (void *in, void *out, I ms, I type, I op, I comm, int *error),
    (in, out, ms, type, op, comm, error), -1, bytes_of(sum(ms, call.comm->blocks), type))
/* A side that is given in place is not looked at: the other one says the same. */
ALL(COLLECTIVE, mpi_gather, gather, (void *in, I n, I type, void *out, I m, I mtype, I root, I comm, int *error),
    (in, n, type, out, m, mtype, root, comm, error), *root, AT_ROOT ? bytes_of(*m, mtype) : bytes_of(*n, type))
ALL(COLLECTIVE, mpi_scatter, scatter, (void *in, I n, I type, void *out, I m, I mtype, I root, I comm, int *error),
    (in, n, type, out, m, mtype, root, comm, error), *root, AT_ROOT ? bytes_of(*n, type) : bytes_of(*m, mtype))
ALL(COLLECTIVE, mpi_gatherv, gather,
    (void *in, I n, I type, void *out, I ms, I places, I mtype, I root, I comm, int *error),
    (in, n, type, out, ms, places, mtype, root, comm, error), *root,
    AT_ROOT ? bytes_of(ms[*root], mtype) : bytes_of(*n, type))
ALL(COLLECTIVE, mpi_scatterv, scatter,
    (void *in, I ns, I places, I type, void *out, I m, I mtype, I root, I comm, int *error),
    (in, ns, places, type, out, m, mtype, root, comm, error), *root,
    AT_ROOT ? bytes_of(ns[*root], type) : bytes_of(*m, mtype))
ALL(COLLECTIVE, mpi_allgather, all_gather, (void *in, I n, I type, void *out, I m, I mtype, I comm, int *error),
    (in, n, type, out, m, mtype, comm, error), -1, bytes_of(*m, mtype))
ALL(COLLECTIVE, mpi_allgatherv, all_gather,
    (void *in, I n, I type, void *out, I ms, I places, I mtype, I comm, int *error),
    (in, n, type, out, ms, places, mtype, comm, error), -1, bytes_of(ms[call.comm->rank], mtype))
ALL(COLLECTIVE, mpi_alltoall, all_to_all, (void *in, I n, I type, void *out, I m, I mtype, I comm, int *error),
    (in, n, type, out, m, mtype, comm, error), -1, call.comm->blocks * bytes_of(*m, mtype))
ALL(COLLECTIVE, mpi_alltoallv, all_to_all,
    (void *in, I ns, I places, I type, void *out, I ms, I mplaces, I mtype, I comm, int *error),
    (in, ns, places, type, out, ms, mplaces, mtype, comm, error), -1, bytes_of(sum(ms, call.comm->blocks), mtype))

ALL(CALL, mpi_send, send, 0, *to, bytes_of(*n, type), MESSAGE(send, HM_SENDS, *to),
    (void *buffer, I n, I type, I to, I tag, I comm, int *error), (buffer, n, type, to, tag, comm, error))
ALL(CALL, mpi_recv, recv, 0, *from, bytes_of(*n, type), MESSAGE(recv, 0, *from),
    (void *buffer, I n, I type, I from, I tag, I comm, void *status, int *error),
    (buffer, n, type, from, tag, comm, status, error))
ALL(CALL, mpi_isend, send, HM_NONBLOCKING, *to, POSTED(*to, true), MESSAGE(send, HM_SENDS, *to),
    (void *buffer, I n, I type, I to, I tag, I comm, int *request, int *error),
    (buffer, n, type, to, tag, comm, request, error))
ALL(CALL, mpi_irecv, recv, HM_NONBLOCKING, *from, POSTED(*from, false), MESSAGE(recv, 0, *from),
    (void *buffer, I n, I type, I from, I tag, I comm, int *request, int *error),
    (buffer, n, type, from, tag, comm, request, error))
ALL(CALL, mpi_sendrecv, sendrecv, 0, *from, bytes_of(*n, type), MESSAGE(sendrecv, 0, *from),
    (void *in, I n, I type, I to, I tag, void *out, I m, I mtype, I from, I mtag, I comm, void *status, int *error),
    (in, n, type, to, tag, out, m, mtype, from, mtag, comm, status, error))
ALL(CALL, mpi_wait, wait, 0, -1, 0, hm_begin_fortran_wait(&call, request, 1), (int *request, void *status, int *error),
    (request, status, error))
ALL(CALL, mpi_waitall, wait, 0, -1, 0, hm_begin_fortran_wait(&call, requests, *n),
    (I n, int *requests, void *statuses, int *error), (n, requests, statuses, error))
ALL(CALL, mpi_comm_dup, comm_create, 0, -1, (communicator(made), 0), NO_MESSAGE, (I comm, int *made, int *error),
    (comm, made, error))
ALL(CALL, mpi_comm_split, comm_create, 0, -1, (communicator(made), 0), NO_MESSAGE,
    (I comm, I color, I key, int *made, int *error), (comm, color, key, made, error))

#define INIT(symbol, declaration, arguments)                                                                           \
    HM_EXPORT void symbol declaration {                                                                                \
        FORTRAN_REAL(symbol, declaration)                                                                              \
        hm_library_symbol("PMPI_Init", __builtin_return_address(0));                                                   \
        uint64_t start = hm_now();                                                                                     \
        real arguments;                                                                                                \
        if (!error || *error == HM_MPI_SUCCESS)                                                                        \
            hm_attach(start);                                                                                          \
    }

ALL(INIT, mpi_init, (int *error), (error))
ALL(INIT, mpi_init_thread, (I required, int *provided, int *error), (required, provided, error))

#define FINALIZE(symbol, unused)                                                                                       \
    HM_EXPORT void symbol(int *error) {                                                                                \
        FORTRAN_REAL(symbol, (int *))                                                                                  \
        uint64_t start = hm_now();                                                                                     \
        hm_leave_job(start);                                                                                           \
        real(error);                                                                                                   \
        hm_detach(start);                                                                                              \
    }

ALL(FINALIZE, mpi_finalize, )
