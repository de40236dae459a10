/* Every collective, in MPI's order of arguments:
 *
 *   COLLECTIVE(Name, name, operation, (declaration), (arguments), root or -1, bytes that this rank contributes)
 *
 * Included with COLLECTIVE and N, the type of a count (int, or MPI_Count in the large-count form), defined. */
#define H HM_HANDLE

COLLECTIVE(Bcast, bcast, broadcast, (void *buffer, N n, H type, int root, H comm), (buffer, n, type, root, comm), root,
           BYTES(n, type))
COLLECTIVE(Reduce, reduce, reduce, (const void *in, void *out, N n, H type, H op, int root, H comm),
           (in, out, n, type, op, root, comm), root, BYTES(n, type))
COLLECTIVE(Allreduce, allreduce, all_reduce, (const void *in, void *out, N n, H type, H op, H comm),
           (in, out, n, type, op, comm), -1, BYTES(n, type))
COLLECTIVE(Gather, gather, gather, (const void *in, N n, H type, void *out, N m, H mtype, int root, H comm),
           (in, n, type, out, m, mtype, root, comm), root, IN_PLACE(in) ? BYTES(m, mtype) : BYTES(n, type))
COLLECTIVE(Gatherv, gatherv, gather,
           (const void *in, N n, H type, void *out, const N *ms, const void *places, H mtype, int root, H comm),
           (in, n, type, out, ms, places, mtype, root, comm), root,
           IN_PLACE(in) ? BYTES(ms[OWN_RANK], mtype) : BYTES(n, type))
COLLECTIVE(Scatter, scatter, scatter, (const void *in, N n, H type, void *out, N m, H mtype, int root, H comm),
           (in, n, type, out, m, mtype, root, comm), root, IN_PLACE(out) ? BYTES(n, type) : BYTES(m, mtype))
COLLECTIVE(Scatterv, scatterv, scatter,
           (const void *in, const N *ns, const void *places, H type, void *out, N m, H mtype, int root, H comm),
           (in, ns, places, type, out, m, mtype, root, comm), root,
           IN_PLACE(out) ? BYTES(ns[OWN_RANK], type) : BYTES(m, mtype))
COLLECTIVE(Allgather, allgather, all_gather, (const void *in, N n, H type, void *out, N m, H mtype, H comm),
           (in, n, type, out, m, mtype, comm), -1, IN_PLACE(in) ? BYTES(m, mtype) : BYTES(n, type))
COLLECTIVE(Allgatherv, allgatherv, all_gather,
           (const void *in, N n, H type, void *out, const N *ms, const void *places, H mtype, H comm),
           (in, n, type, out, ms, places, mtype, comm), -1,
           IN_PLACE(in) ? BYTES(ms[OWN_RANK], mtype) : BYTES(n, type))
COLLECTIVE(Alltoall, alltoall, all_to_all, (const void *in, N n, H type, void *out, N m, H mtype, H comm),
           (in, n, type, out, m, mtype, comm), -1, BLOCKS * (IN_PLACE(in) ? BYTES(m, mtype) : BYTES(n, type)))
COLLECTIVE(Alltoallv, alltoallv, all_to_all,
           (const void *in, const N *ns, const void *places, H type, void *out, const N *ms, const void *mplaces,
            H mtype, H comm),
           (in, ns, places, type, out, ms, mplaces, mtype, comm), -1,
           IN_PLACE(in) ? BYTES(SUM(ms, BLOCKS), mtype) : BYTES(SUM(ns, BLOCKS), type))
COLLECTIVE(Alltoallw, alltoallw, all_to_all,
           (const void *in, const N *ns, const void *places, const void *types, void *out, const N *ms,
            const void *mplaces, const void *mtypes, H comm),
           (in, ns, places, types, out, ms, mplaces, mtypes, comm), -1,
           IN_PLACE(in) ? EACH(ms, mtypes, BLOCKS) : EACH(ns, types, BLOCKS))
COLLECTIVE(Reduce_scatter, reduce_scatter, reduce_scatter,
           (const void *in, void *out, const N *ms, H type, H op, H comm), (in, out, ms, type, op, comm), -1,
           BYTES(SUM(ms, BLOCKS), type))
COLLECTIVE(Reduce_scatter_block, reduce_scatter_block, reduce_scatter,
           (const void *in, void *out, N m, H type, H op, H comm), (in, out, m, type, op, comm), -1,
           BLOCKS * BYTES(m, type))
COLLECTIVE(Scan, scan, scan, (const void *in, void *out, N n, H type, H op, H comm), (in, out, n, type, op, comm), -1,
           BYTES(n, type))
COLLECTIVE(Exscan, exscan, scan, (const void *in, void *out, N n, H type, H op, H comm), (in, out, n, type, op, comm),
           -1, BYTES(n, type))
COLLECTIVE(Neighbor_allgather, neighbor_allgather, neighbor_all_gather,
           (const void *in, N n, H type, void *out, N m, H mtype, H comm), (in, n, type, out, m, mtype, comm), -1,
           BYTES(n, type))
COLLECTIVE(Neighbor_allgatherv, neighbor_allgatherv, neighbor_all_gather,
           (const void *in, N n, H type, void *out, const N *ms, const void *places, H mtype, H comm),
           (in, n, type, out, ms, places, mtype, comm), -1, BYTES(n, type))
COLLECTIVE(Neighbor_alltoall, neighbor_alltoall, neighbor_all_to_all,
           (const void *in, N n, H type, void *out, N m, H mtype, H comm), (in, n, type, out, m, mtype, comm), -1,
           NEIGHBORS * BYTES(n, type))
COLLECTIVE(Neighbor_alltoallv, neighbor_alltoallv, neighbor_all_to_all,
           (const void *in, const N *ns, const void *places, H type, void *out, const N *ms, const void *mplaces,
            H mtype, H comm),
           (in, ns, places, type, out, ms, mplaces, mtype, comm), -1, BYTES(SUM(ns, NEIGHBORS), type))
COLLECTIVE(Neighbor_alltoallw, neighbor_alltoallw, neighbor_all_to_all,
           (const void *in, const N *ns, const void *places, const void *types, void *out, const N *ms,
            const void *mplaces, const void *mtypes, H comm),
           (in, ns, places, types, out, ms, mplaces, mtypes, comm), -1, EACH(ns, types, NEIGHBORS))

#undef H
