/* The profiler plugin that has NCCL's one slot where hindmost is not there: every call is passed on to it. */
#ifndef HINDMOST_NCCL_NEXT_H
#define HINDMOST_NCCL_NEXT_H

#include "nccl_abi.h"
#include "ring_write.h"

/* What NCCL tells of a communicator when it is made; versions 1 to 3 tell nothing. */
struct nccl_opened {
    uint64_t id;
    const char *name;
    int nodes, ranks, rank;
    nccl_log log;
};

/* A communicator of the other's. */
struct next_context {
    bool taken_part; /* its init succeeded */
    void *context;
};

/* Find and load it, for an NCCL that speaks this version: once, before any other function here. A communicator of an NCCL
 * that speaks another one (a process may have two) is not passed on. */
HM_HIDDEN void hm_next_load(int version);

/* The events that the other asks NCCL for; none without one. It may change them at any time. */
HM_HIDDEN int hm_next_mask(void);

HM_HIDDEN void hm_next_init(int version, struct next_context *next, const struct nccl_opened *opened);
HM_HIDDEN void hm_next_finalize(struct next_context *next);

/* The other's handle of an event; NULL where it has none. The descriptor's parent is already one of the other's. */
HM_HIDDEN void *hm_next_start(const struct next_context *next, struct nccl_descriptor *descriptor);
HM_HIDDEN void hm_next_stop(void *handle);
HM_HIDDEN void hm_next_record(void *handle, int state, void *arguments);

#endif
