/* Starting the agent of a node on which none of this job runs yet.
 *
 * The training process must not notice: no SIGCHLD, no child for its wait() to find, no copy of its address space, no
 * fork handlers. So a child that shares our memory (like vfork's) and sends no signal starts the agent as a child of
 * its own, in a new session, and leaves; the agent is init's. Between clone and exec only system calls are made.
 */
#define _GNU_SOURCE
#include "pmpi.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { STACK_BYTES = 64 * 1024, HIGHEST_DESCRIPTOR = 4096 };

struct launch {
    char **argv, **environment;
    char *inner_stack;
};

/* The lock is free: the agent that we start will take it, and exits at once if another was faster. */
static bool nobody_holds_lock(const char *directory) {
    char path[640];
    snprintf(path, sizeof path, "%s/agent.lock", directory);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0)
        return false;
    bool free = flock(file, LOCK_EX | LOCK_NB) == 0;
    close(file);
    return free;
}

/* The environment of the agent: ours without what would make it a rank. */
static char **agent_environment(void) {
    static char off[] = "HINDMOST_PROBE=0";
    size_t count = 0, kept = 0;
    while (environ[count])
        count++;
    char **copy = malloc((count + 2) * sizeof *copy);
    for (size_t i = 0; copy && i < count; i++)
        if (strncmp(environ[i], "LD_PRELOAD=", 11) != 0 && strncmp(environ[i], "HINDMOST_PROBE=", 15) != 0)
            copy[kept++] = environ[i];
    if (copy) {
        copy[kept++] = off;
        copy[kept] = NULL;
    }
    return copy;
}

static void close_all_but_null(void) {
    int null = open("/dev/null", O_RDWR);
    for (int i = 0; i < 3; i++)
        dup2(null, i);
#ifdef SYS_close_range
    if (syscall(SYS_close_range, 3, ~0u, 0) == 0)
        return;
#endif
    for (int i = 3; i < HIGHEST_DESCRIPTOR; i++)
        close(i);
}

/* exec keeps ignored signals and the mask; the agent starts with neither. Until then no handler may run here. */
static void reset_signals(void) {
    struct sigaction standard = {.sa_handler = SIG_DFL};
    sigset_t none;
    for (int signal = 1; signal < NSIG; signal++)
        sigaction(signal, &standard, NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static int become_agent(void *arg) {
    struct launch *launch = arg;
    close_all_but_null();
    reset_signals();
    if (chdir("/") == 0)
        execve(launch->argv[0], launch->argv, launch->environment);
    _exit(127);
}

static int leave_agent_behind(void *arg) {
    struct launch *launch = arg;
    setsid();
    clone(become_agent, launch->inner_stack + STACK_BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, launch);
    _exit(0);
}

static void spawn(char **argv) {
    struct launch launch = {.argv = argv, .environment = agent_environment(), .inner_stack = malloc(STACK_BYTES)};
    char *stack = malloc(STACK_BYTES);
    sigset_t all, before;
    if (launch.environment && launch.inner_stack && stack) {
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before); /* no handler of the program's may run in the child */
        int child = clone(leave_agent_behind, stack + STACK_BYTES, CLONE_VM | CLONE_VFORK, &launch);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (child > 0)
            waitpid(child, NULL, __WCLONE);
    }
    free(stack);
    free(launch.inner_stack);
    free(launch.environment);
}

void hm_start_agent(void) {
    char *collector = getenv("HINDMOST_COLLECTOR"), *python = getenv("HINDMOST_PYTHON");
    char *job = getenv("HINDMOST_JOB_ID"), *directory = getenv("HINDMOST_RING_DIR");
    if (!collector || !*collector || !python || *python != '/' || !nobody_holds_lock(directory))
        return;
    char *argv[] = {python,     "-m", "hindmost",   "agent",   "--collector", collector,
                    "--job-id", job,  "--ring-dir", directory, NULL};
    spawn(argv);
}
