/* The other profiler: found as NCCL finds one, and called as NCCL would call it if it stood in the slot alone.
 *
 * That means three things. It speaks the newest version that both it and this NCCL know, and what NCCL says in a newer
 * one is put into it. It gets the events of its own mask and, as from NCCL, the parents of these, but no event that only
 * hindmost asked for. And what NCCL keeps as a handle, where hindmost records nothing, is the other's own.
 */
#define _GNU_SOURCE
#include "nccl_next.h"
#include "identity_env.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LINE = 1024, NONE = 0 };

static const struct nccl_profiler *other;
static int asked;  /* the version that NCCL speaks */
static int spoken; /* the version of `other`: the same or older */
static int *mask;  /* what the other asks for. It outlives this library, which NCCL may unload before the other ends */

/* ---- finding it ---- */

/* NAME=VALUE of NCCL's configuration files: the user's, or the one that NCCL_CONF_FILE names, then the machine's. */
static const char *configured(const char *path, const char *name) {
    static char line[LINE];
    size_t length = strlen(name);
    const char *found = NULL;
    FILE *file = path ? fopen(path, "re") : NULL;
    while (file && !found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\r\n")] = '\0';
        if (strncmp(line, name, length) == 0 && line[length] == '=')
            found = line + length + 1;
    }
    if (file)
        fclose(file);
    return found;
}

static const char *wanted(void) {
    static const char variable[] = "NCCL_PROFILER_PLUGIN";
    const char *next = getenv("HINDMOST_NCCL_NEXT"), *file = getenv("NCCL_CONF_FILE"), *home = getenv("HOME");
    char own[LINE] = "";
    if (next && *next)
        return next;
    if (!(file && *file) && home && snprintf(own, sizeof own, "%s/.nccl.conf", home) < (int)sizeof own)
        file = own;
    next = configured(file, variable);
    return next ? next : configured("/etc/nccl.conf", variable);
}

/* A library by its name, else as PREFIX-NAME.so; NULL and dlerror() without one. */
static void *open_library(const char *name, const char *prefix, int flags) {
    char path[LINE];
    void *library = dlopen(strcasecmp(name, "STATIC_PLUGIN") ? name : NULL, RTLD_NOW | RTLD_LOCAL | flags);
    size_t length = strlen(name);
    bool file = strchr(name, '/') || (strncmp(name, "lib", 3) == 0 && length > 3 && !strcmp(name + length - 3, ".so"));
    if (library || file || snprintf(path, sizeof path, "%s-%s.so", prefix, name) >= (int)sizeof path)
        return library;
    return dlopen(path, RTLD_NOW | RTLD_LOCAL | flags);
}

/* NCCL looks for a profiler in its network plugin, too. It is loaded already, where there is one. */
static void *network_plugin(void) {
    const char *name = getenv("NCCL_NET_PLUGIN");
    void *library = name && *name ? open_library(name, "libnccl-net", RTLD_NOLOAD) : NULL;
    return library ? library : dlopen("libnccl-net.so", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
}

static const struct nccl_profiler *table(void *library, int version) {
    char symbol[] = "ncclProfiler_v0";
    symbol[sizeof symbol - 2] = (char)('0' + version);
    return dlsym(library, symbol);
}

static void left_out(const char *name, const char *why) {
    fprintf(stderr, "hindmost: the NCCL profiler %s is left out: %s\n", name, why);
}

void hm_next_load(int version) {
    const char *name = wanted();
    asked = version;
    if (name && strcasecmp(name, "none") == 0)
        return;
    void *library = open_library(name ? name : "libnccl-profiler.so", "libnccl-profiler", 0);
    char why[LINE];
    if (!library) {
        const char *error = dlerror(); /* gone with the next call */
        snprintf(why, sizeof why, "%s", error ? error : "it cannot be loaded");
        library = network_plugin();
    }
    if (!library && name)
        left_out(name, why);
    if (!library || dlsym(library, "hindmost_nccl_pause")) /* hindmost itself, by another path */
        return;
    for (int v = version; v >= NCCL_OLDEST && !other; v--) {
        other = table(library, v);
        spoken = v;
    }
    if (!other && name) {
        snprintf(why, sizeof why, "it offers no version of the interface from %d to %d, which this NCCL speaks", NCCL_OLDEST,
                 version);
        left_out(name, why);
    }
    mask = other ? calloc(1, sizeof *mask) : NULL;
    other = mask ? other : NULL;
}

/* ---- its communicators ---- */

/* The events that each version has. */
static const int known[NCCL_NEWEST + 1] = {0, 0x3F, 0x3F, 0xFF, 0xFF, 0xFFF, 0x7FFF};

int hm_next_mask(void) {
    return other ? __atomic_load_n(mask, __ATOMIC_RELAXED) & known[spoken] : NONE;
}

void hm_next_init(int version, struct next_context *next, const struct nccl_opened *opened) {
    int error;
    *next = (struct next_context){0};
    if (!other || version != asked)
        return;
    if (spoken <= 3)
        error = other->init.v1(&next->context, mask);
    else if (spoken == 4)
        error = other->init.v4(&next->context, mask, opened->name, opened->id, opened->nodes, opened->ranks, opened->rank,
                               opened->log);
    else
        error = other->init.v5(&next->context, opened->id, mask, opened->name, opened->nodes, opened->ranks, opened->rank,
                               opened->log);
    next->taken_part = error == NCCL_OK;
    if (error)
        fprintf(stderr, "hindmost: the NCCL profiler %s failed with error %d; hindmost goes on without it\n",
                other->name ? other->name : "", error);
}

void hm_next_finalize(struct next_context *next) {
    bool taken_part = next->taken_part;
    next->taken_part = false;
    if (taken_part && next->context)
        other->finalize(next->context);
}

/* ---- events ---- */

/* Whether NCCL, with the other's mask, would report an event: it does for an event that is asked for, and for its parents. */
static bool is_for(int events, uint64_t type) {
    enum {
        STEP = NCCL_PROXY_STEP | NCCL_NET_PLUGIN,
        OP = NCCL_PROXY_OP | STEP,
        COLLECTIVE = NCCL_COLLECTIVE | NCCL_KERNEL_CHANNEL | OP,
        P2P = NCCL_P2P | NCCL_KERNEL_CHANNEL | OP,
        COPY = NCCL_COPY_COLLECTIVE | NCCL_COPY_SYNC | NCCL_COPY_BATCH,
        GROUP = NCCL_GROUP | COLLECTIVE | P2P,
        COLLECTIVE_API = NCCL_COLLECTIVE_API | COLLECTIVE | COPY,
        P2P_API = NCCL_P2P_API | P2P,
        GROUP_API = NCCL_GROUP_API | NCCL_KERNEL_LAUNCH | GROUP | COLLECTIVE_API | P2P_API
    };
    switch (type) {
    case NCCL_GROUP: return events & GROUP;
    case NCCL_COLLECTIVE: return events & COLLECTIVE;
    case NCCL_P2P: return events & P2P;
    case NCCL_PROXY_OP: return events & OP;
    case NCCL_PROXY_STEP: return events & STEP;
    case NCCL_GROUP_API: return events & GROUP_API;
    case NCCL_COLLECTIVE_API: return events & COLLECTIVE_API;
    case NCCL_P2P_API: return events & P2P_API;
    case NCCL_COPY_COLLECTIVE: return events & COPY;
    default: return events & type;
    }
}

/* ---- versions 1 to 3 from newer ones ---- */

/* What version 1 numbers and later ones name; one that is not among them is the last, as NCCL has it. */
static const char *const functions[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv",
                                        "Recv", "Send"};
static const uint8_t function_numbers[] = {0, 1, 2, 3, 4, 5, 7, 6};
static const char *const datatypes[] = {"ncclInt8", "ncclInt32", "ncclUint32", "ncclInt64", "ncclUint64", "ncclFloat16",
                                        "ncclFloat32", "ncclBfloat16", "ncclFloat64"};
static const uint8_t datatype_numbers[] = {0, 2, 3, 4, 5, 6, 7, 9, 8};
static const char *const algorithms[] = {"TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
static const char *const protocols[] = {"LL", "LL128", "SIMPLE"};

#define PLACE(names, text) place(names, sizeof(names) / sizeof *(names), text)

static size_t place(const char *const *names, size_t count, const char *text) {
    size_t i = 0;
    while (i + 1 < count && !(text && strcmp(names[i], text) == 0))
        i++;
    return i;
}

/* A collective in version 3, from a newer one; its name and communicator are not said any more. */
static struct nccl_collective_v3 collective_v3(const struct nccl_collective *call) {
    return (struct nccl_collective_v3){.seq = call->seq, .function = call->function, .send = call->send,
                                       .recv = call->recv, .count = call->count, .root = call->root,
                                       .datatype = call->datatype, .channels = call->channels, .warps = call->warps,
                                       .algorithm = call->algorithm, .protocol = call->protocol};
}

static struct nccl_collective_v3 collective_from_v2(const struct nccl_collective_v2 *call) {
    return (struct nccl_collective_v3){.name = call->name, .comm = call->comm, .seq = call->seq,
                                       .function = call->function, .send = call->send, .recv = call->recv,
                                       .count = call->count, .root = call->root, .datatype = call->datatype,
                                       .channels = call->channels, .warps = call->warps,
                                       .algorithm = call->algorithm, .protocol = call->protocol};
}

static void put_collective(struct nccl_descriptor_v3 *to, const struct nccl_collective_v3 *call, size_t traffic_bytes) {
    if (spoken == 3)
        to->what.collective_v3 = *call;
    else if (spoken == 2)
        to->what.collective_v2 = (struct nccl_collective_v2){
            .name = call->name, .comm = call->comm, .seq = call->seq, .function = call->function, .send = call->send,
            .recv = call->recv, .count = call->count, .root = call->root, .datatype = call->datatype,
            .traffic_bytes = traffic_bytes, .channels = call->channels, .warps = call->warps,
            .algorithm = call->algorithm, .protocol = call->protocol};
    else
        to->what.collective_v1 = (struct nccl_collective_v1){
            .name = call->name, .comm = call->comm, .seq = call->seq,
            .function = function_numbers[PLACE(functions, call->function)], .send = call->send, .recv = call->recv,
            .count = call->count, .root = call->root, .datatype = datatype_numbers[PLACE(datatypes, call->datatype)],
            .traffic_bytes = traffic_bytes, .channels = call->channels, .warps = call->warps,
            .algorithm = (uint8_t)PLACE(algorithms, call->algorithm),
            .protocol = (uint8_t)PLACE(protocols, call->protocol)};
}

static void put_p2p(struct nccl_descriptor_v3 *to, const struct nccl_p2p_v3 *call) {
    if (spoken >= 2)
        to->what.p2p_v3 = *call;
    else
        to->what.p2p_v1 = (struct nccl_p2p_v1){.name = call->name, .comm = call->comm,
                                               .function = function_numbers[PLACE(functions, call->function)],
                                               .buffer = call->buffer,
                                               .datatype = datatype_numbers[PLACE(datatypes, call->datatype)],
                                               .count = call->count, .peer = call->peer};
}

/* The descriptor in the version from 1 to 3 that the other speaks. */
static struct nccl_descriptor_v3 older(const struct nccl_descriptor *from) {
    const struct nccl_descriptor_v3 *old = (const void *)from; /* where NCCL speaks 2 or 3 itself */
    struct nccl_descriptor_v3 to = {.type = from->old_type, .parent = from->parent, .rank = from->rank};
    struct nccl_collective_v3 collective;
    switch (from->old_type) {
    case NCCL_COLLECTIVE:
        if (asked >= 4)
            collective = collective_v3(&from->what.collective);
        else
            collective = asked == 3 ? old->what.collective_v3 : collective_from_v2(&old->what.collective_v2);
        put_collective(&to, &collective, asked == 2 ? old->what.collective_v2.traffic_bytes : 0);
        break;
    case NCCL_P2P:
        if (asked >= 4) {
            const struct nccl_p2p *call = &from->what.p2p;
            put_p2p(&to, &(struct nccl_p2p_v3){.function = call->function, .buffer = call->buffer,
                                               .datatype = call->datatype, .count = call->count, .peer = call->peer});
        } else {
            put_p2p(&to, &old->what.p2p_v3);
        }
        break;
    case NCCL_PROXY_OP: to.what.proxy_op = from->what.proxy_op; break;
    case NCCL_PROXY_STEP: to.what.step = from->what.step; break;
    case NCCL_KERNEL_CHANNEL: to.what.channel = from->what.kernel.channel; break;
    case NCCL_NET_PLUGIN: to.what.net = from->what.net; break;
    default: break;
    }
    return to;
}

/* From version 5 on an operation's parent is the call that made it; before, its group. */
static void *older_parent(const struct nccl_descriptor *from) {
    if (asked >= 5 && spoken <= 4 && from->type == NCCL_COLLECTIVE)
        return from->what.collective.group;
    if (asked >= 5 && spoken <= 4 && from->type == NCCL_P2P)
        return from->what.p2p.group;
    return from->parent;
}

void *hm_next_start(const struct next_context *next, struct nccl_descriptor *descriptor) {
    uint64_t type = asked >= 5 ? descriptor->type : descriptor->old_type;
    void *handle = NULL, *parent = descriptor->parent;
    if (!next->taken_part || !(type & known[spoken]) || !is_for(hm_next_mask(), type))
        return NULL;
    descriptor->parent = older_parent(descriptor);
    if (spoken <= 3 && asked > spoken) {
        struct nccl_descriptor_v3 converted = older(descriptor);
        other->start(next->context, &handle, &converted);
    } else {
        other->start(next->context, &handle, descriptor);
    }
    descriptor->parent = parent;
    return handle;
}

void hm_next_stop(void *handle) {
    if (other)
        other->stop(handle);
}

/* Versions 1 to 3 have other arguments, and fewer states than newer ones. */
static void record_older(void *handle, int state, const union nccl_state *arguments) {
    union nccl_state_v3 old = {0};
    bool control = state >= NCCL_CONTROL_FIRST && state <= NCCL_CONTROL_LAST;
    if (control && arguments)
        old.appended = arguments->appended;
    if (control || (state >= NCCL_STEP_FIRST && state <= NCCL_STEP_LAST))
        other->record(handle, state, &old);
}

void hm_next_record(void *handle, int state, void *arguments) {
    if (!other)
        return;
    if (spoken <= 3 && asked >= 4)
        record_older(handle, state, arguments);
    else if (spoken == asked || state <= (spoken == 4 ? NCCL_KERNEL_CHANNEL_STOP : NCCL_V5_LAST))
        other->record(handle, state, arguments);
}
