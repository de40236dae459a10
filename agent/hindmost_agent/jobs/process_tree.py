"""The processes above a rank and below it: which rank a process belongs to, and what a rank has started."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from hindmost_agent.kernel_files import numbers, read_once

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from hindmost_agent.jobs.ranks import RankProcess
    from hindmost_agent.sampler import Host

#: A process further below a rank than this is not looked for.
MOST_ABOVE = 32


def owner(host: Host, pid: int) -> RankProcess | None:
    """The rank that this process is or that it runs below; ``None``: it belongs to none, or has ended."""
    for _ in range(MOST_ABOVE):
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


MOST_BELOW = 256


def descendants(host: Host, pid: int) -> list[int] | None:
    """Up to ``MOST`` processes below this one, without ranks and what is below them; ``None`` when it is not known.

    Where the kernel does not list children (it is an option), psutil finds them among all processes of the node.
    """
    todo = _children(host.proc / str(pid))
    if todo is None:
        return _by_psutil(host, pid)
    found: list[int] = []
    while todo and len(found) < MOST_BELOW:
        child = todo.pop()
        if host.ranks.get(child) is None:
            found.append(child)
            todo += _children(host.proc / str(child)) or ()
    return found


def children_of_main(host: Host, pid: int) -> list[int]:
    """Children that a process's main thread started, as DataLoader does its workers, without ranks: one file."""
    try:
        listed = read_once(f"{host.proc}/{pid}/task/{pid}/children", 65536).split()
    except OSError:
        return []
    return [int(child) for child in listed if child.isdigit() and host.ranks.get(int(child)) is None]


def _children(folder: Path) -> list[int] | None:
    """Children of all threads of a process; ``None`` where the kernel does not list them."""
    found: list[int] | None = None
    try:
        tasks = numbers(folder / "task")
    except OSError:
        return None
    for task in tasks:
        try:
            listed = read_once(f"{folder}/task/{task}/children", 65536).split()
        except OSError:
            continue
        found = (found or []) + [int(child) for child in listed if child.isdigit()]
    return found


def _by_psutil(host: Host, pid: int) -> list[int] | None:
    try:
        psutil: Any = host.psutil or importlib.import_module("psutil")
    except ImportError:
        return None
    usual, psutil.PROCFS_PATH = psutil.PROCFS_PATH, str(host.proc)
    try:
        below = {child.pid: child.ppid() for child in psutil.Process(pid).children(recursive=True)}
    except (psutil.Error, OSError):
        return None
    finally:
        psutil.PROCFS_PATH = usual
    apart = {child for child in below if host.ranks.get(child) is not None}
    while more := {child for child, parent in below.items() if parent in apart} - apart:
        apart |= more
    return [child for child in below if child not in apart][:MOST_BELOW]
