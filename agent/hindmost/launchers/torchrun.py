"""torchrun, ``python -m torch.distributed.run``, and what wraps it: its workers inherit its environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindmost.launchers import _words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAME = "torchrun"
NATIVE = ("nccl",)
PROGRAMS = frozenset({"torchrun", "deepspeed"})
MODULES = ("torch.distributed.run", "torch.distributed.launch", "deepspeed.launcher")


def recognises(argv: Sequence[str]) -> bool:
    """``torchrun …``, ``python -m torch.distributed.run …``, ``deepspeed …``."""
    return _words.position(argv, PROGRAMS) is not None or _words.module(argv, MODULES) is not None


def carry(argv: Sequence[str], names: Sequence[str], environ: Mapping[str, str]) -> list[str]:  # noqa: ARG001
    """Nothing to add: torchrun starts workers on its own node only."""
    return list(argv)


def remote_hosts(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:  # noqa: ARG001
    """None: each node starts its own torchrun."""
    return []
