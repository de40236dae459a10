#!/bin/bash
# Slurm TaskProlog (slurm.conf: TaskProlog=/etc/slurm/task-prolog.sh): observes every job of the cluster without a change
# to its script. Lines "export NAME=value" on stdout become the environment of the task.
# The collector runs as a service; /etc/default/hindmost-agent names it. The first rank on each node starts an agent for the
# job, which leaves when the ranks have left. A user who wants none of it: export HINDMOST_PROBE=0.
# The parts in C, for MPI, NCCL, fast hooks and `python -I`, are those of the wheel. Where hindmost was installed from source,
# build them beforehand:
#   XDG_CACHE_HOME=/opt/hindmost/cache /opt/hindmost/bin/hindmost native build
# and, where jobs use more than one MPI, once more with --mpirun for each of them. A job gets the shim that fits the mpirun
# on its PATH; one that fits another MPI would fail its calls, so without a fitting one Python times MPI.
prefix=${HINDMOST_VENV:-/opt/hindmost}
[ "${HINDMOST_PROBE:-1}" = 0 ] && exit 0
[ -n "${HINDMOST_JOB_ID:-}" ] && exit 0 # under hindmost run already
[ -x "$prefix/bin/python" ] || exit 0
settings=${HINDMOST_SETTINGS:-/etc/default/hindmost-agent}
collector=$(sed -n 's/^HINDMOST_COLLECTOR=//p' "$settings" 2>/dev/null)
[ -n "$collector" ] || exit 0

{ read -r inject && read -r fits && read -r prebuilt; } < <("$prefix/bin/python" -c '
import hindmost.inject, hindmost.native.build as build
print(*hindmost.inject.__path__, build.named(build.features(None)), build.PREBUILT, sep="\n")' 2>/dev/null) || exit 0
echo "export HINDMOST_JOB_ID=$SLURM_JOB_ID"
echo "export HINDMOST_RING_DIR=/dev/shm/hindmost-$(id -u)/$SLURM_JOB_ID"
echo "export HINDMOST_COLLECTOR=$collector"
token=${HINDMOST_TOKENS:-/run/hindmost-tokens}/$SLURM_JOB_ID # of prolog.sh
[ -r "$token" ] && echo "export HINDMOST_TOKEN_FILE=$token"
ca=$(sed -n 's/^HINDMOST_TLS_CA=//p' "$settings" 2>/dev/null)
[ -n "$ca" ] && echo "export HINDMOST_TLS_CA=$ca"
echo "export HINDMOST_PYTHON=$prefix/bin/python"
echo "export HINDMOST_LAUNCHER=srun"
echo "export HINDMOST_INJECT=$inject"
echo "export PYTHONPATH=$inject${PYTHONPATH:+:$PYTHONPATH}"

newest() { # of a kind: the wheel's, else what was built
  local folder library found=
  for folder in "$prebuilt" "$prefix/cache/hindmost"; do
    for library in "$folder/$1"-*.so; do
      if [ -r "$library" ] && { [ -z "$found" ] || [ "$library" -nt "$found" ]; }; then found=$library; fi
    done
    [ -n "$found" ] && break
  done
  echo "$found"
}
shim=$(newest "pmpi-$fits") plugin=$(newest nccl) hooks=$(newest ring)
[ -n "$shim" ] || shim=$(newest pmpi-basic) # it has only what every MPI has
if [ -n "$shim" ]; then
  echo "export LD_PRELOAD=$shim${LD_PRELOAD:+:$LD_PRELOAD}"
else
  echo "export HINDMOST_MPI=python"
fi
case ${NCCL_PROFILER_PLUGIN:-} in
  [Nn][Oo][Nn][Ee]) plugin= ;; # the user wants none
  '' | "$plugin") ;;
  *) [ -n "$plugin" ] && echo "export HINDMOST_NCCL_NEXT=$NCCL_PROFILER_PLUGIN" ;; # every call is passed on to it
esac
[ -n "$plugin" ] && printf 'export %s\n' "NCCL_PROFILER_PLUGIN=$plugin" "HINDMOST_NCCL_PLUGIN=$plugin"
[ -n "$hooks" ] && echo "export HINDMOST_RING_MODULE=$hooks"
exit 0
