/* MPI file I/O. Calls that only this rank makes are its self time, like any other file I/O; the collective ones wait
 * for others, and are taken out of it. */
#include "pmpi_real.h"

typedef HM_HANDLE H;

static void record(uint64_t start, enum hm_operation op, int result, int64_t bytes) {
    bool good = result == HM_MPI_SUCCESS;
    hm_event(&hm_pmpi.ring, hm_what(HM_IO, good ? 0 : HM_ERROR, (uint16_t)op), start, hm_time() - start,
             hm_where(0, HM_NONE16, HM_NONE16), good ? (uint64_t)bytes : 0);
}

/* FILE_CALL(symbol, operation, collective, bytes, declaration, arguments) */
#define FILE_CALL(symbol, operation, collective, bytes, declaration, arguments)                                        \
    HM_EXPORT int symbol declaration {                                                                                 \
        HM_REAL(symbol, declaration)                                                                                   \
        if (!hm_observed())                                                                                            \
            return real arguments;                                                                                     \
        uint64_t start = hm_time();                                                                                    \
        hm_thread.depth = 1;                                                                                           \
        if (collective)                                                                                                \
            start = hm_stretch_ends(start);                                                                                    \
        int result = real arguments;                                                                                   \
        record(start, HM_OP_##operation, result, result == HM_MPI_SUCCESS ? (bytes) : 0);                              \
        if (collective)                                                                                                \
            hm_stretch_begins(hm_time(), HM_OP_##operation * 7u);                                                      \
        hm_thread.depth = 0;                                                                                           \
        return result;                                                                                                 \
    }

#define READ(symbol, collective, N)                                                                                    \
    FILE_CALL(symbol, file_read, collective, hm_type_bytes(n, type), (H file, void *to, N n, H type, void *status),    \
              (file, to, n, type, status))
#define READ_AT(symbol, collective, N)                                                                                 \
    FILE_CALL(symbol, file_read, collective, hm_type_bytes(n, type),                                                   \
              (H file, int64_t at, void *to, N n, H type, void *status), (file, at, to, n, type, status))
#define WRITE(symbol, collective, N)                                                                                   \
    FILE_CALL(symbol, file_write, collective, hm_type_bytes(n, type),                                                  \
              (H file, const void *from, N n, H type, void *status), (file, from, n, type, status))
#define WRITE_AT(symbol, collective, N)                                                                                \
    FILE_CALL(symbol, file_write, collective, hm_type_bytes(n, type),                                                  \
              (H file, int64_t at, const void *from, N n, H type, void *status), (file, at, from, n, type, status))

FILE_CALL(MPI_File_open, file_open, true, 0, (H comm, const char *name, int mode, H info, H *file),
          (comm, name, mode, info, file))
FILE_CALL(MPI_File_close, file_close, true, 0, (H * file), (file))
FILE_CALL(MPI_File_sync, file_sync, true, 0, (H file), (file))
READ(MPI_File_read, false, int)
READ(MPI_File_read_all, true, int)
READ(MPI_File_read_shared, false, int)
READ(MPI_File_read_ordered, true, int)
READ_AT(MPI_File_read_at, false, int)
READ_AT(MPI_File_read_at_all, true, int)
WRITE(MPI_File_write, false, int)
WRITE(MPI_File_write_all, true, int)
WRITE(MPI_File_write_shared, false, int)
WRITE(MPI_File_write_ordered, true, int)
WRITE_AT(MPI_File_write_at, false, int)
WRITE_AT(MPI_File_write_at_all, true, int)
#ifdef HM_LARGE
READ(MPI_File_read_c, false, int64_t)
READ(MPI_File_read_all_c, true, int64_t)
READ(MPI_File_read_shared_c, false, int64_t)
READ(MPI_File_read_ordered_c, true, int64_t)
READ_AT(MPI_File_read_at_c, false, int64_t)
READ_AT(MPI_File_read_at_all_c, true, int64_t)
WRITE(MPI_File_write_c, false, int64_t)
WRITE(MPI_File_write_all_c, true, int64_t)
WRITE(MPI_File_write_shared_c, false, int64_t)
WRITE(MPI_File_write_ordered_c, true, int64_t)
WRITE_AT(MPI_File_write_at_c, false, int64_t)
WRITE_AT(MPI_File_write_at_all_c, true, int64_t)
#endif
