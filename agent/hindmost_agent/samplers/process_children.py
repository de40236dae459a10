"""DataLoader workers and other descendants of the ranks: what they use, and which mounts they wait for."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING

from hindmost_agent.files import mount_text, numbers, read_once
from hindmost_agent.jobs.process_tree import children_of_main, descendants
from hindmost_agent.metric import Series, counter, gauge, series
from hindmost_agent.sampler import NAN, Host, Sampler, register
from hindmost_agent.samplers.process_threads import Stat, Sums, stat, waited

if TYPE_CHECKING:
    from pathlib import Path

    from hindmost_agent.jobs.ranks import RankProcess

_BY = ("job", "rank")
CHILDREN = gauge("hindmost_process_children", "Descendants of the rank: DataLoader workers and others.", *_BY)
CHILD_CPU = counter("hindmost_process_children_cpu_seconds_total", "CPU time of the rank's descendants.", *_BY)
CHILD_WAITED = counter(
    "hindmost_process_children_runqueue_seconds_total",
    "Time in which descendants' main threads could have run but had no core, added up.", *_BY,
)  # fmt: skip
CHILD_MEMORY = gauge(
    "hindmost_process_children_resident_memory_bytes",
    "Resident memory of descendants, shared pages counted in each.", *_BY,
)  # fmt: skip
CHILD_READ = counter(
    "hindmost_process_children_read_bytes_total", "Bytes that the rank's descendants fetched from storage.", *_BY
)
CHILD_BLOCKED = gauge(
    "hindmost_process_children_blocked", "Descendants in an uninterruptible wait, mostly for storage.", *_BY
)
MOUNT_BLOCKED = gauge(
    "hindmost_process_mount_blocked",
    "Of the rank and its descendants, those in an uninterruptible wait with a file of this mount open.",
    *_BY, "device", "mountpoint",
)  # fmt: skip

#: State of a process that waits for what cannot be interrupted: storage, mostly.
BLOCKED = "D"
#: All threads are asked for their children in one of so many samples; in the others the main threads are.
THOROUGH = 3
#: File systems whose files are in memory.
IN_MEMORY = {b"tmpfs", b"devtmpfs", b"ramfs", b"proc", b"sysfs", b"devpts", b"hugetlbfs", b"cgroup", b"cgroup2"}
#: Open files of one process that are looked at, the newest first.
MOST_FILES = 64


@register
class ProcessChildren(Sampler):
    """Descendants of each rank; a rank's DataLoader workers count with it."""

    name = "process_children"
    period = 5.0
    source = "/proc/PID/{stat,schedstat,io,fd,mounts}, /proc/PID/task/*/children"
    metrics = (CHILDREN, CHILD_CPU, CHILD_WAITED, CHILD_MEMORY, CHILD_READ, CHILD_BLOCKED, MOUNT_BLOCKED)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._sums: defaultdict[tuple[int, int], Sums] = defaultdict(Sums)
        self._known: dict[tuple[int, int], list[int]] = {}
        self._mounts: defaultdict[tuple[int, int], set[tuple[str, str]]] = defaultdict(set)
        self._samples = 0

    def sample(self) -> list[float]:
        found: dict[Series, float] = {}
        live = {(rank.pid, rank.start_ticks): rank for rank in self.host.ranks.shown()}
        for key in [key for table in (self._sums, self._known, self._mounts) for key in table.keys() - live.keys()]:
            for table in (self._sums, self._known, self._mounts):
                table.pop(key, None)
        thorough = self._samples % THOROUGH == 0
        self._samples += 1
        for key, rank in live.items():
            if thorough or key not in self._known:
                pids = descendants(self.host, rank.pid)
            else:
                pids = list(dict.fromkeys([*self._known[key], *children_of_main(self.host, rank.pid)]))
            if pids is not None:  # else the kernel lists none
                self._known[key] = pids
            found.update(self._of_rank(rank, key, pids))
        if self.series != tuple(found):
            self.series = tuple(found)
        return list(found.values())

    def _of_rank(self, rank: RankProcess, key: tuple[int, int], pids: list[int] | None) -> dict[Series, float]:
        """The descendants of a rank added up, without those that are ranks; without them, the mounts it waits for."""
        proc, who = self.host.proc, (rank.job_id, str(rank.rank))
        children = {pid: one for pid in pids or () if (one := _stat(proc, pid)) is not None}
        found = _added_up(proc, who, children, self._sums[key]) if pids is not None else {}
        main = _stat(proc, rank.pid)
        states = {rank.pid: main} if main is not None else {}
        blocked = [pid for pid, one in (states | children).items() if one.state == BLOCKED]
        mounts = [mount for pid in blocked if (mount := newest_mount(proc / str(pid))) is not None]
        self._mounts[key].update(mounts)
        for mount in sorted(self._mounts[key]):
            found[series(MOUNT_BLOCKED, *who, *mount)] = float(mounts.count(mount))
        return found


def _stat(proc: Path, pid: int) -> Stat | None:
    try:
        return stat(read_once(f"{proc}/{pid}/stat", 4096))
    except (OSError, ValueError, IndexError, OverflowError):  # it has ended
        return None


def _added_up(proc: Path, who: tuple[str, str], children: dict[int, Stat], sums: Sums) -> dict[Series, float]:
    sums.add(
        {
            (pid, one.start): ("all", one.cpu_s, _read_bytes(proc / f"{pid}/io"), _waited(f"{proc}/{pid}"))
            for pid, one in children.items()
        }
    )
    cpu, read, queued = sums.groups.get("all", (0.0, 0.0, 0.0))
    return {
        series(CHILDREN, *who): float(len(children)),
        series(CHILD_CPU, *who): cpu,
        series(CHILD_WAITED, *who): queued,
        series(CHILD_MEMORY, *who): float(sum(one.resident for one in children.values())),
        series(CHILD_READ, *who): read,
        series(CHILD_BLOCKED, *who): float(sum(one.state == BLOCKED for one in children.values())),
    }


def _waited(folder: str) -> float:
    try:
        return waited(folder)
    except (OSError, ValueError):
        return NAN


def _read_bytes(path: Path) -> float:
    """What a process fetched from storage; missing where it may not be read or the kernel does not keep it."""
    try:
        return float(read_once(path, 4096).split()[9])
    except ProcessLookupError:  # it has ended
        return 0.0
    except FileNotFoundError:
        return NAN if path.parent.exists() else 0.0
    except (OSError, ValueError, IndexError):
        return NAN


def newest_mount(folder: Path) -> tuple[str, str] | None:
    """Device and mount point of the file that a process opened last, of those on storage; ``None`` where it has none,
    or may not be looked at.
    """
    try:
        opened = [os.readlink(f"{folder}/fd/{fd}") for fd in numbers(f"{folder}/fd")[: -MOST_FILES - 1 : -1]]  # noqa: PTH115
        mounts = [line.split()[:3] for line in read_once(f"{folder}/mounts").splitlines()]
    except OSError:
        return None
    for path in opened:
        mount = _mount_of(path, [fields for fields in mounts if len(fields) == 3]) if path.startswith("/") else None
        if mount is not None:
            return mount
    return None


def _mount_of(path: str, mounts: list[list[bytes]]) -> tuple[str, str] | None:
    """The deepest mount that a path is below; ``None`` where its files are in memory."""
    below = [
        (len(point), device, point, kind)
        for device, point, kind in ((mount_text(device), mount_text(point), kind) for device, point, kind in mounts)
        if point in ("/", path) or path.startswith(point + "/")
    ]
    if not below:
        return None
    *_, device, point, kind = max(below, key=lambda one: one[0])
    return None if kind in IN_MEMORY else (device, point)
