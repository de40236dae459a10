/* The collectives: blocking, nonblocking and persistent, each with int and with MPI_Count counts. */
#include "pmpi_real.h"
#include "pmpi_requests.h"

int64_t hm_type_bytes(int64_t count, HM_HANDLE type) {
    static int (*type_size)(HM_HANDLE, int *);
    int size = 0;
    if (!type_size)
        type_size = (int (*)(HM_HANDLE, int *))hm_library_symbol("PMPI_Type_size", NULL);
    return type_size && type_size(type, &size) == HM_MPI_SUCCESS ? count * size : 0;
}

static int64_t sum_int(const int *counts, int n) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

static int64_t sum_int64_t(const int64_t *counts, int n) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

static int64_t each_int(const int *counts, const void *types, int n) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += hm_type_bytes(counts[i], hm_handle_at(types, i));
    return sum;
}

static int64_t each_int64_t(const int64_t *counts, const void *types, int n) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += hm_type_bytes(counts[i], hm_handle_at(types, i));
    return sum;
}

#define IN_PLACE(buffer) ((buffer) == hm_library.in_place)
#define BYTES(count, type) hm_type_bytes(count, type)
#define OWN_RANK (call.comm->rank)
#define BLOCKS ((int64_t)call.comm->blocks)
#define NEIGHBORS ((int64_t)call.comm->neighbors)
#define SUM(counts, n) HM_JOIN(sum_, N)(counts, (int)(n))
#define EACH(counts, types, n) HM_JOIN(each_, N)(counts, types, (int)(n))

#define BLOCKING(symbol, op_, declaration, arguments, root, bytes)                                                     \
    HM_EXPORT int symbol declaration {                                                                                 \
        HM_REAL(symbol, declaration)                                                                                   \
        if (!hm_observed())                                                                                            \
            return real arguments;                                                                                     \
        struct hm_call call;                                                                                           \
        hm_begin_collective(&call, hm_comm_of(comm), HM_OP_##op_, 0);                                                  \
        int result = real arguments;                                                                                   \
        bool good = result == HM_MPI_SUCCESS;                                                                          \
        hm_end_collective(&call, HM_OP_##op_, good ? 0 : HM_ERROR, root, good ? (bytes) : 0);                          \
        return result;                                                                                                 \
    }

#define NONBLOCKING(symbol, op_, declaration, arguments, root, bytes)                                                  \
    HM_EXPORT int symbol(HM_INNER declaration, HM_HANDLE *request) {                                                   \
        HM_REAL(symbol, (HM_INNER declaration, HM_HANDLE *))                                                           \
        if (!hm_observed())                                                                                            \
            return real(HM_INNER arguments, request);                                                                  \
        struct hm_call call;                                                                                           \
        hm_begin_collective(&call, hm_comm_of(comm), HM_OP_##op_, HM_NONBLOCKING);                                     \
        int result = real(HM_INNER arguments, request);                                                                \
        bool good = result == HM_MPI_SUCCESS;                                                                          \
        uint8_t flags = good ? HM_NONBLOCKING : HM_NONBLOCKING | HM_ERROR;                                             \
        hm_end_collective(&call, HM_OP_##op_, flags, root, good ? (bytes) : 0);                                        \
        if (good)                                                                                                      \
            hm_request_add(hm_handle_at(request, 0), &(struct hm_request){.comm = call.comm, .seq = call.seq});        \
        return result;                                                                                                 \
    }

#define PERSISTENT(symbol, op_, declaration, arguments, root_, bytes_)                                                 \
    HM_EXPORT int symbol(HM_INNER declaration, HM_HANDLE info, HM_HANDLE *request) {                                   \
        HM_REAL(symbol, (HM_INNER declaration, HM_HANDLE, HM_HANDLE *))                                                \
        int result = real(HM_INNER arguments, info, request);                                                          \
        if (hm_observed() && result == HM_MPI_SUCCESS) {                                                               \
            struct hm_call call = {.comm = hm_comm_of(comm)};                                                          \
            struct hm_request made = {.comm = call.comm, .persistent = true, .idle = true,                            \
                                      .operation = HM_OP_##op_, .root = root_, .bytes = bytes_};                       \
            hm_request_add(hm_handle_at(request, 0), &made);                                                           \
        }                                                                                                              \
        return result;                                                                                                 \
    }

/* Persistent collectives and large counts only where the library has them: see mpi.py. */
#ifndef HM_PERSISTENT
#undef PERSISTENT
#define PERSISTENT(...)
#endif

/* int counts */
#define N int
#define COLLECTIVE(Name, name, ...)                                                                                    \
    BLOCKING(MPI_##Name, __VA_ARGS__)                                                                                  \
    NONBLOCKING(MPI_I##name, __VA_ARGS__)                                                                              \
    PERSISTENT(MPI_##Name##_init, __VA_ARGS__)
#include "pmpi_collectives.h"
COLLECTIVE(Barrier, barrier, barrier, (HM_HANDLE comm), (comm), -1, 0)
#undef COLLECTIVE
#undef N

#ifdef HM_LARGE /* MPI_Count counts */
#define N int64_t
#define COLLECTIVE(Name, name, ...)                                                                                    \
    BLOCKING(MPI_##Name##_c, __VA_ARGS__)                                                                              \
    NONBLOCKING(MPI_I##name##_c, __VA_ARGS__)                                                                          \
    PERSISTENT(MPI_##Name##_init_c, __VA_ARGS__)
#include "pmpi_collectives.h"
#undef COLLECTIVE
#undef N
#endif
