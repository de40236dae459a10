"""``accelerate launch``: starts several ranks as torchrun does, and one process plainly, without naming its rank."""

from __future__ import annotations

from collections.abc import Sequence

from hindmost_judge import job_command

from hindmost_cli.launchers import carry, remote_hosts

__all__ = ["carry", "recognises", "remote_hosts"]

NAME = "accelerate"
NATIVE = ("nccl",)
ENVIRONMENT_IS_PRIVATE = True
PROGRAMS = job_command.ACCELERATE
MODULES = ("accelerate.commands.launch", "accelerate.commands.accelerate_cli")


def recognises(argv: Sequence[str]) -> bool:
    """``accelerate launch …``, ``python -m accelerate.commands.launch …``."""
    return job_command.starts(argv, PROGRAMS, MODULES)
