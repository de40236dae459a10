#!/bin/bash
# Slurm EpilogSlurmctld (slurm.conf: EpilogSlurmctld=/etc/slurm/epilog-slurmctld.sh), as the Slurm user on the controller's
# host when a job ends: has the summary of the job written into its AdminComment, once the collector has the last of it.
# The controller does not wait, and at most eight such commands run at once. /etc/default/hindmost-slurm names the
# collector's page and, where it has a secret, a file with it that the Slurm user reads:
#   HINDMOST_PAGE=collector.example.org:9461
#   HINDMOST_TOKEN_FILE=/etc/hindmost/secret
#   HINDMOST_TLS_CA=/etc/hindmost/ca.pem
# What is missed while the collector is away or many jobs end at once, hindmost-slurm.timer writes later.
prefix=${HINDMOST_VENV:-/opt/hindmost} settings=${HINDMOST_SLURM_SETTINGS:-/etc/default/hindmost-slurm}
[ -n "${SLURM_JOB_ID:-}" ] && [ -x "$prefix/bin/hindmost" ] || exit 0
set -a
# shellcheck source=/dev/null
[ -r "$settings" ] && . "$settings"
set +a
# Other users may write to the folder's parent: they hold no slot and place no link.
slots=${HINDMOST_SLURM_SLOTS:-/tmp/hindmost-slurm-$(id -u)}
mkdir -m 700 "$slots" 2> /dev/null
if [ -L "$slots" ] || [ ! -d "$slots" ] || [ ! -O "$slots" ]; then
  logger -t hindmost-slurm "job $SLURM_JOB_ID: $slots is no folder of this user: its summary is left to hindmost-slurm.timer"
  exit 0
fi
for slot in {1..8}; do
  exec 9>> "$slots/$slot" # held by those who inherit it, until the last of them ends
  flock --nonblock 9 || continue
  # Slurm waits for the end of the script's output, too.
  {
    setsid "$prefix/bin/hindmost" slurm "$SLURM_JOB_ID" --wait "${HINDMOST_SLURM_WAIT:-120}" \
      --collector "${HINDMOST_PAGE:-127.0.0.1:9461}" 2>&1 | logger -t hindmost-slurm
  } < /dev/null > /dev/null 2>&1 &
  exit 0
done
logger -t hindmost-slurm "job $SLURM_JOB_ID: no slot is free: its summary is left to hindmost-slurm.timer"
exit 0
