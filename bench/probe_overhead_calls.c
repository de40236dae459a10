/* What the PMPI shim adds to a call: MPI_Allreduce of one double on a communicator of one rank, through the shim and
 * around it (PMPI_), in alternating blocks of one process. Prints ns a call for each pair of blocks: through, around. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef int (*allreduce)(const void *, void *, int, MPI_Datatype, MPI_Op, MPI_Comm);

static double block(allreduce call, int calls) {
    struct timespec a, b;
    double in = 1, out;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < calls; i++)
        call(&in, &out, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_SELF);
    clock_gettime(CLOCK_MONOTONIC, &b);
    return ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / calls;
}

int main(int argc, char **argv) {
    int pairs = argc > 1 ? atoi(argv[1]) : 100, calls = argc > 2 ? atoi(argv[2]) : 20000;
    MPI_Init(&argc, &argv);
    block(MPI_Allreduce, calls);
    block(PMPI_Allreduce, calls);
    for (int i = 0; i < pairs; i++) {
        double first = block(i % 2 ? MPI_Allreduce : PMPI_Allreduce, calls);
        double second = block(i % 2 ? PMPI_Allreduce : MPI_Allreduce, calls);
        printf("%.2f %.2f\n", i % 2 ? first : second, i % 2 ? second : first);
    }
    MPI_Finalize();
    return 0;
}
