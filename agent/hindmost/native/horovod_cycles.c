/* When the cycles of Horovod's own thread begin, in which it asks all ranks what is ready, and reduces what is.
 *
 * Between two cycles it naps until HOROVOD_CYCLE_TIME has passed since the last one began, then looks at the clock
 * (operations.cc, RunLoopOnce). What is ready at that time is negotiated with the others, and reduced in the same cycle.
 * So a wait of the training thread falls into two: until the cycle that ended it began (the negotiation: others were not
 * ready), and from then on (the transfer). Over MPI and gloo alike, and without Horovod's timeline, whose writer takes a
 * core for itself.
 *
 * Where the thread looks at the clock is learned from the first nap; from then on cycles that are too long for one are
 * seen as well. Nothing is kept but the last of them. The probe says which library is Horovod's; everybody else's naps,
 * yields and looks at the clock pass through at the price of a comparison.
 */
#define _GNU_SOURCE
#include "horovod_cycles.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct hm_cycles hm_cycles;

static uintptr_t low, high; /* where Horovod's library lies */
static pthread_t training;

bool hm_of_horovod(const void *address) { return (uintptr_t)address - low < high - low; }

struct search {
    uintptr_t address, low, high;
};

/* dl_iterate_phdr: the whole extent of the object that holds the address. */
static int find_object(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct search *search = data;
    uintptr_t from = UINTPTR_MAX, to = 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD) {
            uintptr_t start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, end = start + info->dlpi_phdr[i].p_memsz;
            from = start < from ? start : from;
            to = end > to ? end : to;
        }
    if (search->address < from || search->address >= to)
        return 0;
    search->low = from;
    search->high = to;
    return 1;
}

/* Watch the library that holds this address from now on; called by the training thread. What is returned is read only,
 * and stays where it is. NULL: there is no such library. */
HM_EXPORT const struct hm_cycles *hindmost_horovod_watch(const void *address) {
    struct search search = {.address = (uintptr_t)address};
    if (!dl_iterate_phdr(find_object, &search))
        return NULL;
    training = pthread_self();
    high = low = search.low; /* empty in between */
    high = search.high;
    return &hm_cycles;
}

static const void *clock_site;         /* where Horovod's thread reads the clock as a cycle begins */
static __thread bool napped __attribute__((tls_model("initial-exec"))); /* it has just slept, and reads it next */

HM_EXPORT int nanosleep(const struct timespec *wanted, struct timespec *left) {
    int error = clock_nanosleep(CLOCK_REALTIME, 0, wanted, left);
    if (hm_of_horovod(__builtin_return_address(0)) && !pthread_equal(pthread_self(), training))
        napped = true;
    return error ? (errno = error, -1) : 0;
}

/* std::chrono::steady_clock::now, all of it. */
HM_EXPORT int64_t hm_steady_clock_now(void) __asm__("_ZNSt6chrono3_V212steady_clock3nowEv");
int64_t hm_steady_clock_now(void) {
    const void *caller = __builtin_return_address(0);
    uint64_t now = hm_now();
    if (__builtin_expect(napped, 0)) {
        napped = false;
        if (hm_of_horovod(caller))
            __atomic_store_n(&clock_site, caller, __ATOMIC_RELAXED);
    }
    if (__builtin_expect(caller == __atomic_load_n(&clock_site, __ATOMIC_RELAXED), 0)) {
        uint64_t number = __atomic_load_n(&hm_cycles.cycles, __ATOMIC_RELAXED);
        hm_cycles.began[number % HM_CYCLES] = now;
        __atomic_store_n(&hm_cycles.cycles, number + 1, __ATOMIC_RELEASE);
    }
    return (int64_t)now;
}

/* Horovod's training thread waits by asking and giving way, again and again. */
HM_EXPORT int sched_yield(void) {
    if (hm_of_horovod(__builtin_return_address(0)) && pthread_equal(pthread_self(), training))
        __atomic_store_n(&hm_cycles.yielded_ns, hm_now(), __ATOMIC_RELAXED);
    return (int)syscall(SYS_sched_yield);
}
