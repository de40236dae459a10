#!/bin/bash
# Slurm Epilog (slurm.conf: Epilog=/etc/slurm/epilog.sh), as root on each node when a job ends: removes the rings of this
# job that a killed agent may have left in memory, which the agent has drained by then, and the job's token.
[ -n "${SLURM_JOB_ID:-}" ] && [ -n "${SLURM_JOB_UID:-}" ] || exit 0
rm -f -- "${HINDMOST_TOKENS:-/run/hindmost-tokens}/$SLURM_JOB_ID"

# The rings' folder is the user's, who may replace it by a link to another one. So rm has no more rights than the user, and
# starts in the folder that it was checked to be in.
shm=$(realpath "${HINDMOST_SHM:-/dev/shm}") as_user=()
if [ "$(id -u)" = 0 ]; then
  as_user=(setpriv "--reuid=$SLURM_JOB_UID" "--regid=${SLURM_JOB_GID:-65534}" --clear-groups)
fi
# shellcheck disable=SC2016 # expanded by sh
remove='cd -- "$1" && [ "$(env pwd -P)" = "$1" ] && exec rm -rf -- "./$2"'
# The user may stop a process that is the user's.
timeout --kill-after=5 60 "${as_user[@]}" sh -c "$remove" sh "$shm/hindmost-$SLURM_JOB_UID" "$SLURM_JOB_ID" \
  < /dev/null > /dev/null 2>&1
exit 0
