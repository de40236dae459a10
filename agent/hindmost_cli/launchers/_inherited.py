"""What launchers share whose ranks inherit their environment, on the launcher's own node."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def carry(argv: Sequence[str], names: Sequence[str], environ: Mapping[str, str]) -> list[str]:  # noqa: ARG001
    """Nothing to add."""
    return list(argv)


def remote_hosts(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:  # noqa: ARG001
    """None: each node starts its own launcher."""
    return []
