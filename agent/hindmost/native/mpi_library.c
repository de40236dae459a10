/* Finding the MPI library and telling which it is. */
#define _GNU_SOURCE
#include "mpi_library.h"

#include <dlfcn.h>
#include <string.h>

struct hm_library hm_library;

static void *opened; /* the library's handle, once found */

/* A handle on a loaded object, without loading or keeping anything more. */
static void *loaded(const char *path) { return dlopen(path, RTLD_LAZY | RTLD_NOLOAD); }

static void *library_of(const void *address) {
    Dl_info info;
    return dladdr(address, &info) && info.dli_fname ? loaded(info.dli_fname) : NULL;
}

static void *find_library(const void *caller) {
    void *init = dlsym(RTLD_NEXT, "PMPI_Init");
    if (!init) { /* linked by an object that was itself loaded with RTLD_LOCAL, as a Python extension is */
        void *user = library_of(caller);
        init = user ? dlsym(user, "PMPI_Init") : NULL;
    }
    return init ? library_of(init) : NULL;
}

/* An object of Open MPI's. A program may hold the one that counts, its linker's copy of the library's. */
static void *object(const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    return found ? found : dlsym(opened, name);
}

static void know_open_mpi(void *world) {
    hm_library = (struct hm_library){
        .known = true,
        .comm_world = (HM_HANDLE)world,
        .comm_null = (HM_HANDLE)object("ompi_mpi_comm_null"),
        .request_null = (HM_HANDLE)object("ompi_request_null"),
        .request_empty = (HM_HANDLE)object("ompi_request_empty"),
        .any_source = -1,
        .byte = (HM_HANDLE)object("ompi_mpi_byte"),
        .in_place = (void *)1,
        .cartesian = 1,
        .graph = 2,
        .dist_graph = 3,
    };
}

/* The ABI of MPICH and its kin since 2014 (libmpi.so.12). */
static void know_mpich(void) {
    hm_library = (struct hm_library){
        .known = true,
        .int_handles = true,
        .comm_world = 0x44000000,
        .comm_null = 0x04000000,
        .request_null = 0x2c000000,
        .any_source = -2,
        .byte = 0x4c00010d,
        .in_place = (void *)-1,
        .cartesian = 2,
        .graph = 1,
        .dist_graph = 3,
        .source_offset = 8,
        .status_ignore = (void *)1,
        .statuses_ignore = (void *)1,
    };
}

/* The ABI that MPI 5 prescribes (libmpi_abi.so.1). */
static void know_standard(void) {
    hm_library = (struct hm_library){
        .known = true,
        .comm_world = 0x101,
        .comm_null = 0x100,
        .request_null = 0x180,
        .any_source = -1,
        .byte = 0x247,
        .in_place = (void *)1,
        .cartesian = 211,
        .graph = 212,
        .dist_graph = 213,
    };
}

static void recognise(void) {
    char text[16384] = ""; /* MPI_MAX_LIBRARY_VERSION_STRING is at most 8192 */
    int length = 0;
    Dl_info info = {0};
    void *world = dlsym(opened, "ompi_mpi_comm_world") ? object("ompi_mpi_comm_world") : NULL;
    int (*version)(char *, int *) = (int (*)(char *, int *))dlsym(opened, "PMPI_Get_library_version");
    if (world) {
        know_open_mpi(world);
    } else if (version && version(text, &length) == HM_MPI_SUCCESS) {
        dladdr((void *)version, &info);
        if (info.dli_fname && strstr(info.dli_fname, "libmpi_abi"))
            know_standard();
        else if (strstr(text, "MPICH") || strstr(text, "Intel(R) MPI") || strstr(text, "MVAPICH"))
            know_mpich();
    }
}

void *hm_library_symbol(const char *name, const void *caller) {
    if (!opened) {
        opened = find_library(caller);
        if (opened)
            recognise();
    }
    void *symbol = opened ? dlsym(opened, name) : NULL;
    return symbol ? symbol : dlsym(RTLD_NEXT, name);
}
