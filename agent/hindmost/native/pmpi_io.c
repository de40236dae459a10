/* File I/O of the thread that called MPI_Init, where it takes 100 us and more: what a rank that is late may have waited
 * for. Sockets and devices are left out; a sleep or a lock is not taken for input.
 *
 * These wrappers are in every process that the job starts, so they must not call what is not yet there: the real
 * functions are found when the shim is loaded, and until then the system is called directly.
 */
#define _GNU_SOURCE
#include "pmpi.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SLOW_NS = 100000 };

static ssize_t (*real_read)(int, void *, size_t);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pread)(int, void *, size_t, off_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_readv)(int, const struct iovec *, int);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static size_t (*real_fread)(void *, size_t, size_t, FILE *);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);

__attribute__((constructor)) static void find_real(void) {
    real_read = (ssize_t(*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    real_write = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    real_pread = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread");
    real_pwrite = (ssize_t(*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
    real_readv = (ssize_t(*)(int, const struct iovec *, int))dlsym(RTLD_NEXT, "readv");
    real_writev = (ssize_t(*)(int, const struct iovec *, int))dlsym(RTLD_NEXT, "writev");
    real_fread = (size_t(*)(void *, size_t, size_t, FILE *))dlsym(RTLD_NEXT, "fread");
    real_fsync = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
}

static inline bool watched(void) { return hm_thread.files && hm_thread.depth == 0 && hm_pmpi.active; }

/* Files and block devices; and reading a pipe, which is how data comes from a decompressor or another program. */
static bool waits_for_data(enum hm_operation op, mode_t mode) {
    return S_ISREG(mode) || S_ISBLK(mode) || (op == HM_OP_file_read && S_ISFIFO(mode));
}

/* Record a call that has ended, if it was slow and on a file. The caller's errno is kept. */
static void ended(int file, enum hm_operation op, uint64_t start, long long result) {
    uint64_t duration = hm_now() - start;
    struct stat what;
    int error = errno;
    if (duration >= SLOW_NS && fstat(file, &what) == 0 && waits_for_data(op, what.st_mode))
        hm_event(&hm_pmpi.ring, hm_what(HM_IO, result < 0 ? HM_ERROR : 0, (uint16_t)op), start, duration,
                 hm_where(0, HM_NONE16, HM_NONE16), result > 0 ? (uint64_t)result : 0);
    errno = error;
}

#define WATCH(type, name, operation, bytes, declaration, arguments, directly)                                          \
    HM_EXPORT type name declaration {                                                                                  \
        if (__builtin_expect(!real_##name, 0))                                                                         \
            return directly;                                                                                           \
        if (HM_LIKELY(!watched()))                                                                                     \
            return real_##name arguments;                                                                              \
        uint64_t start = hm_now();                                                                                     \
        type result = real_##name arguments;                                                                           \
        ended(file, HM_OP_##operation, start, bytes);                                                                  \
        return result;                                                                                                 \
    }

WATCH(ssize_t, read, file_read, result, (int file, void *to, size_t size), (file, to, size),
      syscall(SYS_read, file, to, size))
WATCH(ssize_t, write, file_write, result, (int file, const void *from, size_t size), (file, from, size),
      syscall(SYS_write, file, from, size))
WATCH(ssize_t, pread, file_read, result, (int file, void *to, size_t size, off_t at), (file, to, size, at),
      syscall(SYS_pread64, file, to, size, at))
WATCH(ssize_t, pwrite, file_write, result, (int file, const void *from, size_t size, off_t at), (file, from, size, at),
      syscall(SYS_pwrite64, file, from, size, at))
WATCH(ssize_t, readv, file_read, result, (int file, const struct iovec *to, int count), (file, to, count),
      syscall(SYS_readv, file, to, count))
WATCH(ssize_t, writev, file_write, result, (int file, const struct iovec *from, int count), (file, from, count),
      syscall(SYS_writev, file, from, count))
WATCH(int, fsync, file_sync, 0, (int file), (file), (int)syscall(SYS_fsync, file))
WATCH(int, fdatasync, file_sync, 0, (int file), (file), (int)syscall(SYS_fdatasync, file))

/* off_t has 64 bits here, so these are the same functions under their large-file names. */
_Static_assert(sizeof(off_t) == 8, "large files");
HM_EXPORT ssize_t pread64(int file, void *to, size_t size, off_t at) __attribute__((alias("pread")));
HM_EXPORT ssize_t pwrite64(int file, const void *from, size_t size, off_t at) __attribute__((alias("pwrite")));

/* The C library reads for it inside, where no wrapper is. */
HM_EXPORT size_t fread(void *to, size_t size, size_t count, FILE *stream) {
    if (__builtin_expect(!real_fread, 0))
        find_real();
    if (HM_LIKELY(!watched()))
        return real_fread(to, size, count, stream);
    uint64_t start = hm_now();
    size_t got = real_fread(to, size, count, stream);
    ended(fileno(stream), HM_OP_file_read, start, (long long)(got * size));
    return got;
}
