/* Plays NCCL with every event that it has, in the order in which it has them, towards a profiler plugin.
 *
 *   nccl_chain PLUGIN VERSION [CALLS]
 *
 * VERSION is that of the interface which this NCCL speaks. CALLS collectives and sends, 3 by default, are each made in a
 * group, enqueued, sent over the network in steps and run on the GPU. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl_abi.h"

enum { CHANNELS = 3, STEPS = 2 };

static const struct nccl_profiler *profiler;
static int version, mask;
static void *context;

/* By version: the events there are. */
static const int known[] = {0, 0x3F, 0x3F, 0xFF, 0xFF, 0xFFF, 0x7FFF};

/* By event: those that, when asked for, have NCCL report it. */
static const int reported_for[] = {
    [0] = 0xDF, [1] = 0xDA, [2] = 0xDC, [3] = 0x98, [4] = 0x90, [5] = 0x20, [6] = 0x40, [7] = 0x80,
    [8] = 0x7FDF, [9] = 0x72DA, [10] = 0x4DC, [11] = 0x800, [12] = 0x7000, [13] = 0x2000, [14] = 0x4000};

union event {
    struct nccl_descriptor new;
    struct nccl_descriptor_v3 old;
};

static void *start(uint64_t type, void *parent, const union event *given) {
    union event event = given ? *given : (union event){0};
    void *handle = NULL;
    if (!(type & known[version]) || !(mask & known[version] & reported_for[__builtin_ctzl(type)]))
        return NULL;
    event.new.parent = parent;
    event.new.rank = 5;
    if (version >= 5)
        event.new.type = type;
    else
        event.old.type = (uint8_t)type;
    profiler->start(context, &handle, &event);
    return handle;
}

static void stop(void *handle) {
    if (handle)
        profiler->stop(handle);
}

static void record(void *handle, int state, uint64_t value) {
    union nccl_state new = {.kernel.timer = value};
    union nccl_state_v3 old = {.appended = (int)value};
    bool early = state <= 18 && state != 8; /* versions 1 to 3 have these */
    if (!handle || (version < 4 && !early) || (version == 4 && state > 22))
        return;
    if (version >= 4)
        profiler->record(handle, state, &new);
    else
        profiler->record(handle, state, &old);
}

static void *start_collective(void *api, void *group, int i, uint8_t channels) {
    static const char *const functions[] = {"AllReduce", "Broadcast", "AllGather"};
    union event event = {0};
    const char *function = functions[i % 3], *datatype = "ncclBfloat16", *algorithm = "NVLS", *protocol = "LL128";
    void *send = (void *)(intptr_t)(0x1000 + i), *recv = (void *)(intptr_t)(0x2000 + i);
    if (version >= 4)
        event.new.what.collective = (struct nccl_collective){(uint64_t)i, function, send, recv, 1000, 1, datatype, channels,
                                                         16, algorithm, protocol, version >= 5 ? group : NULL};
    else if (version == 3)
        event.old.what.collective_v3 = (struct nccl_collective_v3){NULL, 0, (uint64_t)i, function, send, recv, 1000, 1, datatype,
                                                              channels, 16, algorithm, protocol};
    else if (version == 2)
        event.old.what.collective_v2 = (struct nccl_collective_v2){NULL, 0, (uint64_t)i, function, send, recv, 1000, 1, datatype,
                                                              0, channels, 16, algorithm, protocol};
    else
        event.old.what.collective_v1 = (struct nccl_collective_v1){
            NULL, 0, (uint64_t)i, (uint8_t[]){4, 0, 2}[i % 3], send, recv, 1000, 1, 9, 0, 0, channels, 16, 4, 1, 0, 0};
    return start(NCCL_COLLECTIVE, version >= 5 ? api : group, &event);
}

static void *start_p2p(void *api, void *group, int i, uint8_t channels) {
    union event event = {0};
    void *buffer = (void *)(intptr_t)(0x3000 + i);
    if (version >= 4)
        event.new.what.p2p = (struct nccl_p2p){"Send", buffer, "ncclFloat64", 77, 3, channels, version >= 5 ? group : NULL};
    else if (version >= 2)
        event.old.what.p2p_v3 = (struct nccl_p2p_v3){NULL, 0, "Send", buffer, "ncclFloat64", 77, 3};
    else
        event.old.what.p2p_v1 = (struct nccl_p2p_v1){NULL, 0, 6, buffer, 8, 77, 3};
    return start(NCCL_P2P, version >= 5 ? api : group, &event);
}

static void network(void *operation, int i) {
    union event event = {.new.what.proxy_op = {getpid(), 2, 1, STEPS, 4096, 1}};
    void *proxy = start(NCCL_PROXY_OP, operation, &event);
    record(proxy, 19, 0);
    for (int step = 0; step < STEPS; step++) {
        event = (union event){.new.what.step = step};
        void *running = start(NCCL_PROXY_STEP, proxy, &event);
        event = (union event){.new.what.net = {65536 + i, (void *)(intptr_t)(0x4000 + i)}};
        void *packet = start(NCCL_NET_PLUGIN, running, &event);
        record(running, 9, 0);
        record(running, 20, 512);
        record(packet, 21, 9);
        stop(packet);
        stop(running);
    }
    stop(proxy);
    event = (union event){.new.what.proxy_op = {1, 2, 1, STEPS, 4096, 0}}; /* on behalf of another process */
    stop(start(NCCL_PROXY_OP, (void *)0x55, &event));
}

static void kernel(void *operation, int channels, int i) {
    void *running[CHANNELS];
    for (int c = 0; c < channels; c++) {
        union event event = {.new.what.kernel = {(uint8_t)c, 1000000ull * (uint64_t)(i + 1)}};
        running[c] = start(NCCL_KERNEL_CHANNEL, operation, &event);
    }
    for (int c = 0; c < channels; c++) {
        record(running[c], 22, 1000000ull * (uint64_t)(i + 1) + 500);
        stop(running[c]);
    }
}

static void copy_engines(void *api, int i) {
    union event event = {.new.what.copy = {.function = "AllGather", .strategy = "UC", .copy_seq = (uint32_t)i}};
    void *copy = start(NCCL_COPY_COLLECTIVE, api, &event);
    void *sync = start(NCCL_COPY_SYNC, copy, NULL), *batch = start(NCCL_COPY_BATCH, copy, NULL);
    stop(sync);
    stop(batch);
    stop(copy);
}

static void play(int calls) {
    for (int i = 0; i < calls; i++) {
        void *api_group = start(NCCL_GROUP_API, NULL, NULL);
        void *api = start(NCCL_COLLECTIVE_API, api_group, NULL), *api_p2p = start(NCCL_P2P_API, api_group, NULL);
        record(api_group, 23, 0);
        stop(api);
        stop(api_p2p);
        void *group = start(NCCL_GROUP, NULL, NULL), *launch = start(NCCL_KERNEL_LAUNCH, api_group, NULL);
        void *collective = start_collective(api, group, i, CHANNELS), *send = start_p2p(api_p2p, group, i, 1);
        stop(collective);
        stop(send);
        stop(launch);
        stop(group);
        stop(api_group);
        void *control = start(NCCL_PROXY_CONTROL, NULL, NULL);
        record(control, 17, (uint64_t)i);
        stop(control);
        network(collective, i);
        kernel(collective, CHANNELS, i);
        kernel(send, 1, i);
        copy_engines(api, i);
    }
}

static void say(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
    (void)level, (void)flags, (void)file, (void)line, (void)format;
}

int main(int argc, char **argv) {
    char symbol[] = "ncclProfiler_v0";
    void *plugin = argc >= 3 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    int error;
    if (!plugin)
        return 2;
    version = atoi(argv[2]);
    symbol[sizeof symbol - 2] = argv[2][0];
    profiler = dlsym(plugin, symbol);
    if (!profiler)
        return 2;
    if (version <= 3)
        error = profiler->init.v1(&context, &mask);
    else if (version == 4)
        error = profiler->init.v4(&context, &mask, "world", 77, 2, 8, 5, say);
    else
        error = profiler->init.v5(&context, 77, &mask, "world", 2, 8, 5, say);
    if (error)
        return 3;
    play(argc > 3 ? atoi(argv[3]) : 3);
    printf("%#x\n", (unsigned)mask);
    if (context)
        profiler->finalize(context);
    return 0;
}
