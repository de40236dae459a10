/* Requests: of collectives, what a wait is for, and what a start begins; of messages, with whom. */
#ifndef HINDMOST_PMPI_REQUESTS_H
#define HINDMOST_PMPI_REQUESTS_H

#include "pmpi.h"

struct hm_request {
    struct hm_communicator *comm;
    uint32_t seq; /* of the running one */
    bool persistent;
    bool idle; /* persistent, and not started since it was made or last completed */
    enum hm_operation operation;
    int root;
    int64_t bytes;
};

/* Remember a collective's request. When the table is full it is forgotten, and its wait is one of no known collective. */
HM_HIDDEN void hm_request_add(HM_HANDLE handle, const struct hm_request *request);
/* Whether there is anything to look up at all: a load, so that programs without such requests pay nothing. */
static inline bool hm_requests_any(void) {
    extern HM_HIDDEN uint32_t hm_requests_count;
    return __atomic_load_n(&hm_requests_count, __ATOMIC_RELAXED) != 0;
}
/* Whether a request is known. */
HM_HIDDEN bool hm_request_known(HM_HANDLE handle);
/* What is known of a request; false: nothing. */
HM_HIDDEN bool hm_request_find(HM_HANDLE handle, struct hm_request *found);
/* Note the sequence number with which a persistent request was started. */
HM_HIDDEN void hm_request_started(HM_HANDLE handle, uint32_t seq);
/* A wait or a test has completed it: forget it, or note that it is idle if it is persistent. False: it is
 * unknown, or was idle before. */
HM_HIDDEN bool hm_request_done(HM_HANDLE handle, struct hm_request *found);
/* MPI_Request_free. */
HM_HIDDEN void hm_request_forget(HM_HANDLE handle);

/* A message's request in one word, so that no thread reads half of what another writes: 31 bits of a hash of the
 * request's handle, whether it sends, its communicator and its peer. An entry stays until another request has its place:
 * many calls complete requests, and few handles are used again for another kind. */
enum { HM_MESSAGES = 4096 };

static inline uint64_t hm_message_hash(HM_HANDLE handle) { return handle * 0x9E3779B97F4A7C15ull; }

static inline uint64_t *hm_message_place(uint64_t hash) {
    extern HM_HIDDEN uint64_t hm_messages[HM_MESSAGES];
    return &hm_messages[hash >> 52];
}

/* Open MPI and MPICH have shared requests for what was complete when its call returned: those say nothing. */
static inline bool hm_is_shared(HM_HANDLE handle) {
    return hm_library.int_handles ? handle >> 30 == 1 : handle == hm_library.request_empty;
}

static inline void hm_message_add(HM_HANDLE handle, uint16_t comm, uint16_t peer, bool sends) {
    uint64_t hash = hm_message_hash(handle);
    if (!hm_is_shared(handle))
        __atomic_store_n(hm_message_place(hash), hash << 12 >> 33 << 33 | (uint64_t)sends << 32 | (uint64_t)comm << 16 | peer,
                         __ATOMIC_RELAXED);
}

/* What is known of a message's request; 0: nothing. */
static inline uint64_t hm_message_find(HM_HANDLE handle) {
    uint64_t hash = hm_message_hash(handle), word = __atomic_load_n(hm_message_place(hash), __ATOMIC_RELAXED);
    return (word ^ hash << 12) >> 33 ? 0 : word;
}

static inline uint16_t hm_message_peer(uint64_t word) { return (uint16_t)word; }
static inline uint16_t hm_message_comm(uint64_t word) { return (uint16_t)(word >> 16); }
static inline uint8_t hm_message_flags(uint64_t word) { return word >> 32 & 1 ? HM_SENDS : 0; }

#endif
