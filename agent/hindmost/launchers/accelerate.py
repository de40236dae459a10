"""``accelerate launch``: starts several ranks as torchrun does, and one process plainly, without naming its rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindmost.launchers import _words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NAME = "accelerate"
NATIVE = ("nccl",)
PROGRAMS = frozenset({"accelerate"})
MODULES = ("accelerate.commands.launch", "accelerate.commands.accelerate_cli")


def recognises(argv: Sequence[str]) -> bool:
    """``accelerate launch …``, ``python -m accelerate.commands.launch …``."""
    return _words.position(argv, PROGRAMS) is not None or _words.module(argv, MODULES) is not None


def carry(argv: Sequence[str], names: Sequence[str], environ: Mapping[str, str]) -> list[str]:  # noqa: ARG001
    """Nothing to add: it starts processes on its own node only."""
    return list(argv)


def remote_hosts(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:  # noqa: ARG001
    """None: each node starts its own."""
    return []
