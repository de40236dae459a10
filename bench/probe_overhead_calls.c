/* What the PMPI shim adds to a call: MPI_Allreduce of one double on a communicator of one rank, through the shim and
 * around it (PMPI_), in alternating blocks of one process; with "polled" as the third argument, to each of MPI_Iallreduce
 * and the MPI_Test that completes it. Prints ns a call for each pair of blocks: through, around. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int (*allreduce)(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);

typedef int (*iallreduce)(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
typedef int (*test)(MPI_Request *, int *, MPI_Status *);

static double in = 1, out;

static int blocking(int observed) {
    allreduce call = observed ? MPI_Allreduce : PMPI_Allreduce;
    call(&in, &out, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_SELF);
    return 1;
}

static int polled(int observed) {
    iallreduce start = observed ? MPI_Iallreduce : PMPI_Iallreduce;
    test done = observed ? MPI_Test : PMPI_Test;
    MPI_Request request;
    int calls = 1;
    start(&in, &out, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_SELF, &request);
    for (int flag = 0; !flag; calls++)
        done(&request, &flag, MPI_STATUS_IGNORE);
    return calls;
}

static double block(int (*what)(int), int observed, int times) {
    struct timespec a, b;
    long calls = 0;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < times; i++)
        calls += what(observed);
    clock_gettime(CLOCK_MONOTONIC, &b);
    return ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / (double)calls;
}

int main(int argc, char **argv) {
    int pairs = argc > 1 ? atoi(argv[1]) : 100, calls = argc > 2 ? atoi(argv[2]) : 20000;
    int (*what)(int) = argc > 3 && strcmp(argv[3], "polled") == 0 ? polled : blocking;
    MPI_Init(&argc, &argv);
    block(what, 0, calls);
    block(what, 1, calls);
    for (int i = 0; i < pairs; i++) {
        double first = block(what, i % 2, calls), second = block(what, 1 - i % 2, calls);
        printf("%.2f %.2f\n", i % 2 ? first : second, i % 2 ? second : first);
    }
    MPI_Finalize();
    return 0;
}
