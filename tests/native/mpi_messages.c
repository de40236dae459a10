/* Sends itself as many one-byte messages as its argument says: three calls each. With "thread" another thread does, which
 * ends before the program goes on. */
#include <mpi.h>
#include <pthread.h>
#include <stdlib.h>

static void *send(void *messages) {
    char in, out = 1;
    for (int i = 0; i < *(int *)messages; i++) {
        MPI_Request request;
        MPI_Irecv(&in, 1, MPI_CHAR, 0, 3, MPI_COMM_SELF, &request);
        MPI_Send(&out, 1, MPI_CHAR, 0, 3, MPI_COMM_SELF);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    return NULL;
}

int main(int argc, char **argv) {
    int provided, messages = atoi(argv[1]);
    pthread_t thread;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
    if (argc < 3) {
        send(&messages);
    } else {
        pthread_create(&thread, NULL, send, &messages);
        pthread_join(thread, NULL);
    }
    MPI_Finalize();
    return 0;
}
