"""A plain command: a single process, or a script that starts ranks in a way of its own, which inherit what it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hindmost_cli import launchers
from hindmost_cli.launchers import carry

__all__ = ["carry", "recognises", "remote_hosts"]

NAME = "python"
NATIVE = ("pmpi", "nccl")
ENVIRONMENT_IS_PRIVATE = True


def recognises(argv: Sequence[str]) -> bool:
    """Anything that can be run."""
    return bool(argv)


def remote_hosts(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:  # noqa: ARG001
    """The batch allocation's hosts: the script may start ranks there."""
    return launchers.others(launchers.of_batch(environ))
