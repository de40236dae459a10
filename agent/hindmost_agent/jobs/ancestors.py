"""The rank that a process belongs to: itself, or the nearest of those that started it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindmost_agent.files import read_once

if TYPE_CHECKING:
    from pathlib import Path

    from hindmost_agent.jobs.ranks import RankProcess
    from hindmost_agent.sampler import Host

#: A process further below a rank than this is not looked for.
MOST = 32


def owner(host: Host, pid: int) -> RankProcess | None:
    """The rank that this process is or that it runs below; ``None``: it belongs to none, or has ended."""
    for _ in range(MOST):
        rank = host.ranks.get(pid)
        if rank is not None:
            return rank
        above = parent(host.proc, pid)
        if above is None or above <= 1:
            return None
        pid = above
    return None


def parent(proc: Path, pid: int) -> int | None:
    """The process that started this one (field 4 of its stat); ``None``: there is no such process."""
    try:
        return int(read_once(proc / str(pid) / "stat", 4096).rsplit(b")", 1)[1].split()[1])
    except (OSError, ValueError, IndexError):
        return None
