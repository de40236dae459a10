/* Calls that make a communicator. They are wrapped so that each set of members counts its communicators in the order in
 * which they are made, which is the same on all of its ranks; the order of first use need not be. */
#include "pmpi_real.h"

typedef HM_HANDLE H;

static void count_in(const void *made) {
    H comm = hm_handle_at(made, 0);
    if (comm != hm_library.comm_null)
        hm_comm_of(comm);
}

#define MAKE(symbol, declaration, arguments, made)                                                                     \
    HM_EXPORT int symbol declaration {                                                                                 \
        HM_REAL(symbol, declaration)                                                                                   \
        if (!hm_observed())                                                                                            \
            return real arguments;                                                                                     \
        struct hm_call call;                                                                                           \
        hm_begin_p2p(&call, NULL, HM_OP_comm_create, 0, 0, HM_NONE16);                                                 \
        int result = real arguments;                                                                                   \
        if (result == HM_MPI_SUCCESS)                                                                                  \
            count_in(made);                                                                                            \
        hm_end_p2p(&call, HM_OP_comm_create, 0, result, -1, 0);                                                        \
        return result;                                                                                                 \
    }

MAKE(MPI_Comm_dup, (H comm, H *made), (comm, made), made)
MAKE(MPI_Comm_dup_with_info, (H comm, H info, H *made), (comm, info, made), made)
MAKE(MPI_Comm_split, (H comm, int color, int key, H *made), (comm, color, key, made), made)
MAKE(MPI_Comm_split_type, (H comm, int type, int key, H info, H *made), (comm, type, key, info, made), made)
MAKE(MPI_Comm_create, (H comm, H group, H *made), (comm, group, made), made)
MAKE(MPI_Comm_create_group, (H comm, H group, int tag, H *made), (comm, group, tag, made), made)
MAKE(MPI_Cart_create, (H comm, int n, const int *dims, const int *periods, int reorder, H *made),
     (comm, n, dims, periods, reorder, made), made)
MAKE(MPI_Cart_sub, (H comm, const int *remain, H *made), (comm, remain, made), made)
MAKE(MPI_Graph_create, (H comm, int n, const int *index, const int *edges, int reorder, H *made),
     (comm, n, index, edges, reorder, made), made)
MAKE(MPI_Dist_graph_create,
     (H comm, int n, const int *sources, const int *degrees, const int *destinations, const int *weights, H info,
      int reorder, H *made),
     (comm, n, sources, degrees, destinations, weights, info, reorder, made), made)
MAKE(MPI_Dist_graph_create_adjacent,
     (H comm, int in, const int *sources, const int *in_weights, int out, const int *destinations,
      const int *out_weights, H info, int reorder, H *made),
     (comm, in, sources, in_weights, out, destinations, out_weights, info, reorder, made), made)
MAKE(MPI_Intercomm_create, (H comm, int leader, H peer, int remote_leader, int tag, H *made),
     (comm, leader, peer, remote_leader, tag, made), made)
MAKE(MPI_Intercomm_merge, (H comm, int high, H *made), (comm, high, made), made)
