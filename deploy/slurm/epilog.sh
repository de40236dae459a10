#!/bin/bash
# Slurm Epilog (slurm.conf: Epilog=/etc/slurm/epilog.sh), as root on each node when a job ends: removes the rings of this
# job that a killed agent may have left in memory. The agent has drained them by then.
[ -n "${SLURM_JOB_ID:-}" ] && [ -n "${SLURM_JOB_UID:-}" ] || exit 0
rm -rf -- "/dev/shm/hindmost-$SLURM_JOB_UID/$SLURM_JOB_ID"
exit 0
