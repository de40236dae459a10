/* Compares what the shim holds true of an MPI library with that library's own mpi.h. */
#include <mpi.h>
#include <stdio.h>

#include "mpi_library.h"

static int differ;

static void compare(const char *name, uintptr_t ours, uintptr_t theirs) {
    if (ours != theirs) {
        printf("%s: %#lx, and in mpi.h %#lx\n", name, (unsigned long)ours, (unsigned long)theirs);
        differ = 1;
    }
}
#define COMPARE(ours, theirs) compare(#theirs, (uintptr_t)(ours), (uintptr_t)(theirs))

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    hm_library_symbol("PMPI_Init", (void *)main);
    COMPARE(hm_library.known, 1);
    COMPARE(hm_library.int_handles, sizeof(MPI_Comm) == sizeof(int));
    COMPARE(hm_library.comm_world, MPI_COMM_WORLD);
    COMPARE(hm_library.comm_null, MPI_COMM_NULL);
    COMPARE(hm_library.request_null, MPI_REQUEST_NULL);
    COMPARE(hm_library.byte, MPI_BYTE);
    COMPARE(hm_library.in_place, MPI_IN_PLACE);
    COMPARE(hm_library.cartesian, MPI_CART);
    COMPARE(hm_library.graph, MPI_GRAPH);
    COMPARE(hm_library.dist_graph, MPI_DIST_GRAPH);
    COMPARE(hm_library.source_offset, offsetof(MPI_Status, MPI_SOURCE));
    COMPARE(hm_library.status_ignore, MPI_STATUS_IGNORE);
    COMPARE(hm_library.statuses_ignore, MPI_STATUSES_IGNORE);
    COMPARE(HM_MPI_SUCCESS, MPI_SUCCESS);
    COMPARE(hm_err_other(), MPI_ERR_OTHER);
    COMPARE(HM_MPI_UNDEFINED, MPI_UNDEFINED);
    MPI_Finalize();
    return differ;
}
