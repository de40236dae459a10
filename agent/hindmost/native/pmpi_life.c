/* From MPI_Init to MPI_Finalize: whether this process is observed, its ring, and the making of communicators. */
#define _GNU_SOURCE
#include "identity_env.h"
#include "pmpi_real.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct hm_pmpi hm_pmpi;
__thread struct hm_thread hm_thread __attribute__((tls_model("initial-exec")));

static bool paused;
static pthread_key_t thread_key;
static uint32_t slots_taken; /* a bit for each slot of the open table */

static const char *const names[] = {
#define HM_NAME(id, text) text,
#include "pmpi_names.h"
#undef HM_NAME
};

static void say(const char *what, const char *why) {
    fprintf(stderr, "hindmost: this rank's MPI calls are not recorded: %s%s%s\n", what, *why ? ": " : "", why);
}

/* A thread that ends writes what it still holds, and gives its slot back, if it has one. */
static void leave_thread(void *unused) {
    (void)unused;
    if (hm_pmpi.active)
        hm_write_folded(&hm_thread);
    if (hm_thread.slot <= 0)
        return;
    hm_leave(&hm_pmpi.ring, hm_thread.slot - 1);
    __atomic_fetch_and(&slots_taken, ~(1u << (hm_thread.slot - 1)), __ATOMIC_RELEASE);
    hm_thread.slot = -1;
}

int hm_take_slot(void) {
    uint32_t taken = __atomic_load_n(&slots_taken, __ATOMIC_ACQUIRE);
    pthread_setspecific(thread_key, &hm_thread);
    while (taken != UINT32_MAX) {
        int slot = __builtin_ctz(~taken);
        if (__atomic_compare_exchange_n(&slots_taken, &taken, taken | 1u << slot, false, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE))
            return slot + 1;
    }
    return -1;
}

/* A forked child is not a rank, whatever it inherits. */
static void in_child(void) { hm_pmpi.active = false; }

/* MPI has this process alone in its world, and no launcher has. It may look only whether there is an MPI, as Lightning
 * does: the first of every such process would be rank 0 of 1 of the same job. */
static void alone(int told_rank, int told_size) {
    if (told_rank == 0 && told_size > 1)
        say("MPI has each rank alone in a world of its own", "start it by the mpirun of the MPI that it is linked with");
}

static bool make_ring(void) {
    char command[HM_COMMAND_BYTES];
    struct hm_identity who = {.job_id = getenv("HINDMOST_JOB_ID"), .framework = "mpi", .command = command};
    int (*rank)(HM_HANDLE, int *) = (int (*)(HM_HANDLE, int *))hm_library_symbol("PMPI_Comm_rank", NULL);
    int (*size)(HM_HANDLE, int *) = (int (*)(HM_HANDLE, int *))hm_library_symbol("PMPI_Comm_size", NULL);
    hm_read_command(command);
    hm_place_from_environment(&who); /* for the local rank; the others MPI knows best */
    const int told_rank = who.rank, told_size = who.world_size;
    if (!rank || !size || rank(hm_library.comm_world, &who.rank) || size(hm_library.comm_world, &who.world_size))
        return say("its rank is not known", ""), false;
    if (who.world_size == 1 && told_size != 1)
        return alone(told_rank, told_size), false;
    const char *directory = getenv("HINDMOST_RING_DIR");
    int error = hm_ring_create(&hm_pmpi.ring, directory, &who, HM_MPI, hm_ring_capacity(HM_MPI_CAPACITY));
    if (error == ENOSPC) /* a container has 64 MiB of shared memory */
        error = hm_ring_create(&hm_pmpi.ring, directory, &who, HM_MPI, hm_ring_capacity(HM_DEFAULT_CAPACITY));
    if (error)
        say(directory, strerror(error));
    return error == 0;
}

/* For a framework that makes MPI calls of its own accord, as Horovod's background thread does in every cycle: they say
 * nothing of the training, and its probe reports the real waits. Called by the probe, by name. */
HM_EXPORT void hindmost_pmpi_pause(void) {
    paused = true;
    hm_pmpi.active = false;
}

/* After MPI_Init, while its threads are not yet ours: from here on calls are recorded. */
void hm_attach(uint64_t start) {
    if (hm_pmpi.ring.base || paused || !hm_wanted())
        return;
    if (!hm_library.known)
        return say("this MPI library is not known", "");
    if (!make_ring())
        return;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        hm_ring_name(&hm_pmpi.ring, names[i]);
    hm_usage_init();
    hm_clock_init();
    hm_pmpi.window_calls = (uint32_t)(hm_pmpi.ring.mask + 1) / 64;
    if (hm_pmpi.window_calls > HM_MOST_CALLS)
        hm_pmpi.window_calls = HM_MOST_CALLS;
    hm_pmpi.short_ns = HM_WINDOW_NS / (hm_pmpi.window_calls + 1);
    if (pthread_key_create(&thread_key, leave_thread) || pthread_atfork(NULL, NULL, in_child) || !hm_comm_init())
        return say("no thread key or communicator attribute left", "");
    hm_event(&hm_pmpi.ring, hm_what(HM_MARK, 0, HM_OP_mpi_init), start, hm_now() - start,
             hm_where(0, HM_NONE16, HM_NONE16), 0);
    hm_thread.files = true;
    hm_pmpi.pid = getpid();
    hm_pmpi.active = true;
    hm_comm_of(hm_library.comm_world);
    hm_start_agent();
}

HM_EXPORT int MPI_Init(int *argc, char ***argv) {
    HM_REAL(MPI_Init, (int *, char ***))
    uint64_t start = hm_now();
    int result = real(argc, argv);
    if (result == HM_MPI_SUCCESS)
        hm_attach(start);
    return result;
}

HM_EXPORT int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    HM_REAL(MPI_Init_thread, (int *, char ***, int, int *))
    uint64_t start = hm_now();
    int result = real(argc, argv, required, provided);
    if (result == HM_MPI_SUCCESS)
        hm_attach(start);
    return result;
}

/* Which rank ended the job: its launcher ends the others within milliseconds, and this one maybe last. */
HM_EXPORT int MPI_Abort(HM_HANDLE comm, int code) {
    HM_REAL(MPI_Abort, (HM_HANDLE, int))
    if (hm_pmpi.active)
        hm_event(&hm_pmpi.ring, hm_what(HM_MARK, 0, HM_OP_mpi_abort), hm_now(), 0, hm_where(0, HM_NONE16, HM_NONE16),
                 (uint64_t)(uint32_t)code);
    return real(comm, code);
}

/* Before MPI_Finalize: nothing more is recorded. Its ranks wait for each other; one that came before the end, as Python
 * does after an exception, waits there for ever. */
void hm_leave_job(uint64_t start) {
    if (hm_pmpi.active)
        hm_open(hm_what(HM_PHASE, 0, HM_OP_mpi_finalize), start, hm_where(0, HM_NONE16, HM_NONE16));
    hm_pmpi.active = false;
}

/* After MPI_Finalize: the last record, and the ring's end. */
void hm_detach(uint64_t start) {
    if (!hm_pmpi.ring.base || hm_pmpi.pid != getpid())
        return;
    hm_write_folded(&hm_thread);
    hm_shut();
    hm_event(&hm_pmpi.ring, hm_what(HM_MARK, 0, HM_OP_mpi_finalize), start, hm_now() - start,
             hm_where(0, HM_NONE16, HM_NONE16), 0);
    hm_ring_close(&hm_pmpi.ring);
    hm_pmpi.pid = 0; /* a Fortran layer may come by the C name inside its own */
}

HM_EXPORT int MPI_Finalize(void) {
    HM_REAL(MPI_Finalize, (void))
    uint64_t start = hm_now();
    hm_leave_job(start);
    int result = real();
    hm_detach(start);
    return result;
}
