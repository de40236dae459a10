/* Collectives that are polled for, in each of MPI's ways: rank 1 comes 40 ms late to each. Four ranks.

   Each says at its end how long it polled in each of the first PLACES places of a round, by its own clock, and for how
   much of that it waited for a CPU: a machine that is busy makes others late as well, and who naps does not know when
   it will be woken. */
#include <mpi.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 9, PLACES = 5 };

static int rank, in[2] = {1, 2}, out[2];
static long long polled[ROUNDS][PLACES], queued[ROUNDS][PLACES];

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* ns that this rank has waited for a CPU so far; 0 where the kernel does not tell. */
static long long in_queue(void) {
    long long cpu, ns = 0;
    FILE *file = fopen("/proc/self/schedstat", "r");
    if (file) {
        if (fscanf(file, "%lld %lld", &cpu, &ns) != 2)
            ns = 0;
        fclose(file);
    }
    return ns;
}

static long long began, began_queued;

static void polls(void) {
    began_queued = in_queue();
    began = now();
}

static void has_polled(int round, int place) {
    polled[round][place] = now() - began;
    queued[round][place] = in_queue() - began_queued;
}

static void late(void) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1)
        usleep(40000);
}

static MPI_Request started(int which) {
    MPI_Request request;
    MPI_Iallreduce(&in[which], &out[which], 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
    return request;
}

/* So much of its own work, however often it loses the CPU. */
static void compute(int ms) {
    struct timespec a, b;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    do
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    while ((double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6 < ms);
}

static void poll(MPI_Request *request, int sleep_us, int compute_ms) {
    int flag = 0;
    MPI_Test(request, &flag, MPI_STATUS_IGNORE);
    while (!flag) {
        if (sleep_us)
            usleep(sleep_us);
        if (compute_ms)
            compute(compute_ms);
        MPI_Test(request, &flag, MPI_STATUS_IGNORE);
    }
}

static void several(int in_some) {
    int left = 2, flag, at[2];
    late();
    MPI_Request both[2] = {started(0), started(1)};
    while (left > 0 && in_some) {
        MPI_Testsome(2, both, &flag, at, MPI_STATUSES_IGNORE);
        left -= flag;
    }
    while (left > 0) {
        MPI_Testany(2, both, &at[0], &flag, MPI_STATUS_IGNORE);
        left -= flag;
    }
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);

    MPI_Request one;
    for (int round = 0; round < ROUNDS; round++) {
        late(); /* as fast as it can */
        one = started(0);
        polls();
        poll(&one, 0, 0);
        has_polled(round, 0);
        late(); /* with short naps, and with long ones */
        one = started(0);
        polls();
        poll(&one, 200, 0);
        has_polled(round, 1);
        late();
        one = started(0);
        polls();
        poll(&one, 4000, 0);
        has_polled(round, 2);
        late(); /* between two tests it computes for long */
        one = started(0);
        polls();
        poll(&one, 0, 5);
        has_polled(round, 3);
        late(); /* all of two, then some and any */
        MPI_Request both[2] = {started(0), started(1)};
        polls();
        for (int flag = 0; !flag;)
            MPI_Testall(2, both, &flag, MPI_STATUSES_IGNORE);
        has_polled(round, 4);
        several(1);
        several(0);
    }

#ifdef HM_PERSISTENT
    MPI_Allreduce_init(in, out, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &one);
    for (int round = 0; round < 2; round++) {
        late();
        MPI_Start(&one);
        poll(&one, 0, 0);
        poll(&one, 0, 0); /* it is idle now: nothing to wait for */
    }
    MPI_Request_free(&one);
#endif
    enum { LENGTH = 2 * ROUNDS * PLACES * 21 + 64 };
    static char line[LENGTH], lines[4][LENGTH];
    int length = snprintf(line, sizeof line, "%d %d %d", rank, out[0], out[1]);
    for (int at = 0; at < ROUNDS * PLACES; at++)
        length += snprintf(line + length, sizeof line - (size_t)length, " %lld %lld", polled[at / PLACES][at % PLACES],
                           queued[at / PLACES][at % PLACES]);
    /* one rank prints: a launcher mixes the output of several; past the shim, so that it makes no event */
    PMPI_Gather(line, LENGTH, MPI_CHAR, lines, LENGTH, MPI_CHAR, 0, MPI_COMM_WORLD);
    for (int at = 0; rank == 0 && at < 4; at++)
        puts(lines[at]);
    MPI_Finalize();
    return 0;
}
