/* Two threads with requests of their own: each adds, looks up and forgets its own while the other does. */
#include "pmpi_requests.h"

#include <pthread.h>
#include <stdio.h>

struct hm_library hm_library;

static void *uses_its_own(void *first) {
    long missing = 0;
    for (int round = 0; round < 2000; round++) {
        HM_HANDLE handle = (HM_HANDLE)(uintptr_t)first + (HM_HANDLE)(round % 3);
        hm_request_add(handle, &(struct hm_request){.seq = (uint32_t)round});
        missing += !hm_requests_any() || !hm_request_known(handle);
        hm_request_forget(handle);
        missing += hm_request_known(handle);
    }
    return (void *)missing;
}

int main(void) {
    pthread_t other;
    void *missing_there;
    pthread_create(&other, NULL, uses_its_own, (void *)100);
    void *missing_here = uses_its_own((void *)200);
    pthread_join(other, &missing_there);
    long missing = (long)missing_here + (long)missing_there;
    printf("%ld lookups went wrong\n", missing);
    return missing != 0;
}
