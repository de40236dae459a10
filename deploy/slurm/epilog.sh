#!/bin/bash
# Slurm Epilog (slurm.conf: Epilog=/etc/slurm/epilog.sh), as root on each node when a job ends: removes the rings of this
# job that a killed agent may have left in memory, which the agent has drained by then, and the job's token.
[ -n "${SLURM_JOB_ID:-}" ] && [ -n "${SLURM_JOB_UID:-}" ] || exit 0
rm -f -- "${HINDMOST_TOKENS:-/run/hindmost-tokens}/$SLURM_JOB_ID"
rm -rf -- "/dev/shm/hindmost-$SLURM_JOB_UID/$SLURM_JOB_ID"
exit 0
