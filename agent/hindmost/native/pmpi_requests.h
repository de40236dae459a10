/* Requests of collectives: what a wait is for, and what a start begins. Point-to-point requests are not kept. */
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

#endif
