/* Stands in for Horovod's library: a thread that begins a cycle every 2 ms as operations.cc does, long or short, and a
 * training thread that asks and gives way. */
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

int64_t steady_clock_now(void) __asm__("_ZNSt6chrono3_V212steady_clock3nowEv");

int64_t begun[64]; /* when each cycle began */
volatile int cycles;
static volatile bool stop;

int horovod_rank(void) { return 0; }

static void work(int64_t ns) {
    for (int64_t until = steady_clock_now() + ns; steady_clock_now() < until;)
        ;
}

static bool cycle(int number) {
    int64_t left = (number ? begun[number - 1] + 2000000 : 0) - steady_clock_now();
    struct timespec nap = {.tv_nsec = left};
    if (left > 0)
        nanosleep(&nap, NULL);
    begun[number] = steady_clock_now();
    cycles = number + 1;
    work(number % 3 == 2 ? 4000000 : 100000);
    return !stop && number < 63;
}

static void *loop(void *nothing) {
    for (int number = 0; cycle(number); number++)
        ;
    return nothing;
}

/* Run until so many cycles have begun, the caller giving way meanwhile. */
void run_cycles(int wanted) {
    pthread_t thread;
    pthread_create(&thread, NULL, loop, NULL);
    while (cycles < wanted)
        sched_yield();
    stop = true;
    pthread_join(thread, NULL);
}
