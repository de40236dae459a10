"""Processes of this node: which rank one belongs to, what a rank has started, and when and how each ends.

A launcher ends the other ranks within milliseconds of the first; a check once a second would not see which was first.
The kernel reports each end at once, through a pidfd.
"""

import contextlib
import fcntl
import importlib
import os
import select
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hindmost_agent.jobs.ranks import RankProcess
from hindmost_agent.kernel_files import File, numbers, read_once
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
    todo = children(host.proc / str(pid))
    if todo is None:
        return _by_psutil(host, pid)
    found: list[int] = []
    while todo and len(found) < MOST_BELOW:
        child = todo.pop()
        if host.ranks.get(child) is None:
            found.append(child)
            todo += children(host.proc / str(child)) or ()
    return found


def children_of_main(host: Host, pid: int) -> list[int]:
    """Children that a process's main thread started, as DataLoader does its workers, without ranks: one file."""
    listed = _children_of_thread(host.proc / str(pid), pid) or ()
    return [child for child in listed if host.ranks.get(child) is None]


def children(folder: Path) -> list[int] | None:
    """Children of all threads of a process; ``None`` where the kernel does not list them."""
    try:
        listed = [_children_of_thread(folder, task) for task in numbers(folder / "task")]
    except OSError:
        return None
    known = [found for found in listed if found is not None]
    return [child for found in known for child in found] if known else None


def _children_of_thread(folder: Path, task: int) -> list[int] | None:
    try:
        listed = read_once(f"{folder}/task/{task}/children", 65536).split()
    except OSError:
        return None
    return [int(child) for child in listed if child.isdigit()]


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


#: struct pidfd_info of linux/pidfd.h: its mask, and its exit code at the end of its first version.
_INFO = struct.Struct("<Q52xi")
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_HAS_EXIT = 1 << 3


class End:
    """How one process ends. ``ended_ns``: CLOCK_MONOTONIC, ``None`` while it runs or where the kernel cannot tell."""

    def __init__(self, pidfd: int = -1, stat: File | None = None) -> None:
        self.ended_ns: int | None = None
        self._status: int | None = None
        self._pidfd = pidfd
        self._stat = stat

    @property
    def status(self) -> int | None:
        """As waitpid has it; ``None`` while the process runs and where it is unknown (before Linux 6.15, once its
        parent has asked)."""
        if self._status is None and self.ended_ns is not None and self._stat is not None:
            self._status = self._read(self._stat)
        return self._status

    def _read(self, stat: File) -> int | None:
        with contextlib.suppress(OSError, ValueError, IndexError):  # its parent has not asked yet
            return int(stat.read().rpartition(b")")[2].split()[49])
        info = bytearray(_INFO.size)
        _INFO.pack_into(info, 0, _HAS_EXIT, 0)
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._pidfd, _GET_INFO, info)
            mask, status = _INFO.unpack(info)
            return int(status) if mask & _HAS_EXIT else None
        return None

    def close(self) -> None:
        """Keep the status, and close what is open; safe to repeat."""
        self._status = self.status
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        if self._stat is not None:
            self._stat.close()
            self._stat = None


class Ends:
    """Watches processes; its descriptor is readable when one has ended."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, End] = {}

    def fileno(self) -> int:
        """What an event loop waits for."""
        return self._epoll.fileno()

    def watch(self, proc: Path, pid: int, is_it: Callable[[bytes], bool]) -> End:
        """Tell when the process ends, if it still runs and ``is_it`` says of its stat that it is the one meant."""
        pidfd = -1
        try:
            pidfd = os.pidfd_open(pid)
            stat = File(proc / str(pid) / "stat")
            if is_it(stat.read()):
                self._epoll.register(pidfd, select.EPOLLIN)
                end = self._watched[pidfd] = End(pidfd, stat)
                return end
            stat.close()
        except OSError:  # it has ended, is out of reach, or the kernel is older than 5.3
            pass
        if pidfd >= 0:
            os.close(pidfd)
        return End()

    def collect(self, now_ns: int) -> None:
        """Note which processes have ended. epoll reports them in the order in which they did: so are their times."""
        for after, (pidfd, _) in enumerate(self._epoll.poll(0, max(len(self._watched), 1))):
            self._epoll.unregister(pidfd)
            self._watched.pop(pidfd).ended_ns = now_ns + after

    def forget(self, end: End) -> None:
        """Close what is open for it."""
        for pidfd in [one for one, watched in self._watched.items() if watched is end]:
            self._epoll.unregister(pidfd)
            del self._watched[pidfd]
        end.close()

    def close(self) -> None:
        for end in list(self._watched.values()):
            end.close()
        self._watched.clear()
        self._epoll.close()
