/* Four ranks that wait for messages which never come, each in its own way: inside of calls, or ("polls") in tests. */
#include <mpi.h>
#include <string.h>

static char in[8], out[8];

static void wait_inside(int rank) {
    MPI_Request requests[3];
    switch (rank) {
    case 0:
        MPI_Irecv(in, 1, MPI_CHAR, 1, 90, MPI_COMM_WORLD, requests);
        MPI_Irecv(in + 1, 1, MPI_CHAR, 2, 91, MPI_COMM_WORLD, requests + 1);
        MPI_Issend(out, 1, MPI_CHAR, 3, 92, MPI_COMM_WORLD, requests + 2);
        MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
        break;
    case 1:
        MPI_Recv(in, 1, MPI_CHAR, MPI_ANY_SOURCE, 93, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        break;
    case 2:
        MPI_Sendrecv(out, 1, MPI_CHAR, 3, 94, in, 1, MPI_CHAR, 1, 95, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        break;
    default:
        MPI_Irecv(in, 1, MPI_CHAR, 0, 96, MPI_COMM_WORLD, requests);
        MPI_Wait(requests, MPI_STATUS_IGNORE);
    }
}

static void wait_polling(int rank) {
    MPI_Request request;
    int flag = 0;
    switch (rank) {
    case 0:
        MPI_Irecv(in, 1, MPI_CHAR, 3, 90, MPI_COMM_WORLD, &request);
        while (!flag)
            MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
        break;
    case 1:
        while (!flag)
            MPI_Iprobe(2, 91, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
        break;
    case 2:
        MPI_Ssend(out, 1, MPI_CHAR, 0, 92, MPI_COMM_WORLD);
        break;
    default:
        MPI_Recv_init(in, 1, MPI_CHAR, 2, 93, MPI_COMM_WORLD, &request);
        MPI_Start(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
}

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    (strcmp(argv[1], "polls") ? wait_inside : wait_polling)(rank);
    MPI_Finalize();
    return 0;
}
