/* Who this process is in its job, as launchers say it: the C twin of hindmost/identity.py. */
#ifndef HINDMOST_IDENTITY_ENV_H
#define HINDMOST_IDENTITY_ENV_H

#include "ring_write.h"

enum { HM_COMMAND_BYTES = 240 };

/* Whether this process is to be observed at all: a job, a ring directory, and the probe not switched off. */
HM_HIDDEN bool hm_wanted(void);
/* Rank, world size and local rank from the environment; -1 where it does not say. False: it says no rank. */
HM_HIDDEN bool hm_place_from_environment(struct hm_identity *who);
/* The command line, its arguments separated by blanks. */
HM_HIDDEN void hm_read_command(char command[HM_COMMAND_BYTES]);

#endif
