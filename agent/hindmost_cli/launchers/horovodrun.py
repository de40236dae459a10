"""horovodrun, over gloo or MPI: it passes its own environment to every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hindmost_judge import job_command

from hindmost_cli import launchers
from hindmost_cli.launchers import carry

__all__ = ["carry", "recognises", "remote_hosts"]

NAME = "horovodrun"
NATIVE = ("pmpi", "nccl")
#: It writes what it exports on the command line of ssh, which every user of the node can read.
ENVIRONMENT_IS_PRIVATE = False
PROGRAMS = job_command.HOROVODRUN
ARITY = dict.fromkeys("-np --num-proc -p --ssh-port -H --hosts -hostfile --hostfile --config-file".split(), 1)


def recognises(argv: Sequence[str]) -> bool:
    return job_command.starts(argv, PROGRAMS, ("horovod.runner",))


def remote_hosts(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Hosts from ``-H`` or ``--hostfile``, or else the batch allocation."""
    at = job_command.position(argv, PROGRAMS)
    found = launchers.named(argv[(at or 0) + 1 :], ARITY, {"-H", "--hosts"}, {"-hostfile", "--hostfile"})
    return launchers.others(found or launchers.of_batch(environ))
