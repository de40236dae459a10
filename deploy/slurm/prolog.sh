#!/bin/bash
# Slurm Prolog (slurm.conf: Prolog=/etc/slurm/prolog.sh), as root on each node before a job starts: makes the token by which the
# job's own agent may send to the collector, and only for this job. Needed where the collector has a secret
# (docs/how-to/secure.md), in a file that root owns: hindmost reads no other user's. The token's file is in /run, the user's alone,
# and epilog.sh removes it.
prefix=${HINDMOST_VENV:-/opt/hindmost} secret=${HINDMOST_SECRET:-/etc/hindmost/secret}
[ -r "$secret" ] && [ -n "${SLURM_JOB_ID:-}" ] && [ -n "${SLURM_JOB_UID:-}" ] || exit 0
folder=${HINDMOST_TOKENS:-/run/hindmost-tokens}
install -d -m 711 "$folder" || exit 0
umask 077
token=$folder/$SLURM_JOB_ID
if ! said=$({ "$prefix/bin/hindmost" pki token "$secret" "$SLURM_JOB_ID" > "$token" \
  && chown "$SLURM_JOB_UID" "$token"; } 2>&1); then
  logger -t hindmost-prolog -p daemon.err -- "job $SLURM_JOB_ID gets no token: $said"
  rm -f "$token"
fi
exit 0
