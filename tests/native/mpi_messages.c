/* Sends itself as many one-byte messages as its argument says: three calls each. */
#include <mpi.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    char in, out = 1;
    for (int i = 0; i < atoi(argv[1]); i++) {
        MPI_Request request;
        MPI_Irecv(&in, 1, MPI_CHAR, 0, 3, MPI_COMM_SELF, &request);
        MPI_Send(&out, 1, MPI_CHAR, 0, 3, MPI_COMM_SELF);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    MPI_Finalize();
    return 0;
}
