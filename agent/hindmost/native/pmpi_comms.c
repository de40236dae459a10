/* Communicators, named alike on all of their ranks without a message.
 *
 * A communicator's id is a hash of the set of its members' ranks in MPI_COMM_WORLD and of its ordinal among the
 * communicators of that set. Making a communicator is collective over its members, so all of them count alike. When one
 * is freed, the next with the same members takes over its ordinal, its sequence and its place in the ring's table:
 * a program that makes and frees them for ever stays bounded.
 */
#include "pmpi.h"

#include <stdlib.h>
#include <string.h>

static struct hm_communicator table[HM_COMMS];
static uint32_t used; /* entries of the table that were ever taken */
static struct hm_communicator untracked = {.index = HM_NONE16}; /* when the table is full, and for MPI_COMM_NULL */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int keyval;
static HM_HANDLE world_group;

static struct {
    int (*comm_group)(HM_HANDLE, HM_HANDLE *);
    int (*comm_remote_group)(HM_HANDLE, HM_HANDLE *);
    int (*comm_test_inter)(HM_HANDLE, int *);
    int (*comm_rank)(HM_HANDLE, int *);
    int (*comm_get_name)(HM_HANDLE, char *, int *);
    int (*comm_set_attr)(HM_HANDLE, int, void *);
    int (*comm_create_keyval)(void *, void *, int *, void *);
    int (*group_size)(HM_HANDLE, int *);
    int (*group_translate_ranks)(HM_HANDLE, int, const int *, HM_HANDLE, int *);
    int (*group_free)(HM_HANDLE *);
    int (*topo_test)(HM_HANDLE, int *);
    int (*cartdim_get)(HM_HANDLE, int *);
    int (*graph_neighbors_count)(HM_HANDLE, int, int *);
    int (*dist_graph_neighbors_count)(HM_HANDLE, int *, int *, int *);
} mpi;

static bool find(void *target, const char *name) { return (*(void **)target = hm_library_symbol(name, NULL)) != NULL; }

static bool find_functions(void) {
    return find(&mpi.comm_group, "PMPI_Comm_group") && find(&mpi.comm_remote_group, "PMPI_Comm_remote_group") &&
           find(&mpi.comm_test_inter, "PMPI_Comm_test_inter") && find(&mpi.comm_rank, "PMPI_Comm_rank") &&
           find(&mpi.comm_get_name, "PMPI_Comm_get_name") && find(&mpi.comm_set_attr, "PMPI_Comm_set_attr") &&
           find(&mpi.comm_create_keyval, "PMPI_Comm_create_keyval") && find(&mpi.group_size, "PMPI_Group_size") &&
           find(&mpi.group_translate_ranks, "PMPI_Group_translate_ranks") &&
           find(&mpi.group_free, "PMPI_Group_free") && find(&mpi.topo_test, "PMPI_Topo_test") &&
           find(&mpi.cartdim_get, "PMPI_Cartdim_get") &&
           find(&mpi.graph_neighbors_count, "PMPI_Graph_neighbors_count") &&
           find(&mpi.dist_graph_neighbors_count, "PMPI_Dist_graph_neighbors_count");
}

static int copy_nothing(HM_HANDLE comm, int key, void *extra, void *in, void *out, int *copy) {
    (void)comm, (void)key, (void)extra, (void)in, (void)out;
    *copy = 0;
    return HM_MPI_SUCCESS;
}

/* MPI calls this when a communicator of ours is freed: its handle may come back as another's. */
static int freed(HM_HANDLE comm, int key, void *entry, void *extra) {
    (void)comm, (void)key, (void)extra;
    __atomic_store_n(&((struct hm_communicator *)entry)->handle, 0, __ATOMIC_RELEASE);
    __atomic_fetch_add(&hm_pmpi.generation, 1, __ATOMIC_RELEASE);
    return HM_MPI_SUCCESS;
}

bool hm_comm_init(void) {
    return find_functions() && mpi.comm_create_keyval(copy_nothing, freed, &keyval, NULL) == HM_MPI_SUCCESS &&
           mpi.comm_group(hm_library.comm_world, &world_group) == HM_MPI_SUCCESS;
}

/* splitmix64's finaliser */
static uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

/* A hash of the set of a group's ranks in the world, which does not depend on their order; 0 when it can not be had. */
static uint64_t hash_group(HM_HANDLE group, int *size) {
    uint64_t sum = 0;
    int *ranks = NULL;
    *size = 0;
    if (mpi.group_size(group, size) == HM_MPI_SUCCESS && *size > 0)
        ranks = malloc(2 * sizeof *ranks * (size_t)*size);
    if (ranks) {
        for (int i = 0; i < *size; i++)
            ranks[i] = i;
        if (mpi.group_translate_ranks(group, *size, ranks, world_group, ranks + *size) == HM_MPI_SUCCESS)
            for (int i = 0; i < *size; i++)
                sum += mix((uint64_t)(int64_t)ranks[*size + i]);
        free(ranks);
    }
    mpi.group_free(&group);
    return sum;
}

static int count_neighbors(HM_HANDLE comm, int rank) {
    int topology = HM_MPI_UNDEFINED, out = 0, in = 0, weighted = 0;
    if (mpi.topo_test(comm, &topology) != HM_MPI_SUCCESS)
        return 0;
    if (topology == hm_library.cartesian && mpi.cartdim_get(comm, &out) == HM_MPI_SUCCESS)
        return 2 * out;
    if (topology == hm_library.graph && mpi.graph_neighbors_count(comm, rank, &out) == HM_MPI_SUCCESS)
        return out;
    if (topology == hm_library.dist_graph && mpi.dist_graph_neighbors_count(comm, &in, &out, &weighted) == HM_MPI_SUCCESS)
        return out;
    return 0;
}

/* What a communicator is: its members' hash, its size and this rank's place in it. */
static struct hm_communicator describe(HM_HANDLE comm) {
    struct hm_communicator found = {.handle = comm, .index = HM_NONE16, .rank = -1};
    HM_HANDLE group = 0;
    int inter = 0, remote = 0;
    mpi.comm_rank(comm, &found.rank);
    mpi.comm_test_inter(comm, &inter);
    if (mpi.comm_group(comm, &group) == HM_MPI_SUCCESS)
        found.members = hash_group(group, &found.size);
    if (inter && mpi.comm_remote_group(comm, &group) == HM_MPI_SUCCESS)
        found.members += hash_group(group, &remote);
    found.blocks = inter ? remote : found.size;
    found.size += remote;
    found.neighbors = inter ? 0 : count_neighbors(comm, found.rank);
    return found;
}

/* The place that a communicator with these members takes: the first freed one of that set, or a new one. */
static struct hm_communicator *place_for(const struct hm_communicator *found, uint32_t *ordinal) {
    *ordinal = 0;
    for (uint32_t i = 0; i < used; i++) {
        if (table[i].members != found->members || table[i].size != found->size)
            continue;
        if (__atomic_load_n(&table[i].handle, __ATOMIC_ACQUIRE) == 0)
            return &table[i];
        ++*ordinal;
    }
    return used < HM_COMMS ? &table[used] : NULL;
}

static struct hm_communicator *take_place(struct hm_communicator *found) {
    char name[1024] = ""; /* MPI_MAX_OBJECT_NAME is at most 256 */
    int length;
    struct hm_communicator *place = place_for(found, &found->ordinal);
    if (!place)
        return NULL;
    if (place == &table[used]) {
        used++;
        mpi.comm_get_name(found->handle, name, &length);
        uint64_t id = mix(found->members ^ mix((uint64_t)found->size << 32 | found->ordinal)) | 1; /* 0 means none */
        found->index = hm_ring_comm(&hm_pmpi.ring, id, found->rank, found->size, name);
        *place = *found;
    } else {
        place->rank = found->rank;
        place->blocks = found->blocks;
        place->neighbors = found->neighbors;
        __atomic_store_n(&place->handle, found->handle, __ATOMIC_RELEASE);
    }
    return place;
}

static struct hm_communicator *known(HM_HANDLE comm) {
    for (uint32_t i = 0; i < used; i++)
        if (table[i].handle == comm)
            return &table[i];
    return NULL;
}

struct hm_communicator *hm_comm_find(HM_HANDLE comm) {
    if (comm == hm_library.comm_null)
        return &untracked; /* the call itself will say what is wrong with it */
    pthread_mutex_lock(&lock);
    uint32_t generation = __atomic_load_n(&hm_pmpi.generation, __ATOMIC_ACQUIRE);
    struct hm_communicator *place = known(comm);
    if (!place) {
        struct hm_communicator found = describe(comm);
        place = found.members ? take_place(&found) : NULL;
        if (place)
            mpi.comm_set_attr(comm, keyval, place);
    }
    pthread_mutex_unlock(&lock);
    if (!place)
        return &untracked;
    if (hm_thread.generation != generation) {
        memset(hm_thread.cached_handle, 0, sizeof hm_thread.cached_handle);
        hm_thread.generation = generation;
    }
    uint32_t slot = (uint32_t)(comm * 0x9E3779B97F4A7C15ull >> 58);
    hm_thread.cached_handle[slot] = comm;
    hm_thread.cached[slot] = place;
    return place;
}
