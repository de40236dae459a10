/* The table of collectives' requests: a few entries, under one lock, searched in order. */
#include "pmpi_requests.h"

#include <pthread.h>

enum { MOST = 256 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static HM_HANDLE handles[MOST]; /* 0: free */
static struct hm_request requests[MOST];
static int used; /* all places from here on are free */
uint32_t hm_requests_count;
uint64_t hm_messages[HM_MESSAGES];

/* A request belongs to one thread at a time, so that its thread needs no lock to find it. Others may change the
 * table meanwhile, under the lock: what is read without it (`used`, `handles`, the count) is stored atomically. */
static int place_of(HM_HANDLE handle) {
    int until = __atomic_load_n(&used, __ATOMIC_RELAXED);
    for (int i = 0; i < until; i++)
        if (__atomic_load_n(&handles[i], __ATOMIC_RELAXED) == handle)
            return i;
    return -1;
}

static void hold(int place, HM_HANDLE handle) { __atomic_store_n(&handles[place], handle, __ATOMIC_RELAXED); }

static void use_until(int end) { __atomic_store_n(&used, end, __ATOMIC_RELAXED); }

static void count_more(uint32_t by) { __atomic_store_n(&hm_requests_count, hm_requests_count + by, __ATOMIC_RELAXED); }

bool hm_request_known(HM_HANDLE handle) { return place_of(handle) >= 0; }

void hm_request_add(HM_HANDLE handle, const struct hm_request *request) {
    if (handle == hm_library.request_null)
        return; /* already complete */
    pthread_mutex_lock(&lock);
    int place = place_of(handle); /* one that was completed by a call we do not see */
    if (place < 0 && (place = place_of(0)) < 0 && used < MOST) {
        place = used;
        use_until(used + 1);
    }
    if (place >= 0 && handles[place] == 0)
        count_more(1);
    if (place >= 0) {
        hold(place, handle);
        requests[place] = *request;
    }
    pthread_mutex_unlock(&lock);
}

bool hm_request_find(HM_HANDLE handle, struct hm_request *found) {
    pthread_mutex_lock(&lock);
    int place = place_of(handle);
    if (place >= 0)
        *found = requests[place];
    pthread_mutex_unlock(&lock);
    return place >= 0;
}

void hm_request_started(HM_HANDLE handle, uint32_t seq) {
    pthread_mutex_lock(&lock);
    int place = place_of(handle);
    if (place >= 0) {
        requests[place].seq = seq;
        requests[place].idle = false;
    }
    pthread_mutex_unlock(&lock);
}

static bool remove_request(HM_HANDLE handle, bool also_persistent, struct hm_request *found) {
    bool was_running = false;
    pthread_mutex_lock(&lock);
    int place = place_of(handle);
    if (place >= 0) {
        was_running = !requests[place].idle;
        *found = requests[place];
    }
    if (place >= 0 && requests[place].persistent && !also_persistent) {
        requests[place].idle = true;
    } else if (place >= 0) {
        hold(place, 0);
        count_more((uint32_t)-1);
        while (used > 0 && handles[used - 1] == 0)
            use_until(used - 1);
    }
    pthread_mutex_unlock(&lock);
    return was_running;
}

bool hm_request_done(HM_HANDLE handle, struct hm_request *found) { return remove_request(handle, false, found); }

void hm_request_forget(HM_HANDLE handle) { remove_request(handle, true, &(struct hm_request){0}); }
