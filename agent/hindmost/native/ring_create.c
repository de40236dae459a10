/* Making a ring and appending to its tables: the part that may call the system. */
#define _GNU_SOURCE
#include "ring_write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_CAPACITY (1u << 22)

static const char *const producers[] = {"", "py", "mpi", "nccl"};

uint32_t hm_ring_capacity(uint32_t standard) {
    const char *text = getenv("HINDMOST_RING_CAPACITY");
    char *end = NULL;
    unsigned long wanted = text ? strtoul(text, &end, 10) : 0;
    bool usable = wanted >= 2 && wanted <= MAX_CAPACITY && (wanted & (wanted - 1)) == 0 && *end == '\0';
    return usable ? (uint32_t)wanted : standard;
}

/* At most size - 1 bytes, cut between UTF-8 characters, always ended. The target is zeroed already. */
static void copy_text(char *to, const char *from, size_t size) {
    size_t length = from ? strnlen(from, size) : 0;
    if (length == size)
        for (length = size - 1; length > 0 && ((unsigned char)from[length] & 0xC0) == 0x80;)
            length--;
    memcpy(to, from ? from : "", length);
}

static uint64_t start_ticks(void) {
    char text[1024];
    int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    text[size > 0 ? size : 0] = '\0';
    char *field = strrchr(text, ')'); /* the command may hold blanks */
    for (int i = 2; field && i < 22; i++)
        field = strchr(field + 1, ' ');
    return field ? strtoull(field, NULL, 10) : 0;
}

static int make_directory(const char *directory) {
    char path[512];
    if (strlen(directory) >= sizeof path)
        return ENAMETOOLONG;
    strcpy(path, directory);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    mkdir(path, 0700);
    struct stat made;
    if (stat(path, &made) != 0)
        return errno;
    if (!S_ISDIR(made.st_mode))
        return ENOTDIR;
    return made.st_uid == geteuid() || made.st_uid == 0 ? 0 : EPERM;
}

/* Growing a file beyond RLIMIT_FSIZE raises SIGXFSZ, which would end the training process. */
static bool beyond_limit(size_t bytes) {
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur;
}

static int allocate(struct hm_ring *ring, const char *path) {
    if (beyond_limit(ring->bytes))
        return EFBIG;
    unlink(path); /* of a process that had this pid before */
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0)
        return errno;
    int error = posix_fallocate(file, 0, (off_t)ring->bytes);
    void *base = error ? MAP_FAILED : mmap(NULL, ring->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (base == MAP_FAILED) {
        error = error ? error : errno;
        unlink(path);
    }
    close(file);
    ring->base = error ? NULL : base;
    return error;
}

static void write_header(struct hm_ring *ring, const struct hm_identity *who, int producer) {
    struct hm_header *header = (struct hm_header *)ring->base;
    struct timespec wall;
    header->layout = HM_LAYOUT;
    header->record_bytes = HM_RECORD_BYTES;
    header->capacity = (uint32_t)ring->mask + 1;
    header->producer = (uint32_t)producer;
    header->pid = (uint32_t)getpid();
    header->rank = who->rank;
    header->world_size = who->world_size;
    header->local_rank = who->local_rank;
    header->start_ticks = start_ticks();
    copy_text(header->job_id, who->job_id, sizeof header->job_id);
    copy_text(header->framework, who->framework, sizeof header->framework);
    copy_text(header->command, who->command, sizeof header->command);
    clock_gettime(CLOCK_REALTIME, &wall);
    header->monotonic_ns = hm_now();
    header->realtime_ns = (uint64_t)wall.tv_sec * 1000000000ull + (uint64_t)wall.tv_nsec;
    __atomic_store_n(&header->magic, HM_MAGIC, __ATOMIC_RELEASE);
}

int hm_ring_create(struct hm_ring *ring, const char *directory, const struct hm_identity *who, int producer,
                   uint32_t capacity) {
    char path[640];
    int error = make_directory(directory);
    if (error)
        return error;
    snprintf(path, sizeof path, "%s/%d.%s.%d.ring", directory, who->rank, producers[producer], (int)getpid());
    ring->mask = capacity - 1;
    ring->bytes = HM_RECORDS_OFFSET + (size_t)capacity * HM_RECORD_BYTES;
    error = allocate(ring, path);
    if (error)
        return error;
    ring->head = (uint64_t *)(ring->base + HM_HEAD_OFFSET);
    ring->records = (uint64_t *)(ring->base + HM_RECORDS_OFFSET);
    pthread_mutex_init(&ring->tables, NULL);
    write_header(ring, who, producer);
    return 0;
}

/* The next free entry of a table, or NULL when it is full; hm_appended makes it valid. Called under the lock. */
static void *next_entry(struct hm_ring *ring, size_t table, uint64_t *count, uint64_t most, size_t size) {
    if (*count < most)
        return ring->base + table + *count * size;
    hm_refuse(ring);
    return NULL;
}

static uint16_t appended(uint64_t *count) {
    uint64_t index = *count;
    __atomic_store_n(count, index + 1, __ATOMIC_RELEASE);
    return (uint16_t)index;
}

uint16_t hm_ring_name(struct hm_ring *ring, const char *name) {
    uint64_t *count = (uint64_t *)(ring->base + HM_NAMES_COUNT_OFFSET);
    uint16_t index = HM_NONE16;
    pthread_mutex_lock(&ring->tables);
    char *entry = next_entry(ring, HM_NAMES_OFFSET, count, HM_NAMES, HM_NAME_BYTES);
    if (entry) {
        copy_text(entry, name, HM_NAME_BYTES);
        index = appended(count);
    }
    pthread_mutex_unlock(&ring->tables);
    return index;
}

uint16_t hm_ring_comm(struct hm_ring *ring, uint64_t id, int rank, int size, const char *name) {
    uint64_t *count = (uint64_t *)(ring->base + HM_COMMS_COUNT_OFFSET);
    uint16_t index = HM_NONE16;
    pthread_mutex_lock(&ring->tables);
    struct hm_comm *entry = next_entry(ring, HM_COMMS_OFFSET, count, HM_COMMS, HM_COMM_BYTES);
    if (entry) {
        entry->id = id;
        entry->rank = rank;
        entry->size = size;
        copy_text(entry->name, name, sizeof entry->name);
        index = appended(count);
    }
    pthread_mutex_unlock(&ring->tables);
    return index;
}

void hm_ring_set_gpu(struct hm_ring *ring, const char *uuid) {
    copy_text(((struct hm_header *)ring->base)->gpu_uuid, uuid, 64);
}

void hm_ring_close(struct hm_ring *ring) {
    if (ring->base)
        __atomic_store_n(&((struct hm_header *)ring->base)->life, HM_CLOSED, __ATOMIC_RELEASE);
}
