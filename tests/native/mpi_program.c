/* A program as people write them, that uses each kind of MPI call the shim knows. Its output must not depend on being
 * observed. Four ranks. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int rank, size;

/* So much CPU time, however often this rank loses the CPU. */
static void compute_ms(double ms) {
    struct timespec a, b;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    do
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    while ((double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6 < ms);
}

/* Rank 1 computes, rank 2 sleeps, in front of the first of two all-reduces of a step. */
static double steps(void) {
    double in[100], out[100], sum = 0;
    for (int i = 0; i < 100; i++)
        in[i] = rank + i;
    for (int step = 0; step < 12; step++) {
        if (rank == 1)
            compute_ms(5);
        if (rank == 2)
            usleep(5000);
        MPI_Allreduce(in, out, 100, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        MPI_Allreduce(MPI_IN_PLACE, out, 10, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        sum += out[99];
    }
    return sum;
}

/* Two duplicates that ranks use for the first time in different order, and halves. */
static int communicators(void) {
    MPI_Comm a, b, half;
    MPI_Request request[2];
    int in = rank, out[2], color = rank % 2;
    MPI_Comm_dup(MPI_COMM_WORLD, &a);
    MPI_Comm_dup(MPI_COMM_WORLD, &b);
    MPI_Comm_set_name(a, "first");
    MPI_Comm_split(MPI_COMM_WORLD, color, -rank, &half);
    MPI_Ibarrier(rank < 2 ? a : b, &request[0]);
    MPI_Ibarrier(rank < 2 ? b : a, &request[1]);
    MPI_Waitall(2, request, MPI_STATUSES_IGNORE);
    MPI_Iallreduce(&in, &out[0], 1, MPI_INT, MPI_SUM, a, &request[0]);
    MPI_Wait(&request[0], MPI_STATUS_IGNORE);
    MPI_Allreduce(&in, &out[1], 1, MPI_INT, MPI_SUM, half);
    MPI_Comm_free(&a);
    MPI_Comm_free(&b);
    MPI_Comm_free(&half);
    return out[0] * 100 + out[1];
}

/* Communicators that come and go must not fill a table. */
static void churn(void) {
    for (int i = 0; i < 40; i++) {
        MPI_Comm made;
        MPI_Comm_dup(MPI_COMM_WORLD, &made);
        MPI_Barrier(made);
        MPI_Comm_free(&made);
    }
}

static int point_to_point(void) {
    int sent[7] = {rank, 1, 2, 3, 4, 5, 6}, got[7] = {0}, other = -1;
    int right = (rank + 1) % size, left = (rank + size - 1) % size;
    MPI_Request request;
    if (rank == 0)
        for (int i = 1; i < size; i++)
            MPI_Recv(got, 7, MPI_INT, MPI_ANY_SOURCE, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(sent, rank, MPI_INT, 0, 5, MPI_COMM_WORLD);
    MPI_Sendrecv(&rank, 1, MPI_INT, right, 6, &other, 1, MPI_INT, left, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Isend(&rank, 1, MPI_INT, right, 7, MPI_COMM_WORLD, &request);
    MPI_Recv(got, 1, MPI_INT, left, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    return other * 10 + got[0];
}

static int vectors(void) {
    int counts[4] = {1, 2, 3, 4}, places[4] = {0, 1, 3, 6}, own[4] = {rank, rank, rank, rank}, all[16] = {0}, sum = 0;
    int each[4] = {1, 1, 1, 1}, at[4] = {0, 1, 2, 3};
    MPI_Gatherv(own, rank + 1, MPI_INT, all, counts, places, MPI_INT, 3, MPI_COMM_WORLD);
    MPI_Allgatherv(own, rank + 1, MPI_INT, all, counts, places, MPI_INT, MPI_COMM_WORLD);
    MPI_Alltoallv(own, each, at, MPI_INT, all, each, at, MPI_INT, MPI_COMM_WORLD);
    MPI_Reduce_scatter(all, own, each, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Bcast(own, 4, MPI_INT, 2, MPI_COMM_WORLD);
    MPI_Scan(own, all, 4, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < 4; i++)
        sum += all[i];
    return sum;
}

static int persistent(void) {
    int in = rank, out = 0;
#ifdef HM_PERSISTENT
    MPI_Request request;
    MPI_Allreduce_init(&in, &out, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &request);
    for (int i = 0; i < 3; i++) {
        MPI_Start(&request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    MPI_Request_free(&request);
#else
    MPI_Allreduce(&in, &out, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
#endif
    return out;
}

static int errors(void) {
    int value = 0, kind = 0;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int error = MPI_Bcast(&value, 1, MPI_INT, size + 5, MPI_COMM_WORLD);
    MPI_Error_class(error, &kind);
    return kind == MPI_ERR_ROOT;
}

static int files(const char *path) {
    MPI_File file;
    int value = rank, read = -1;
    if (MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file))
        return -1;
    MPI_File_write_at_all(file, rank * (int)sizeof value, &value, 1, MPI_INT, MPI_STATUS_IGNORE);
    MPI_File_sync(file);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_read_at(file, (size - 1 - rank) * (int)sizeof value, &read, 1, MPI_INT, MPI_STATUS_IGNORE);
    MPI_File_close(&file);
    return read;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    double sum = steps();
    int made = communicators();
    churn();
    int ring = point_to_point(), vector = vectors(), started = persistent(), error = errors();
    int file = argc > 1 ? files(argv[1]) : 0;
    char line[200], lines[4][200];
    snprintf(line, sizeof line, "%d: %.1f %d %d %d %d %d %d", rank, sum, made, ring, vector, started, error, file);
    MPI_Gather(line, 200, MPI_CHAR, lines, 200, MPI_CHAR, 0, MPI_COMM_WORLD);
    for (int i = 0; rank == 0 && i < size; i++)
        puts(lines[i]);
    MPI_Finalize();
    return 0;
}
