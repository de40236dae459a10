/* Another profiler plugin, which writes down every call it gets: what stands in NCCL's slot where hindmost is not there.
 *
 * Compiled with -DVERSION=N it offers that version of the interface alone. OTHER_LOG names its file, OTHER_MASK the events
 * that it asks for; OTHER_LATER those that it asks for once it has seen an event; OTHER_FAILS makes its init fail. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_abi.h"

#define PASTE(a, b) a##b
#define TABLE(version) PASTE(ncclProfiler_v, version)

enum { EVENTS = 100000 };

static FILE *out;
static int *mask, communicators;
static char events[EVENTS]; /* a handle is the address of one */
static int started;

static int number(const void *handle) { return handle ? (int)((const char *)handle - events) : -1; }

static int begin(void **context, int *asked_for) {
    static int contexts[16];
    const char *events_wanted = getenv("OTHER_MASK");
    out = out ? out : fopen(getenv("OTHER_LOG"), "w");
    mask = asked_for;
    if (getenv("OTHER_FAILS"))
        return 3;
    *mask = (int)strtol(events_wanted, NULL, 0);
    *context = &contexts[communicators];
    contexts[communicators] = communicators;
    communicators++;
    return 0;
}

static const char *text(const char *word) { return word ? word : "none"; }

#if VERSION <= 3
static int init(void **context, int *asked_for) { return begin(context, asked_for); }
#define INIT .v1 = init
#elif VERSION == 4
static int init(void **context, int *asked_for, const char *name, uint64_t id, int nodes, int ranks, int rank, nccl_log log) {
    int error = begin(context, asked_for);
    fprintf(out, "init %s %lu %d %d %d %d\n", text(name), (unsigned long)id, nodes, ranks, rank, log != NULL);
    return error;
}
#define INIT .v4 = init
#else
static int init(void **context, uint64_t id, int *asked_for, const char *name, int nodes, int ranks, int rank, nccl_log log) {
    int error = begin(context, asked_for);
    fprintf(out, "init %s %lu %d %d %d %d\n", text(name), (unsigned long)id, nodes, ranks, rank, log != NULL);
    return error;
}
#define INIT .v5 = init
#endif

static void describe(const struct nccl_descriptor *event, uint64_t type) {
#if VERSION <= 3
    const struct nccl_descriptor_v3 *old = (const void *)event;
#endif
    switch (type) {
    case NCCL_COLLECTIVE: {
#if VERSION == 1
        const struct nccl_collective_v1 *call = &old->what.collective_v1;
        fprintf(out, " %s %lu %lu f%d %zu %d t%d %zu %d %d a%d p%d", text(call->name), (unsigned long)call->comm,
                (unsigned long)call->seq, call->function, call->count, call->root, call->datatype, call->traffic_bytes,
                call->channels, call->warps, call->algorithm, call->protocol);
#elif VERSION == 2
        const struct nccl_collective_v2 *call = &old->what.collective_v2;
        fprintf(out, " %s %lu %zu", text(call->name), (unsigned long)call->comm, call->traffic_bytes);
#elif VERSION == 3
        const struct nccl_collective_v3 *call = &old->what.collective_v3;
        fprintf(out, " %s %lu", text(call->name), (unsigned long)call->comm);
#else
        const struct nccl_collective *call = &event->what.collective;
#endif
#if VERSION >= 2
        fprintf(out, " %lu %s %zu %d %s %d %d %s %s", (unsigned long)call->seq, call->function, call->count, call->root,
                call->datatype, call->channels, call->warps, call->algorithm, call->protocol);
#endif
#if VERSION >= 5
        fprintf(out, " group %d", number(call->group));
#endif
        fprintf(out, " %p %p", call->send, call->recv);
        break;
    }
    case NCCL_P2P: {
#if VERSION == 1
        const struct nccl_p2p_v1 *call = &old->what.p2p_v1;
        fprintf(out, " %s f%d t%d", text(call->name), call->function, call->datatype);
#elif VERSION <= 3
        const struct nccl_p2p_v3 *call = &old->what.p2p_v3;
        fprintf(out, " %s %s %s", text(call->name), call->function, call->datatype);
#else
        const struct nccl_p2p *call = &event->what.p2p;
        fprintf(out, " %s %s %d", call->function, call->datatype, call->channels);
#endif
#if VERSION >= 5
        fprintf(out, " group %d", number(call->group));
#endif
        fprintf(out, " %zu %d %p", call->count, call->peer, call->buffer);
        break;
    }
    case NCCL_PROXY_OP:
        fprintf(out, " %d %d %d %d %d", event->what.proxy_op.channel, event->what.proxy_op.peer,
                event->what.proxy_op.steps, event->what.proxy_op.chunk_bytes, event->what.proxy_op.is_send);
        break;
    case NCCL_PROXY_STEP: fprintf(out, " %d", event->what.step); break;
    case NCCL_KERNEL_CHANNEL:
        fprintf(out, " %d", event->what.kernel.channel);
#if VERSION >= 4
        fprintf(out, " %lu", (unsigned long)event->what.kernel.timer);
#endif
        break;
    case NCCL_NET_PLUGIN: fprintf(out, " %ld %p", (long)event->what.net.id, event->what.net.data); break;
    case NCCL_COPY_COLLECTIVE: fprintf(out, " %s %u", event->what.copy.strategy, event->what.copy.copy_seq); break;
    default: break;
    }
}

static int start(void *context, void **handle, void *descriptor) {
    struct nccl_descriptor *event = descriptor;
    uint64_t type = VERSION >= 5 ? event->type : event->old_type;
    const char *later = getenv("OTHER_LATER");
    bool foreign = type == NCCL_PROXY_OP && event->what.proxy_op.pid == 1; /* its parent is another process's */
    if (started == EVENTS - 1)
        abort();
    char *made = &events[__atomic_add_fetch(&started, 1, __ATOMIC_RELAXED)];
    *made = (char)*(int *)context;
    fprintf(out, "start %d of %d: type %lu rank %d parent %d", number(made), *made, (unsigned long)type, event->rank,
            foreign ? (int)(intptr_t)event->parent : number(event->parent));
    describe(event, type);
    fprintf(out, "\n");
    if (later)
        *mask = (int)strtol(later, NULL, 0);
    *handle = made;
    return 7; /* NCCL does not look at it */
}

static int stop(void *handle) {
    fprintf(out, "stop %d\n", number(handle));
    return 7;
}

static int record(void *handle, int state, void *arguments) {
    fprintf(out, "state %d of %d:", state, number(handle));
    if (arguments && VERSION >= 4)
        fprintf(out, " %lu", (unsigned long)((union nccl_state *)arguments)->kernel.timer);
    else if (arguments)
        fprintf(out, " %d", ((union nccl_state_v3 *)arguments)->appended);
    fprintf(out, "\n");
    return 7;
}

static int finalize(void *context) {
    fprintf(out, "finalize %d\n", *(int *)context);
    fflush(out);
    return 7;
}

__attribute__((visibility("default"))) const struct nccl_profiler TABLE(VERSION) = {
    "other", {INIT}, start, stop, record, finalize,
};
