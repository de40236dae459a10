"""Limits of the job's control groups and how often they were hit: a throttled container is a straggler."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from hindmost_agent.files import File, read_once
from hindmost_agent.metric import Metric, Series, counter, gauge, series
from hindmost_agent.sampler import NAN, Host, Sampler, register

if TYPE_CHECKING:
    from pathlib import Path


def _gauge(what: str, text: str) -> Metric:
    return gauge(f"hindmost_node_cgroup_{what}", text, "cgroup")


def _counter(what: str, text: str, *labels: str) -> Metric:
    return counter(f"hindmost_node_cgroup_{what}_total", text, "cgroup", *labels)


CPU_LIMIT = _gauge("cpu_limit_cores", "CPU time that the group may use, in cores; missing if there is no limit.")
PERIODS = _counter("cpu_periods", "Enforcement periods in which the group wanted to run.")
THROTTLED = _counter("cpu_throttled_periods", "Enforcement periods in which the group was stopped.")
THROTTLED_SECONDS = _counter("cpu_throttled_seconds", "Time for which the group was stopped.")
USED = _gauge("memory_used_bytes", "Memory charged to the group, page cache included.")
LIMIT = _gauge("memory_limit_bytes", "Memory that the group may use; missing if there is no limit.")
EVENTS = _counter("memory_events", "Times the group met a memory limit, by what happened.", "event")
PIDS = _gauge("processes", "Processes and threads in the group.")

#: A memory limit of version 1 that is none (the largest multiple of a page).
NO_LIMIT_V1 = 1 << 62
MOST_GROUPS, DEEPEST = 64, 16


class Group:
    """One control group: its files by name, whichever version they are of."""

    def __init__(self, label: str, folders: dict[str, Path]) -> None:
        self.label = label
        self._files = {name: File(folder / name) for name, folder in folders.items() if (folder / name).exists()}

    def first_of(self, known: set[frozenset[str]]) -> bool:
        """Whether it has files, and is none of those that are known already; it is then."""
        files = frozenset(file.path for file in self._files.values())
        new = bool(files) and files not in known
        known.add(files)
        return new

    @property
    def limited(self) -> bool:
        """Whether CPU time or memory is limited here."""
        return CPU_LIMIT in _cpu(self) or LIMIT in _memory(self)

    def read(self, name: str) -> bytes:
        """A file's content; empty when the group has none of this name."""
        return self._files[name].read() if name in self._files else b""

    def number(self, *names: str) -> int | None:
        """The only number of the first of these files that exists; ``None`` for ``max`` and where there is none."""
        data = next((data for name in names if (data := self.read(name).split())), [])
        return int(data[0]) if data and data[0].lstrip(b"-").isdigit() else None

    def table(self, name: str) -> dict[bytes, int]:
        """A file of a name and a number a line."""
        lines = (line.split() for line in self.read(name).splitlines())
        return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}


V2_FILES = ("cpu.max", "cpu.stat", "memory.current", "memory.max", "memory.events", "pids.current")
V1_FILES = {
    "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.stat"),
    "memory": ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.failcnt", "memory.oom_control"),
    "pids": ("pids.current",),
}


def groups_of(host: Host, pid: int) -> list[Group]:
    """The control group of a process, of version 2 or 1, and those above it that have a limit: it binds them all."""
    controllers = {}
    for line in read_once(host.proc / str(pid) / "cgroup").decode("utf-8", "replace").splitlines():
        _, names, path = line.split(":", 2)
        controllers.update(dict.fromkeys(names.split(","), PurePosixPath("/" + path.strip("/"))))
    if (host.cgroup / "cgroup.controllers").exists():
        levels = _levels({"": controllers.get("", PurePosixPath("/"))})
        groups = [Group(str(level[""]), dict.fromkeys(V2_FILES, _below(host.cgroup, level[""]))) for level in levels]
    else:
        levels = _levels({name: path for name, path in controllers.items() if name in V1_FILES})
        groups = [_group_v1(host, level) for level in levels]
    known: set[frozenset[str]] = set()
    return [group for place, group in enumerate(groups) if group.first_of(known) and (place == 0 or group.limited)]


def _levels(paths: dict[str, PurePosixPath]) -> list[dict[str, PurePosixPath]]:
    """From a process's own groups up to the root of each controller, which has no limits of its own."""
    levels = [paths]
    while any(len(path.parts) > 2 for path in levels[-1].values()) and len(levels) < DEEPEST:
        levels.append({name: path.parent for name, path in levels[-1].items() if len(path.parts) > 2})
    return levels


def _below(root: Path, path: PurePosixPath) -> Path:
    """A group's folder. In a container the path may be the host's, and what is mounted is the group itself."""
    folder = root / path.relative_to("/")
    return folder if folder.exists() else root


def _group_v1(host: Host, paths: dict[str, PurePosixPath]) -> Group:
    folders = {
        name: _below(host.cgroup / controller, path)
        for controller, path in paths.items()
        for name in V1_FILES[controller]
    }
    # Controllers need not agree; the deepest path says most of whose group it is.
    return Group(str(max(paths.values(), key=lambda path: len(path.parts), default="/")), folders)


def _cpu(group: Group) -> dict[Metric, float]:
    found: dict[Metric, float] = {}
    quota = group.read("cpu.max").split() or [
        group.read("cpu.cfs_quota_us").strip(),
        group.read("cpu.cfs_period_us").strip(),
    ]
    if quota[0].isdigit() and quota[1].isdigit():
        found[CPU_LIMIT] = int(quota[0]) / int(quota[1])
    stat = group.table("cpu.stat")
    if b"nr_periods" in stat:
        found[PERIODS], found[THROTTLED] = stat[b"nr_periods"], stat[b"nr_throttled"]
        found[THROTTLED_SECONDS] = (
            stat[b"throttled_usec"] / 1e6 if b"throttled_usec" in stat else stat.get(b"throttled_time", NAN) / 1e9
        )
    return found


def _memory(group: Group) -> dict[Metric, float]:
    found: dict[Metric, float] = {}
    used = group.number("memory.current", "memory.usage_in_bytes")
    limit = group.number("memory.max", "memory.limit_in_bytes")
    if used is not None:
        found[USED] = used
    if limit is not None and limit < NO_LIMIT_V1:
        found[LIMIT] = limit
    return found


def _events(group: Group) -> dict[str, float]:
    """Version 2's low, high, max, oom and oom_kill; of version 1 the two that it counts, by the same names."""
    events = {name.decode(): float(count) for name, count in group.table("memory.events").items()}
    if (failures := group.number("memory.failcnt")) is not None:
        events["max"] = failures
    if (kills := group.table("memory.oom_control").get(b"oom_kill")) is not None:
        events["oom_kill"] = kills
    return events


def _all(group: Group) -> dict[Series, float]:
    """Everything that a group says; nothing once it has been removed, and the others go on."""
    label = group.label
    try:
        found = {series(metric, label): value for metric, value in (_cpu(group) | _memory(group)).items()}
        found.update((series(EVENTS, label, event), count) for event, count in _events(group).items())
        processes = group.number("pids.current")
    except OSError:
        return {}
    return found if processes is None else {**found, series(PIDS, label): processes}


@register
class Cgroup(Sampler):
    """The control groups that the node's ranks are in, and those above with a limit, each once."""

    name = "cgroup"
    period = 5.0
    source = "/sys/fs/cgroup, versions 1 and 2"
    metrics = (CPU_LIMIT, PERIODS, THROTTLED, THROTTLED_SECONDS, USED, LIMIT, EVENTS, PIDS)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._generation = -1
        self._groups: list[Group] = []

    def sample(self) -> list[float]:
        if self.host.ranks.generation != self._generation:
            self._follow()
        found: dict[Series, float] = {}
        for group in self._groups:
            found.update(_all(group))
        if self.series != tuple(found):
            self.series = tuple(found)
        return list(found.values())

    def _follow(self) -> None:
        groups: dict[str, Group] = {}
        for rank in self.host.ranks:
            for group in self._found(rank.pid):
                if len(groups) < MOST_GROUPS:
                    groups.setdefault(group.label, group)
        self._groups = list(groups.values())
        self._generation = self.host.ranks.generation

    def _found(self, pid: int) -> list[Group]:
        try:
            return groups_of(self.host, pid)
        except (OSError, ValueError):  # the process has gone
            return []
