"""Limits of the job's control groups and how often they were hit: a throttled container is a straggler."""

import contextlib
from pathlib import Path, PurePosixPath

from hindmost_agent.kernel_files import File, read_once
from hindmost_agent.sampler import NAN, Host, Metric, Series, TableSampler, counter, gauge, register, series


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
OF_RANK = gauge(
    "hindmost_process_cpu_cgroup_info",
    "1; the rank's control group for CPU time, and the file in its folder that sets a quota; empty if unknown.",
    *("job", "rank", "file", "cgroup"),
)

#: A memory limit of version 1 that is none (the largest multiple of a page).
NO_LIMIT_V1 = 1 << 62
MOST_GROUPS, DEEPEST = 64, 16


class Group:
    """One control group of a controller, or of all in version 2: its files by name."""

    def __init__(self, label: str, folder: Path, names: tuple[str, ...]) -> None:
        self.label = label
        self._files = {name: File(folder / name) for name in names if (folder / name).exists()}
        #: What tells it from others: in a container two paths may be the same folder.
        self.key = frozenset(file.path for file in self._files.values()) or frozenset((label,))

    @property
    def limited(self) -> bool:
        """Whether CPU time or memory is limited here."""
        return CPU_LIMIT in _cpu(self) or LIMIT in _memory(self)

    @property
    def quota(self) -> str:
        """The name of the file that sets its CPU quota; empty where its folder is not the one of its path."""
        names = ("cpu.max", "cpu.cfs_quota_us")
        own = [
            name for name in names if name in self._files and self._files[name].path.endswith(f"{self.label}/{name}")
        ]
        return own[0] if own else ""

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
#: Each controller of version 1 has paths of its own.
V1_FILES = {
    "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.stat"),
    "memory": ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.failcnt", "memory.oom_control"),
    "pids": ("pids.current",),
}


def groups_of(host: Host, lines: str) -> dict[str, list[Group]]:
    """A process's group and those above it, by controller; version 2 has one path for all, here called ``cpu``.

    ``lines``: what the process's file ``cgroup`` says.
    """
    paths = {}
    for line in lines.splitlines():
        _, names, path = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), PurePosixPath("/" + path.strip("/"))))
    if (host.cgroup / "cgroup.controllers").exists():
        return {"cpu": _upwards(paths.get("", PurePosixPath("/")), host.cgroup, V2_FILES)}
    return {name: _upwards(paths[name], host.cgroup / name, files) for name, files in V1_FILES.items() if name in paths}


def _upwards(path: PurePosixPath, root: Path, names: tuple[str, ...]) -> list[Group]:
    """The root is left out: it has no limits of its own."""
    above = [parent for parent in path.parents if len(parent.parts) > 1]
    return [Group(str(one), _below(root, one), names) for one in (path, *above)[:DEEPEST]]


def _below(root: Path, path: PurePosixPath) -> Path:
    """A group's folder. In a container the path may be the host's, and what is mounted is the group itself."""
    folder = root / path.relative_to("/")
    return folder if folder.exists() else root


def _cpu(group: Group) -> dict[Metric, float]:
    found: dict[Metric, float] = {}
    quota = group.read("cpu.max").split() or [group.read(f"cpu.cfs_{what}_us").strip() for what in ("quota", "period")]
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
class Cgroup(TableSampler):
    """The control groups that the node's ranks are in, and those above with a limit, each once."""

    name = "cgroup"
    period = 5.0
    source = "/sys/fs/cgroup, versions 1 and 2, and /proc/PID/cgroup"
    metrics = (CPU_LIMIT, PERIODS, THROTTLED, THROTTLED_SECONDS, USED, LIMIT, EVENTS, PIDS, OF_RANK)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._placed: dict[tuple[str, int], str] = {}
        self._groups: list[Group] = []
        self._of_ranks: list[Series] = []

    def table(self) -> dict[Series, float]:
        placed = {}
        for rank in self.host.ranks.shown():
            with contextlib.suppress(OSError):  # the process has gone
                page = read_once(self.host.proc / str(rank.pid) / "cgroup")
                placed[rank.job_id, rank.rank] = page.decode("utf-8", "replace")
        if placed != self._placed:  # a launcher or a service may move a rank after its start
            self._placed = placed
            self._follow()
        found = dict.fromkeys(self._of_ranks, 1.0)
        for group in self._groups:
            found.update(_all(group))
        return found

    def _follow(self) -> None:
        groups: dict[frozenset[str], Group] = {}
        shown: list[Group] = []
        self._of_ranks = []
        for (job, rank), lines in self._placed.items():
            with contextlib.suppress(OSError, ValueError):
                for controller, paths in groups_of(self.host, lines).items():
                    levels = [groups.setdefault(path.key, path) for path in paths]
                    shown += [level for level in levels if level is levels[0] or level.limited]
                    if controller == "cpu":
                        file = next((level.quota for level in levels if level.quota), "")
                        self._of_ranks.append(series(OF_RANK, job, str(rank), file, levels[0].label))
        self._groups = list(dict.fromkeys(shown))[:MOST_GROUPS]
