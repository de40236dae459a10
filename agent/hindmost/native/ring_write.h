/* Writing a ring from C: what pmpi, the NCCL plugin and the Python extension share. ring.h draws the layout.
 *
 * hm_event never waits, allocates or calls anything. The tables (names, communicators) are appended to under a lock,
 * so register what can be known beforehand.
 */
#ifndef HINDMOST_RING_WRITE_H
#define HINDMOST_RING_WRITE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "ring.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a ring is little-endian");

#define HM_HIDDEN __attribute__((visibility("hidden")))

struct hm_ring {
    uint8_t *base; /* NULL: there is no ring, and nothing may be written */
    uint64_t *head;
    uint64_t *records;
    uint64_t mask; /* capacity - 1 */
    size_t bytes;
    pthread_mutex_t tables;
};

struct hm_identity {
    int rank, world_size, local_rank; /* -1: unknown */
    const char *job_id, *framework, *command;
};

/* Make DIRECTORY/RANK.PRODUCER.PID.ring, allocated in full. 0, or an errno; then nothing is left behind. */
HM_HIDDEN int hm_ring_create(struct hm_ring *ring, const char *directory, const struct hm_identity *who, int producer,
                             uint32_t capacity);
/* HINDMOST_RING_CAPACITY, or `standard` where it is not set or not usable. */
HM_HIDDEN uint32_t hm_ring_capacity(uint32_t standard);
/* Index of a new entry; HM_NONE16 when the table is full, which counts as refused. */
HM_HIDDEN uint16_t hm_ring_name(struct hm_ring *ring, const char *name);
HM_HIDDEN uint16_t hm_ring_comm(struct hm_ring *ring, uint64_t id, int rank, int size, const char *name);
HM_HIDDEN void hm_ring_set_gpu(struct hm_ring *ring, const char *uuid);
/* Say that the writer ended in order. The mapping stays: other threads may still write. */
HM_HIDDEN void hm_ring_close(struct hm_ring *ring);

static inline uint64_t hm_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* word 0 without its stamp */
static inline uint64_t hm_what(uint8_t kind, uint8_t flags, uint16_t name) {
    return (uint64_t)kind << 32 | (uint64_t)flags << 40 | (uint64_t)name << 48;
}

/* word 3 */
static inline uint64_t hm_where(uint32_t seq, uint16_t peer, uint16_t comm) {
    return (uint64_t)seq | (uint64_t)peer << 32 | (uint64_t)comm << 48;
}

static inline uint64_t hm_claim(struct hm_ring *ring, uint64_t count) {
    return __atomic_fetch_add(ring->head, count, __ATOMIC_ACQ_REL);
}

static inline void hm_write(struct hm_ring *ring, uint64_t index, uint64_t what, uint64_t start_ns,
                            uint64_t duration_ns, uint64_t where, uint64_t value) {
    uint64_t *word = ring->records + (index & ring->mask) * (HM_RECORD_BYTES / 8);
    __atomic_store_n(&word[0], 0, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    word[1] = start_ns;
    word[2] = duration_ns;
    word[3] = where;
    word[4] = value;
    __atomic_store_n(&word[0], what | (uint32_t)(index + 1), __ATOMIC_RELEASE);
}

static inline void hm_event(struct hm_ring *ring, uint64_t what, uint64_t start_ns, uint64_t duration_ns,
                            uint64_t where, uint64_t value) {
    hm_write(ring, hm_claim(ring, 1), what, start_ns, duration_ns, where, value);
}

static inline uint64_t *hm_open_slot(struct hm_ring *ring, int slot) {
    return (uint64_t *)(ring->base + HM_OPEN_OFFSET + slot * HM_RECORD_BYTES);
}

/* Say that an operation has begun; it stands in the open table until hm_leave(slot). */
static inline void hm_enter(struct hm_ring *ring, int slot, uint64_t what, uint64_t start_ns, uint64_t where) {
    uint64_t *word = hm_open_slot(ring, slot);
    word[1] = start_ns;
    word[3] = where;
    __atomic_store_n(&word[0], what | 1, __ATOMIC_RELEASE);
}

static inline void hm_leave(struct hm_ring *ring, int slot) {
    __atomic_store_n(hm_open_slot(ring, slot), 0, __ATOMIC_RELEASE);
}

static inline struct hm_partners *hm_partners_of(struct hm_ring *ring, int slot) {
    return (struct hm_partners *)(ring->base + HM_PARTNERS_OFFSET) + slot;
}

/* Count an event that was not written. */
static inline void hm_refuse(struct hm_ring *ring) {
    __atomic_fetch_add(&((struct hm_header *)ring->base)->refused, 1, __ATOMIC_RELAXED);
}

#endif
