/* Reading the environment that launchers set. */
#define _GNU_SOURCE
#include "identity_env.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct dialect {
    const char *rank, *world_size[2], *local_rank[2], *needs;
};

/* First match wins, as in identity.DIALECTS. */
static const struct dialect dialects[] = {
    {"RANK", {"WORLD_SIZE"}, {"LOCAL_RANK"}, "TORCHELASTIC_RUN_ID"},
    {"HOROVOD_RANK", {"HOROVOD_SIZE"}, {"HOROVOD_LOCAL_RANK"}, NULL},
    {"OMPI_COMM_WORLD_RANK", {"OMPI_COMM_WORLD_SIZE"}, {"OMPI_COMM_WORLD_LOCAL_RANK"}, NULL},
    {"PMI_RANK", {"PMI_SIZE"}, {"MPI_LOCALRANKID", "SLURM_LOCALID"}, NULL},
    {"PMIX_RANK", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, {"SLURM_LOCALID"}, NULL},
    {"SLURM_PROCID", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, {"SLURM_LOCALID"}, "SLURM_STEP_ID"},
    {"RANK", {"WORLD_SIZE"}, {"LOCAL_RANK"}, NULL},
};

bool hm_wanted(void) {
    const char *job = getenv("HINDMOST_JOB_ID"), *directory = getenv("HINDMOST_RING_DIR");
    const char *probe = getenv("HINDMOST_PROBE");
    return job && *job && directory && *directory && !(probe && strcmp(probe, "0") == 0);
}

/* A variable that holds a number from 0; -1 where it does not. */
static int number(const char *variable) {
    const char *text = variable ? getenv(variable) : NULL;
    char *end = NULL;
    long value = text && *text ? strtol(text, &end, 10) : -1;
    return end && *end == '\0' && value >= 0 && value < 1 << 30 ? (int)value : -1;
}

static int first_number(const char *const variables[2]) {
    int value = number(variables[0]);
    return value >= 0 ? value : number(variables[1]);
}

bool hm_place_from_environment(struct hm_identity *who) {
    who->rank = who->world_size = who->local_rank = -1;
    for (size_t i = 0; i < sizeof dialects / sizeof *dialects && who->rank < 0; i++) {
        const struct dialect *dialect = &dialects[i];
        if (dialect->needs && !getenv(dialect->needs))
            continue;
        who->rank = number(dialect->rank);
        who->world_size = first_number(dialect->world_size);
        who->local_rank = first_number(dialect->local_rank);
    }
    return who->rank >= 0;
}

void hm_read_command(char command[HM_COMMAND_BYTES]) {
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, command, HM_COMMAND_BYTES - 1);
    if (file >= 0)
        close(file);
    while (length > 0 && command[length - 1] == '\0')
        length--;
    length = length < 0 ? 0 : length;
    for (ssize_t i = 0; i < length; i++)
        if (command[i] == '\0')
            command[i] = ' ';
    command[length] = '\0';
}
