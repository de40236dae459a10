/* Reads the kernel's clock and the processor's counter together: pmpi_clock.h says what for. */
#define _GNU_SOURCE
#include "pmpi_clock.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static bool counter_is_fit;

void hm_clock_init(void) {
#if defined(__x86_64__)
    char name[16] = "";
    int file = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    counter_is_fit = read(file, name, sizeof name - 1) > 0 && strcmp(name, "tsc\n") == 0;
    close(file);
#endif
}

static void measure_rate(struct hm_clock *clock, uint64_t counter, uint64_t ns) {
    uint64_t since_ns = ns - clock->from_ns, counts = counter - clock->from_counter;
    bool paused = ns - clock->ns > HM_RATE_LOST_NS || counter < clock->counter;
    if (paused || clock->from_ns == 0) {
        clock->most = 0;
    } else if (since_ns >= HM_RATE_NS && counts > 0) {
        double rate = (double)since_ns / (double)counts;
        clock->rate = (uint64_t)(rate * 4294967296.0);
        clock->most = (uint64_t)(HM_CLOCK_NS / rate);
    }
    if (paused || clock->from_ns == 0 || since_ns >= HM_RATE_OLD_NS) {
        clock->from_counter = counter;
        clock->from_ns = ns;
    }
}

uint64_t hm_clock_read(struct hm_clock *clock) {
    uint64_t ns = hm_now();
    if (counter_is_fit) {
        uint64_t counter = HM_COUNTER();
        measure_rate(clock, counter, ns);
        clock->counter = counter;
        clock->ns = ns;
    }
    return clock->last = ns > clock->last ? ns : clock->last;
}
