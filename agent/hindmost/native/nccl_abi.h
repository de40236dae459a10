/* NCCL's profiler plugin interface, versions 1 (NCCL 2.23) to 6 (2.30).
 *
 * NCCL looks for a symbol ncclProfiler_vN, a table of functions, and passes pointers to the descriptors below. What all
 * versions share has the same place in each: type, parent, rank, then the union. Of versions 4 to 6 the newest layout
 * serves: each adds members to the union, or fields behind the older ones.
 */
#ifndef HINDMOST_NCCL_ABI_H
#define HINDMOST_NCCL_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { NCCL_OLDEST = 1, NCCL_NEWEST = 6 };

enum nccl_event {
    NCCL_GROUP = 1 << 0,
    NCCL_COLLECTIVE = 1 << 1,
    NCCL_P2P = 1 << 2,
    NCCL_PROXY_OP = 1 << 3,
    NCCL_PROXY_STEP = 1 << 4,
    NCCL_PROXY_CONTROL = 1 << 5,
    NCCL_KERNEL_CHANNEL = 1 << 6, /* from version 3 on; with times from 4 on */
    NCCL_NET_PLUGIN = 1 << 7,     /* from version 3 on */
    NCCL_GROUP_API = 1 << 8,      /* from version 5 on, as the next three */
    NCCL_COLLECTIVE_API = 1 << 9,
    NCCL_P2P_API = 1 << 10,
    NCCL_KERNEL_LAUNCH = 1 << 11,
    NCCL_COPY_COLLECTIVE = 1 << 12, /* by copy engines; from version 6 on, as the next two */
    NCCL_COPY_SYNC = 1 << 13,
    NCCL_COPY_BATCH = 1 << 14
};

/* States that are reported of an event. */
enum {
    NCCL_STEP_FIRST = 8, /* of a proxy's step: 8 to 12, and 20 from version 4 on */
    NCCL_STEP_LAST = 12,
    NCCL_CONTROL_FIRST = 13,
    NCCL_CONTROL_LAST = 18,
    NCCL_KERNEL_CHANNEL_STOP = 22, /* the last of version 4 */
    NCCL_V5_LAST = 24
};

enum { NCCL_OK = 0 };

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
    void *group; /* from version 5 on: what is the parent in older ones */
};

struct nccl_p2p {
    const char *function;
    void *buffer;
    const char *datatype;
    size_t count;
    int peer;
    uint8_t channels;
    void *group; /* from version 5 on */
};

struct nccl_proxy_op {
    pid_t pid; /* of the process whose event the parent is */
    uint8_t channel;
    int peer, steps, chunk_bytes, is_send;
};

struct nccl_kernel_channel {
    uint8_t channel;
    uint64_t timer; /* the GPU's globaltimer, ns, when the channel's kernel began */
};

struct nccl_net_plugin {
    int64_t id;
    void *data;
};

struct nccl_copy_collective { /* the longest member of the union */
    uint64_t seq;
    const char *function;
    const void *send;
    void *recv;
    size_t count;
    int root;
    const char *datatype, *strategy;
    bool batch_sync;
    uint32_t batch_size, batches, copy_seq;
    void *stream;
};

union nccl_what {
    struct nccl_collective collective;
    struct nccl_p2p p2p;
    struct nccl_proxy_op proxy_op;
    int step;
    struct nccl_kernel_channel kernel;
    struct nccl_net_plugin net;
    struct nccl_copy_collective copy;
};

struct nccl_descriptor {
    union {
        uint64_t type;     /* from version 5 on */
        uint8_t old_type;  /* before; the bytes behind it are padding */
    };
    void *parent;
    int rank;
    union nccl_what what;
};

/* ---- versions 1 to 3 ---- */

struct nccl_collective_v3 {
    const char *name;
    uint64_t comm, seq;
    const char *function;
    const void *send;
    void *recv;
    size_t count;
    int root;
    const char *datatype;
    uint8_t channels, warps;
    const char *algorithm, *protocol;
};

struct nccl_collective_v2 {
    const char *name;
    uint64_t comm, seq;
    const char *function;
    const void *send;
    void *recv;
    size_t count;
    int root;
    const char *datatype;
    size_t traffic_bytes;
    uint8_t channels, warps;
    const char *algorithm, *protocol;
};

struct nccl_collective_v1 {
    const char *name;
    uint64_t comm, seq;
    uint8_t function;
    const void *send;
    void *recv;
    size_t count;
    int root;
    uint8_t datatype;
    uint32_t operation;
    size_t traffic_bytes;
    uint8_t channels, warps, algorithm, protocol;
    int collnet, nvls;
};

struct nccl_p2p_v3 {
    const char *name;
    uint64_t comm;
    const char *function;
    void *buffer;
    const char *datatype;
    size_t count;
    int peer;
};

struct nccl_p2p_v1 {
    const char *name;
    uint64_t comm;
    uint8_t function;
    void *buffer;
    uint8_t datatype;
    size_t count;
    int peer;
};

struct nccl_descriptor_v3 {
    uint8_t type;
    void *parent;
    int rank;
    union {
        struct nccl_collective_v1 collective_v1;
        struct nccl_collective_v2 collective_v2;
        struct nccl_collective_v3 collective_v3;
        struct nccl_p2p_v1 p2p_v1;
        struct nccl_p2p_v3 p2p_v3; /* version 2's, too */
        struct nccl_proxy_op proxy_op;
        int step;
        uint8_t channel;
        struct nccl_net_plugin net;
    } what;
};

/* ---- what a state carries ---- */

union nccl_state { /* from version 4 on */
    size_t step_bytes;
    int appended;
    void *data;
    struct {
        uint64_t timer; /* globaltimer, ns, when the channel's kernel ended */
    } kernel;
};

union nccl_state_v3 {
    struct {
        size_t bytes;
        int steps;
    } proxy_op;
    int appended;
};

/* ---- the table ---- */

typedef void (*nccl_log)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

typedef int nccl_init_v1(void **context, int *mask); /* versions 1 to 3 */
typedef int nccl_init_v4(void **context, int *mask, const char *comm_name, uint64_t comm_id, int nodes, int ranks,
                         int rank, nccl_log log);
typedef int nccl_init_v5(void **context, uint64_t comm_id, int *mask, const char *comm_name, int nodes, int ranks,
                         int rank, nccl_log log); /* version 6's, too */

struct nccl_profiler {
    const char *name;
    union {
        nccl_init_v1 *v1;
        nccl_init_v4 *v4;
        nccl_init_v5 *v5;
    } init;
    int (*start)(void *context, void **handle, void *descriptor);
    int (*stop)(void *handle);
    int (*record)(void *handle, int state, void *arguments);
    int (*finalize)(void *context);
};

#endif
