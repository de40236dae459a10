#!/bin/bash
# Slurm TaskProlog (slurm.conf: TaskProlog=/etc/slurm/task-prolog.sh): observes every job of the cluster without a change
# to its script. Lines "export NAME=value" on stdout become the environment of the task.
# Each node runs hindmost-agent.service, which finds the rings by itself. A user leaves with HINDMOST_PROBE=0.
prefix=${HINDMOST_VENV:-/opt/hindmost}
[ "${HINDMOST_PROBE:-1}" = 0 ] && exit 0
[ -n "${HINDMOST_JOB_ID:-}" ] && exit 0 # under hindmost run already
[ -x "$prefix/bin/python" ] || exit 0

inject=$("$prefix/bin/python" -c 'import pathlib, hindmost.inject as i; print(pathlib.Path(i.__path__[0]))' 2>/dev/null) || exit 0
echo "export HINDMOST_JOB_ID=$SLURM_JOB_ID"
echo "export HINDMOST_RING_DIR=/dev/shm/hindmost-$(id -u)/$SLURM_JOB_ID"
echo "export HINDMOST_LAUNCHER=srun"
echo "export PYTHONPATH=$inject${PYTHONPATH:+:$PYTHONPATH}"
