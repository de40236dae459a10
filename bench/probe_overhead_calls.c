/* What the PMPI shim adds to a call: MPI_Allreduce of one double on a communicator of one rank, through the shim and
 * around it (PMPI_), in alternating blocks of one process; with "messages" as the third argument, to each call of a
 * window of one-byte messages, as osu_bw sends them: 64 MPI_Irecv, 64 MPI_Isend, MPI_Waitall. Prints ns a call for each
 * pair of blocks: through, around. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int (*allreduce)(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);

static double in = 1, out;

static int blocking(int observed) {
    allreduce call = observed ? MPI_Allreduce : PMPI_Allreduce;
    call(&in, &out, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_SELF);
    return 1;
}

enum { WINDOW = 64 };

static int messages(int observed) {
    static char to[WINDOW], from[WINDOW];
    int (*post)(void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *) = observed ? MPI_Irecv : PMPI_Irecv;
    int (*send)(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *) = observed ? MPI_Isend : PMPI_Isend;
    int (*wait)(int, MPI_Request *, MPI_Status *) = observed ? MPI_Waitall : PMPI_Waitall;
    MPI_Request requests[2 * WINDOW];
    for (int i = 0; i < WINDOW; i++)
        post(to + i, 1, MPI_CHAR, 0, 7, MPI_COMM_SELF, requests + i);
    for (int i = 0; i < WINDOW; i++)
        send(from + i, 1, MPI_CHAR, 0, 7, MPI_COMM_SELF, requests + WINDOW + i);
    wait(2 * WINDOW, requests, MPI_STATUSES_IGNORE);
    return 2 * WINDOW + 1;
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
    const char *kind = argc > 3 ? argv[3] : "";
    int (*what)(int) = strcmp(kind, "messages") == 0 ? messages : blocking;
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
