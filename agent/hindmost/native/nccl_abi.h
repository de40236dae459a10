/* NCCL's profiler plugin interface, versions 4 (NCCL 2.27) and 5 (2.28 and later): only what the plugin uses of it.
 *
 * NCCL looks for a symbol ncclProfiler_vN, a table of functions, and passes pointers to the descriptors below.
 */
#ifndef HINDMOST_NCCL_ABI_H
#define HINDMOST_NCCL_ABI_H

#include <stddef.h>
#include <stdint.h>

enum nccl_event { NCCL_COLLECTIVE = 1 << 1, NCCL_P2P = 1 << 2, NCCL_KERNEL_CHANNEL = 1 << 6 };

enum { NCCL_KERNEL_CHANNEL_STOP = 22, NCCL_OK = 0 };

struct nccl_collective {
    uint64_t seq; /* counts each function separately */
    const char *function;
    const void *send;
    void *recv;
    size_t count;
    int root;
    const char *datatype;
    uint8_t channels, warps;
    const char *algorithm, *protocol;
};

struct nccl_p2p {
    const char *function;
    void *buffer;
    const char *datatype;
    size_t count;
    int peer;
    uint8_t channels;
};

struct nccl_kernel_channel {
    uint8_t channel;
    uint64_t timer; /* the GPU's globaltimer, ns, when the channel's kernel began */
};

union nccl_what {
    struct nccl_collective collective;
    struct nccl_p2p p2p;
    struct nccl_kernel_channel kernel;
};

struct nccl_descriptor_v4 {
    uint8_t type;
    void *parent;
    int rank;
    union nccl_what what;
};

struct nccl_descriptor_v5 {
    uint64_t type;
    void *parent;
    int rank;
    union nccl_what what;
};

union nccl_state {
    struct {
        uint64_t timer; /* globaltimer, ns, when the channel's kernel ended */
    } kernel;
};

typedef void (*nccl_log)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

struct nccl_profiler_v4 {
    const char *name;
    int (*init)(void **context, int *mask, const char *comm_name, uint64_t comm_id, int nodes, int ranks, int rank,
                nccl_log log);
    int (*start)(void *context, void **handle, struct nccl_descriptor_v4 *descriptor);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, union nccl_state *arguments);
    int (*finalize)(void *context);
};

struct nccl_profiler_v5 {
    const char *name;
    int (*init)(void **context, uint64_t comm_id, int *mask, const char *comm_name, int nodes, int ranks, int rank,
                nccl_log log);
    int (*start)(void *context, void **handle, struct nccl_descriptor_v5 *descriptor);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, union nccl_state *arguments);
    int (*finalize)(void *context);
};

#endif
