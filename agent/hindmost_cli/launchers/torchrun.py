"""torchrun, ``python -m torch.distributed.run``, and what wraps it: its workers inherit its environment."""

from __future__ import annotations

from collections.abc import Sequence

from hindmost_judge import job_command

from hindmost_cli.launchers import carry, remote_hosts

__all__ = ["carry", "recognises", "remote_hosts"]

NAME = "torchrun"
NATIVE = ("nccl",)
ENVIRONMENT_IS_PRIVATE = True
PROGRAMS = job_command.TORCHRUN
MODULES = ("torch.distributed.run", "torch.distributed.launch", "deepspeed.launcher")


def recognises(argv: Sequence[str]) -> bool:
    """``torchrun …``, ``python -m torch.distributed.run …``, ``deepspeed …``."""
    return job_command.starts(argv, PROGRAMS, MODULES)
