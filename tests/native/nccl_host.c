/* Plays NCCL towards a profiler plugin: loads it, and calls it as NCCL does, with times that the test knows.
 *
 *   nccl_host PLUGIN VERSION SCENE
 *
 * Operation i of a scene has its channels on the GPU from 1000000 * (i + 1) ns on; channel c starts c ns later and
 * ends 500 + c ns after the first start. The host's clock is HOST_AHEAD before the GPU's, each thread's where its
 * operations are: one is enqueued when it starts, and reported 100000 ns later. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nccl_abi.h"

#define HOST_AHEAD 1000000000000ull

enum { REPORTED_NS = 100000, CHANNELS = 4, MANY = 5000, THREADS = 8, EACH = 250 }; /* THREADS * EACH fit the pool */

static const struct nccl_profiler *profiler;
static int version;

static __thread uint64_t host_ns = HOST_AHEAD;

/* The plugin's clock, too: a program's own functions come before the C library's. */
__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *time) {
    (void)clock;
    *time = (struct timespec){(time_t)(host_ns / 1000000000), (long)(host_ns % 1000000000)};
    return 0;
}

struct communicator {
    void *context;
    int mask;
};

static struct communicator open_communicator(const char *name, uint64_t id, int ranks, int rank) {
    struct communicator made = {.mask = -1};
    int error = version > 4 ? profiler->init.v5(&made.context, id, &made.mask, name, 1, ranks, rank, NULL)
                            : profiler->init.v4(&made.context, &made.mask, name, id, 1, ranks, rank, NULL);
    if (error)
        exit(3);
    return made;
}

static void *start(struct communicator *in, uint64_t type, void *parent, union nccl_what what) {
    void *handle = NULL;
    uint64_t padding = version > 4 ? 0 : ~(uint64_t)0xFF; /* anything may be in it */
    struct nccl_descriptor descriptor = {.type = type | padding, .parent = parent, .what = what};
    if (!(in->mask & type))
        return NULL;
    if (profiler->start(in->context, &handle, &descriptor))
        exit(3);
    return handle;
}

static void stop(void *handle) {
    if (handle && profiler->stop(handle))
        exit(3);
}

static void channels_run(struct communicator *in, void *handle, int first, int count, uint64_t begin) {
    void *running[CHANNELS];
    for (int c = first; c < count; c++)
        running[c] = start(in, NCCL_KERNEL_CHANNEL, handle,
                           (union nccl_what){.kernel = {.channel = (uint8_t)c, .timer = begin + (uint64_t)c}});
    for (int c = first; c < count; c++) {
        union nccl_state ended = {.kernel = {.timer = begin + 500 + (uint64_t)c}};
        if (!running[c])
            continue;
        profiler->record(running[c], NCCL_KERNEL_CHANNEL_STOP, &ended);
        stop(running[c]);
    }
}

/* When operation i begins, by the GPU's clock. */
static uint64_t begin_of(int i) { return 1000000ull * (uint64_t)(i + 1); }

static void *enqueue(struct communicator *in, const char *function, int i, int root) {
    host_ns = HOST_AHEAD + begin_of(i);
    union nccl_what what = {.collective = {.seq = (uint64_t)i, .function = function, .count = 1000, .root = root,
                                           .datatype = "ncclBfloat16", .channels = CHANNELS, .warps = 16,
                                           .algorithm = "RING", .protocol = "LL128"}};
    void *handle = start(in, NCCL_COLLECTIVE, NULL, what);
    stop(handle);
    return handle;
}

static void *enqueue_p2p(struct communicator *in, const char *function, int i, int peer) {
    host_ns = HOST_AHEAD + begin_of(i);
    union nccl_what what = {.p2p = {.function = function, .datatype = "ncclInt8", .count = 77, .peer = peer,
                                    .channels = 2}};
    void *handle = start(in, NCCL_P2P, NULL, what);
    stop(handle);
    return handle;
}

static void run_one(struct communicator *in, const char *function, int i) {
    void *handle = enqueue(in, function, i, 1);
    host_ns += REPORTED_NS;
    channels_run(in, handle, 0, CHANNELS, begin_of(i));
}

/* Each kind of operation once, on two communicators. */
static void plain(void) {
    struct communicator world = open_communicator("world", 0xABCDEF, 4, 2), pair = open_communicator(NULL, 77, 2, 1);
    run_one(&world, "AllReduce", 0);
    run_one(&world, "Broadcast", 1);
    run_one(&pair, "ReduceScatter", 2);
    run_one(&world, "AllReduce", 3);
    channels_run(&pair, enqueue_p2p(&pair, "Send", 4, 3), 0, 2, begin_of(4));
    run_one(&pair, "SomethingNew", 5);
    profiler->finalize(pair.context);
}

/* Enqueued and never run: what a hang looks like. The second of three is the oldest still in flight. */
static void hang(void) {
    struct communicator world = open_communicator("world", 1, 4, 2);
    run_one(&world, "AllReduce", 0);
    enqueue(&world, "AllGather", 1, 0);
    enqueue(&world, "AllReduce", 2, 0);
    _exit(0);
}

/* Channels that are never reported: each operation is written when its place is needed, with what is known. */
static void silent(void) {
    struct communicator world = open_communicator("world", 1, 4, 2);
    void *first = enqueue(&world, "AllReduce", 0, 0);
    for (int i = 1; i < MANY; i++)
        enqueue(&world, "AllReduce", i, 0);
    channels_run(&world, first, 0, CHANNELS, 123); /* too late: its place is another's */
}

static void *many(void *arg) {
    struct communicator own = open_communicator("thread", (uint64_t)(uintptr_t)arg, 2, 0);
    for (int i = 0; i < EACH; i++)
        run_one(&own, "AllReduce", i);
    return NULL;
}

static void threads(void) {
    pthread_t running[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&running[i], NULL, many, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++)
        pthread_join(running[i], NULL);
}

static void forked(void) {
    struct communicator world = open_communicator("world", 1, 4, 2);
    if (fork() == 0) {
        run_one(&world, "AllReduce", 0);
        exit(0);
    }
    wait(NULL);
    run_one(&world, "Reduce", 1);
}

/* Each reported with times of work from ms before: wholly, in one channel only, with an end before its start. */
static void not_its_own(void) {
    struct communicator world = open_communicator("world", 1, 4, 2);
    void *handle;
    run_one(&world, "AllGather", 0);
    channels_run(&world, enqueue(&world, "AllReduce", 9, 0), 0, CHANNELS, begin_of(7));
    handle = enqueue(&world, "Broadcast", 10, 0);
    host_ns += REPORTED_NS;
    channels_run(&world, handle, 0, 1, begin_of(3));
    channels_run(&world, handle, 1, CHANNELS, begin_of(10));
    handle = enqueue(&world, "Reduce", 11, 0);
    host_ns += REPORTED_NS;
    for (int c = 0; c < CHANNELS; c++) {
        void *channel = start(&world, NCCL_KERNEL_CHANNEL, handle, (union nccl_what){.kernel = {.timer = begin_of(11)}});
        union nccl_state ended = {.kernel = {.timer = begin_of(11) - 1}};
        profiler->record(channel, NCCL_KERNEL_CHANNEL_STOP, &ended);
    }
    run_one(&world, "AllGather", 12);
}

/* One with another's times, and right ones of that function, of another one, and of another communicator. */
static void doubted(void) {
    struct communicator world = open_communicator("world", 1, 4, 2), pair = open_communicator("pair", 2, 2, 1);
    run_one(&world, "Broadcast", 0);
    channels_run(&world, enqueue(&world, "AllReduce", 9, 0), 0, CHANNELS, begin_of(7));
    for (int i = 10; i < 50; i++)
        run_one(&world, "AllReduce", i);
    run_one(&world, "Broadcast", 50);
    run_one(&pair, "AllReduce", 51);
}

/* A GPU whose clock loses 50 us a second against the host's, and half an hour in which it runs nothing. */
static void drifting(void) {
    struct communicator world = open_communicator("world", 1, 4, 2);
    for (int k = 0; k < 600; k++) {
        int i = 50 * k + (k < 300 ? 0 : 1800000);
        void *handle = enqueue(&world, "AllReduce", i, 1);
        host_ns += REPORTED_NS;
        channels_run(&world, handle, 0, CHANNELS, begin_of(i) - begin_of(i) / 20000);
    }
}

static void *plugin;

/* NCCL lets go of the plugin with its last communicator; the process lives on, forks and exits. */
static void unloaded(void) {
    struct communicator world = open_communicator("world", 1, 4, 2);
    int status = -1;
    run_one(&world, "AllGather", 0);
    profiler->finalize(world.context);
    if (dlclose(plugin))
        exit(4);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    if (waitpid(child, &status, 0) != child || status != 0)
        exit(5);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*play)(void);
    } scenes[] = {{"plain", plain},     {"hang", hang},     {"silent", silent},
                  {"threads", threads}, {"forked", forked}, {"unloaded", unloaded},
                  {"not_its_own", not_its_own}, {"doubted", doubted}, {"drifting", drifting}};
    plugin = argc == 4 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!plugin)
        return 2;
    char symbol[] = "ncclProfiler_v0";
    version = atoi(argv[2]);
    symbol[sizeof symbol - 2] = argv[2][0];
    profiler = dlsym(plugin, symbol);
    for (size_t i = 0; i < sizeof scenes / sizeof *scenes && profiler; i++)
        if (strcmp(argv[3], scenes[i].name) == 0)
            return scenes[i].play(), 0;
    return 2;
}
