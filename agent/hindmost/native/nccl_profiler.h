/* Between the plugin's two halves: nccl_profiler.c, which NCCL calls, and nccl_operations.c, which records. */
#ifndef HINDMOST_NCCL_PROFILER_H
#define HINDMOST_NCCL_PROFILER_H

#include "nccl_abi.h"
#include "nccl_next.h"
#include "ring_write.h"

enum {
    HM_NCCL_RECENT = 256,  /* collectives a communicator remembers, to name the next one in flight */
    HM_NCCL_FUNCTIONS = 16 /* functions counted per communicator: all that have a name */
};

struct recent {
    uint64_t what, start;
};

/* A communicator. */
struct context {
    uint32_t taken;
    struct next_context next;
    uint16_t comm; /* in the ring's table */
    int slot;      /* of the open table; -1: none */
    uint32_t started, finished;
    uint64_t algorithm[HM_NCCL_FUNCTIONS]; /* what was last said of each function's */
    uint8_t doubted[HM_NCCL_FUNCTIONS];    /* calls of each function whose times will not be believed */
    struct recent recent[HM_NCCL_RECENT];
};

enum {
    NAME_OTHER,
    NAME_ALL_REDUCE,
    NAME_BROADCAST,
    NAME_REDUCE,
    NAME_ALL_GATHER,
    NAME_REDUCE_SCATTER,
    NAME_ALL_TO_ALL,
    NAME_GATHER,
    NAME_SCATTER,
    NAME_SEND,
    NAME_RECV,
    NAME_GPU_CLOCK,
    NAME_ALGORITHMS
};

extern HM_HIDDEN struct hm_ring hm_nccl_ring;

HM_HIDDEN void hm_nccl_register_names(void);
/* `next` is the handle that another profiler behind this one has for the event; it is kept with hindmost's own. */
HM_HIDDEN void hm_nccl_start_collective(struct context *context, void **handle, const struct nccl_collective *call,
                                        void *next);
HM_HIDDEN void hm_nccl_start_p2p(struct context *context, void **handle, const struct nccl_p2p *call, void *next);
HM_HIDDEN void hm_nccl_start_channel(void **handle, void *parent, const struct nccl_kernel_channel *channel, void *next);
HM_HIDDEN void *hm_nccl_next_of(void *handle);
HM_HIDDEN void hm_nccl_stop(void *handle);
HM_HIDDEN void hm_nccl_stop_channel(void *handle, uint64_t timer);

#endif
