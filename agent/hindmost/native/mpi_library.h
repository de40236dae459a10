/* The MPI library that is loaded in this process, whichever it is.
 *
 * The shim includes no mpi.h: a handle is a pointer in Open MPI and in the standard ABI of MPI 5, an int in MPICH, Intel
 * MPI, MVAPICH and Cray MPICH. Either travels in one register or stack slot, so the wrappers take and pass on HM_HANDLE
 * and one shim serves them all, also where only an MPI's run-time part is installed. Before a handle is compared or
 * looked up, hm_handle() drops what an int leaves undefined.
 */
#ifndef HINDMOST_MPI_LIBRARY_H
#define HINDMOST_MPI_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ring_write.h"

typedef uintptr_t HM_HANDLE;

enum { HM_MPI_SUCCESS = 0, HM_MPI_UNDEFINED = -32766 };

struct hm_library {
    bool known;       /* one whose constants we know: only then are PMPI functions called on our own account */
    bool int_handles; /* MPICH's kind */
    HM_HANDLE comm_world, comm_null, request_null, byte;
    int cartesian, graph, dist_graph; /* what MPI_Topo_test says */
    const void *in_place;
    HM_HANDLE request_empty; /* Open MPI's request of what is complete already */
    int any_source;
    size_t source_offset; /* of MPI_SOURCE in MPI_Status */
    void *status_ignore;
    void *statuses_ignore;
};

extern HM_HIDDEN struct hm_library hm_library;

/* The library's function of this name; NULL where it has none. `caller` is an address in the code that called us: the
 * library may be loaded out of global sight, and is then found among what that code was linked with. */
HM_HIDDEN void *hm_library_symbol(const char *name, const void *caller);

static inline HM_HANDLE hm_handle(HM_HANDLE raw) { return hm_library.int_handles ? (HM_HANDLE)(uint32_t)raw : raw; }

static inline int hm_err_other(void) { return hm_library.int_handles ? 15 : 16; }

/* The i-th handle of an array of handles. */
static inline HM_HANDLE hm_handle_at(const void *array, int i) {
    return hm_library.int_handles ? ((const uint32_t *)array)[i] : ((const HM_HANDLE *)array)[i];
}

#endif
