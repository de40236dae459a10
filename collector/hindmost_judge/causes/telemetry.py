"""Metrics of nodes, processes and GPUs by rank: the join that labels allow, and what they say of chosen steps.

A fault that begins late is looked for where it acts. Before the first step and after the last a GPU idles, at its
highest clock: samples outside of the steps say nothing.
"""

from __future__ import annotations

import copy
import json
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, wraps
from typing import NamedTuple, TypeVar

import numpy as np

from hindmost_judge.encoding import codes
from hindmost_judge.model import Run, rows
from hindmost_judge.types import Array, Floats, Ints

#: NVML's reason for the clocks of a GPU at its power cap.
POWER_CAP = 0x4
#: Bits of NVML's clocks-event reasons that slow a GPU down: power caps, thermal slow-downs, power brake, sync boost.
SLOWING_REASONS = {
    POWER_CAP: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
#: Names of the other reasons, which slow nothing.
IDLE_REASONS = ("idle", "applications_clocks", "display")


@dataclass(frozen=True)
class Series:
    """One metric's samples in time order, and whose they are."""

    labels: dict[str, str]
    node: str
    times: Array
    values: Floats


class MetricSamples(NamedTuple):
    """One metric's samples, series after series and each in time order: ``first`` [K + 1] is where each begins.

    ``label`` and ``node`` [K] are the series' own, as numbers of ``Metrics.labels`` and ``Metrics.nodes``.
    """

    time: Array
    value: Floats
    first: Ints
    label: Ints
    node: Ints


#: Codes in place of a rank: a series of no rank, of all ranks of its node, of several ranks of one GPU.
NO_RANK, OF_NODE, SEVERAL = -1, -2, -3
#: Up to this many names are numbered in 16 bits: numpy radix-sorts int16, and merges wider integers, which takes
#: longer.
_SHORT = 1 << 15
#: In place of a rank in labels: the process of a command that has no ranks, or none yet.
COMMAND = "-1"
#: Most digits of a rank; a longer number is not a rank.
_DIGITS = 9

_T = TypeVar("_T")


def once_a_run(of: Callable[[Run], _T]) -> Callable[[Run], _T]:
    """Remember what was found of a run, by its id for as long as that lives: arrays have no hash."""
    results: dict[int, _T] = {}

    @wraps(of)
    def remembered(run: Run) -> _T:
        if id(run) not in results:
            results[id(run)] = of(run)
            weakref.finalize(run, results.pop, id(run), None)
        return results[id(run)]

    return remembered


class Metrics:
    """The metrics of a run, looked up by name; names and labels are read once, whatever is asked."""

    def __init__(self, run: Run) -> None:
        self._table, self._ranks = run.metrics, run.ranks
        nothing: tuple[Ints, list[str]] = (np.empty(0, np.int64), [])
        name, self._names = codes(run.metrics["name"]) if rows(run.metrics) else nothing
        self._label, self.labels = codes(run.metrics["labels"]) if rows(run.metrics) else nothing
        self._node, self.nodes = codes(run.metrics["node"]) if rows(run.metrics) else nothing
        self._order = np.argsort(name.astype(np.int16) if len(self._names) <= _SHORT else name, kind="stable")
        self._first = np.searchsorted(name[self._order], np.arange(len(self._names) + 1))
        self._span: tuple[int, int] | None = None

    @property
    def has_ranks(self) -> bool:
        """Whether ranks were recorded."""
        return rows(self._ranks) > 0

    def during(self, since_ns: int, until_ns: int) -> Metrics:
        """The same, of samples that were taken in this time."""
        found = copy.copy(self)
        found._span = since_ns, until_ns
        return found

    @staticmethod
    @once_a_run
    def of(run: Run) -> Metrics:
        """Those of a run, read once for all who ask while it is there."""
        return Metrics(run)

    def samples(self, name: str) -> MetricSamples | None:
        """All samples of this name; ``None`` where there is none."""
        if name not in self._names:
            return None
        one = self._names.index(name)
        indices = self._order[self._first[one] : self._first[one + 1]]
        if self._span is not None:
            taken = self._table["time_ns"][indices]
            indices = indices[(taken >= self._span[0]) & (taken <= self._span[1])]
            if not len(indices):
                return None
        key, time = self._label[indices] * len(self.nodes) + self._node[indices], self._table["time_ns"][indices]
        order = np.lexsort((time, key))
        key, indices = key[order], indices[order]
        begin = np.flatnonzero(np.diff(key, prepend=-1))
        label, node = np.divmod(key[begin], len(self.nodes))
        value = self._table["value"][indices].astype(np.float64)
        return MetricSamples(time[order], value, np.append(begin, len(key)), label, node)

    def series(self, name: str) -> Iterator[Series]:
        """Every series of this name."""
        found = self.samples(name)
        if found is None:
            return
        bounds = zip(found.first[:-1].tolist(), found.first[1:].tolist(), strict=True)
        whose = zip(found.label.tolist(), found.node.tolist(), strict=True)
        for (begin, end), (label, node) in zip(bounds, whose, strict=True):
            yield Series(labels_of(self.labels[label]), self.nodes[node], found.time[begin:end], found.value[begin:end])

    def owners(self, found: MetricSamples) -> tuple[Ints, Ints]:
        """Number of a series and a rank that it is of, for each such pair, [P] and [P].

        A series is of its process' rank, of its GPU's ranks, else of all ranks of its node.
        """
        owner = self._owner[found.label]
        several = np.flatnonzero(owner <= OF_NODE)
        series, rank = list[int](), list[int]()
        columns = (column[several].tolist() for column in (owner, found.node, found.label))
        for number, kind, node, label in zip(several.tolist(), *columns, strict=True):
            of_node = self._of_node.get(self.nodes[node], [])
            ranks = of_node if kind == OF_NODE else self._of_gpu[str(_owner(self.labels[label]))]
            series += [number] * len(ranks)
            rank += ranks
        single = np.flatnonzero(owner >= 0)
        return np.append(single, series).astype(np.int64), np.append(owner[single], rank).astype(np.int64)

    @cached_property
    def _of_node(self) -> dict[str, list[int]]:
        return self._ranks_by("node")

    @cached_property
    def _of_gpu(self) -> dict[str, list[int]]:
        return self._ranks_by("gpu_uuid")

    def _ranks_by(self, column: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for rank, one in zip(self._ranks["rank"].tolist(), self._ranks[column].tolist(), strict=True):
            found.setdefault(one, []).append(rank)
        return found

    @cached_property
    def _owner(self) -> Ints:
        """[L] the rank that series of these labels are of, or what stands for one."""
        of_gpu = {gpu: ranks[0] if len(ranks) == 1 else SEVERAL for gpu, ranks in self._of_gpu.items()}
        whose = map(_owner, self.labels)
        return np.array([of_gpu.get(one, NO_RANK) if isinstance(one, str) else one for one in whose], np.int64)


@lru_cache(1 << 16)  # label texts of all judgements: of a rank's process, its GPU and its process on that
def _owner(text: str) -> int | str:
    """What a series is of, by its labels: a rank, by its number; a GPU, by its name; else its node."""
    labels = labels_of(text)
    if "rank" in labels:
        name = labels["rank"]
        return int(name) if name.isdigit() and len(name) <= _DIGITS else NO_RANK
    return labels.get("gpu_uuid", OF_NODE)


def labels_of(text: str) -> dict[str, str]:
    """The labels of a series from their JSON; none where it is none."""
    try:
        parsed = json.loads(text or "{}")
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in parsed.items()} if isinstance(parsed, dict) else {}


def with_gpus(run: Run) -> Run:
    """The same run, ranks that did not say which GPU is theirs with the one on which their node saw them compute."""
    unknown = run.ranks["gpu_uuid"] == ""
    if not unknown.any() or not rows(run.metrics):
        return run
    info = run.metrics["name"] == "hindmost_gpu_rank_info"
    said = [labels_of(text) for text in np.unique(run.metrics["labels"][info]).tolist()]
    seen = {one["rank"]: one["gpu_uuid"] for one in said if one.get("job") == run.job.id and "gpu_uuid" in one}
    names, said_so = run.ranks["rank"].tolist(), run.ranks["gpu_uuid"].tolist()
    found = [uuid or seen.get(str(rank), "") for rank, uuid in zip(names, said_so, strict=True)]
    return replace(run, ranks={**run.ranks, "gpu_uuid": np.array(found, dtype=np.str_)})


#: A sample covers up to a second: it says nothing about chosen steps that are a smaller share of the steps it covers.
_DENSE = 0.3


def scattered(columns: Array) -> bool:
    """Whether these steps (indices) are so few of those between them that samples are not of them alone."""
    return len(columns) < _DENSE * (int(columns.max()) + 1 - int(columns.min()))


@dataclass(frozen=True)
class Source:
    """Where a quantity comes from: a metric, and the ``resource`` that its series must be of, where it has several.

    Of a gauge the level is the median, or the mean where ``averaged``: of a state that holds now and then. Of a counter
    it is the rate per second."""

    metric: str
    resource: str = ""
    averaged: bool = False

    @property
    def counter(self) -> bool:
        """Whether it counts up."""
        return self.metric.endswith("_total")


#: What is known of each rank, by the name that causes ask for.
SOURCES: Mapping[str, Source] = {
    "runqueue": Source("hindmost_process_runqueue_seconds_total"),
    "threads_runqueue": Source("hindmost_process_thread_group_runqueue_seconds_total"),
    "cpu": Source("hindmost_process_cpu_seconds_total"),
    "system": Source("hindmost_process_system_seconds_total"),
    "stopped": Source("hindmost_process_stopped"),
    "blocked": Source("hindmost_process_blocked", averaged=True),
    "major_faults": Source("hindmost_process_major_page_faults_total"),
    "memory_pressure": Source("hindmost_node_pressure_waiting_seconds_total", "memory"),
    "io_pressure": Source("hindmost_node_pressure_waiting_seconds_total", "io"),
    "read": Source("hindmost_process_read_bytes_total"),
    "read_calls": Source("hindmost_process_read_calls_total"),
    "read_characters": Source("hindmost_process_read_characters_total"),
    "written": Source("hindmost_process_written_bytes_total"),
    "rss": Source("hindmost_process_resident_memory_bytes"),
    "children": Source("hindmost_process_children", averaged=True),
    "children_blocked": Source("hindmost_process_children_blocked", averaged=True),
    "children_cpu": Source("hindmost_process_children_cpu_seconds_total"),
    "children_runqueue": Source("hindmost_process_children_runqueue_seconds_total"),
    "children_read": Source("hindmost_process_children_read_bytes_total"),
    "sm_clock": Source("hindmost_gpu_sm_clock_hertz"),
    "clock_reasons": Source("hindmost_gpu_clocks_event_reasons"),
    "power": Source("hindmost_gpu_power_watts"),
    "utilization": Source("hindmost_gpu_utilization_ratio"),
    "used_memory": Source("hindmost_gpu_memory_used_bytes"),
    "own_memory": Source("hindmost_gpu_process_memory_used_bytes"),
    "sm_activity": Source("hindmost_gpu_sm_activity_ratio"),
    "dram_activity": Source("hindmost_gpu_dram_activity_ratio"),
    "tensor_activity": Source("hindmost_gpu_tensor_activity_ratio"),
    "fp64_activity": Source("hindmost_gpu_fp64_activity_ratio"),
    "fp32_activity": Source("hindmost_gpu_fp32_activity_ratio"),
    "fp16_activity": Source("hindmost_gpu_fp16_activity_ratio"),
    "memory_touched": Source("hindmost_gpu_memory_utilization_ratio"),
}


@dataclass(frozen=True)
class Column:
    """Samples of one quantity, all ranks together: row [N], number of the series [N], time ns [N], value [N].

    For a counter ``value`` is the rise since the sample before and ``seconds`` [N] the time that took.
    """

    row: Ints
    series: Ints
    time: Array
    value: Floats
    seconds: Floats | None = None
    averaged: bool = False

    def level(self, ranks: int, inside: Array) -> Floats:
        """[R] median or mean of a gauge, or rate of a rank's counters together, over the samples ``inside`` [N]."""
        row, value = self.row[inside], self.value[inside]
        out = np.full(ranks, np.nan)
        if self.seconds is not None:
            which = self.series[inside]
            lasted = np.bincount(which, self.seconds[inside])
            series = np.flatnonzero(np.bincount(which))
            rates, owner = np.bincount(which, value)[series] / lasted[series], self._row_of_series[series]
            sums, known = np.bincount(owner, rates, ranks), np.bincount(owner, minlength=ranks) > 0
            return np.where(known, sums, np.nan)
        if self.averaged:
            count = np.bincount(row, minlength=ranks)
            return np.where(count > 0, np.bincount(row, value, ranks) / np.maximum(count, 1), np.nan)
        value, count = self.value[self._order[inside[self._order]]], np.bincount(row, minlength=ranks)
        found = np.flatnonzero(count)
        first, count = np.cumsum(count)[found] - count[found], count[found]
        out[found] = (value[first + (count - 1) // 2] + value[first + count // 2]) / 2
        return out

    @cached_property
    def _order(self) -> Ints:
        """[N] the samples by row, and of one row by value."""
        return np.lexsort((self.value, self.row))

    @cached_property
    def _row_of_series(self) -> Ints:
        """[L] the row that each series is of."""
        found = np.zeros(int(self.series.max(initial=-1)) + 1, np.int64)
        found[self.series] = self.row
        return found


class Samples:
    """A run's metrics by rank, read for chosen steps.

    ``bounds`` [S + 1] is when each step began on the job clock, and when the last ended; empty where unknown.
    """

    def __init__(self, run: Run, ranks: Ints, bounds: Floats) -> None:
        self._run, self._ranks, self._bounds = run, ranks, bounds
        self._columns: dict[str, Column | None] = {}
        self._steps: dict[int, Ints] = {}  # [N] the step of each sample of a column, which stays for as long as this
        self._known: dict[tuple[str, bytes], Floats | None] = {}

    def level(self, name: str, steps: Array | None = None) -> Floats | None:
        """[R] one quantity over these steps (indices; default all); ``None`` where no rank has it, NaN for ranks
        without it.

        A rank without a sample in chosen steps, too short for the sampling rate, counts by the samples between the
        first and the last of them, else by all of the run's. Of all steps it then has none: what it did before or after
        them is not of these.
        """
        key = name, b"" if steps is None else np.asarray(steps).tobytes()
        if key not in self._known:
            between = [] if steps is None or not len(steps) else [np.arange(np.min(steps), np.max(steps) + 1)]
            self._known[key] = self._level(name, [steps, *between], whenever=steps is not None)
        return self._known[key]

    def until(self, step: int, name: str) -> Floats | None:
        """[R] the same over the steps before this one, of ranks with a sample in them; ``None`` where none has any."""
        return self._level(name, [np.arange(step)]) if step > 0 and len(self._bounds) else None

    def _level(self, name: str, times: list[Array | None], *, whenever: bool = False) -> Floats | None:
        """[R] one quantity in the first of these steps in which a rank has samples, else ``whenever`` it has any."""
        if name == "foreign_memory":
            used, own = (self._level(f"{whose}_memory", times, whenever=whenever) for whose in ("used", "own"))
            return None if used is None or own is None else used - own
        column = self.sampled_column(name)
        if column is None:
            return None
        masks = [self._inside(column, steps) for steps in times] + [np.ones(len(column.time), bool)] * whenever
        found = np.full(len(self._ranks), np.nan)
        for inside in masks:
            if np.isnan(found).any():
                found = np.where(np.isnan(found), column.level(len(self._ranks), inside), found)
        return None if np.isnan(found).all() else found

    def rise(self, name: str, first: int, stop: int) -> Floats | None:
        """[R] by how much a counter rose at most in steps [first, stop) by index.

        A sample that reaches beyond these steps counts in full: when in it the counter rose is not known. A rank
        without a sample there counts by its rate over all. ``None`` where no rank has the counter, or where it is not
        known when the steps were.
        """
        column = self.sampled_column(name)
        if column is None or column.seconds is None or len(self._bounds) < 2:
            return None
        since, until = self._bounds[first], self._bounds[stop]
        half = column.seconds * 5e8
        inside = (column.time + half > since) & (column.time - half < until)
        row, count = column.row[inside], len(self._ranks)
        elsewhere = column.level(count, np.ones(len(column.time), bool)) * (until - since) / 1e9
        sampled = np.bincount(row, minlength=count) > 0
        return np.where(sampled, np.bincount(row, column.value[inside], count), elsewhere)

    def apart_from(self, name: str, first: int, stop: int) -> Floats:
        """[R] the level of a counter in the samples that reach into none of steps [first, stop); NaN where unknown."""
        column = self.sampled_column(name)
        if column is None or column.seconds is None or len(self._bounds) < 2:
            return np.full(len(self._ranks), np.nan)
        half = column.seconds * 5e8
        inside = (column.time + half > self._bounds[first]) & (column.time - half < self._bounds[stop])
        return column.level(len(self._ranks), self._inside(column, None) & ~inside)

    def mount(self, row: int) -> tuple[str, str] | None:
        """Device and mount point whose files a rank, or its workers, waited for at most samples; ``None``: at none."""
        seen = {
            (one.labels["device"], one.labels["mountpoint"]): float(np.nansum(one.values))
            for one in Metrics.of(self._run).series("hindmost_process_mount_blocked")
            if one.labels.get("rank") == str(self._ranks[row])
        }
        most = max(seen, key=lambda one: seen[one], default=None)
        return most if most is not None and seen[most] > 0 else None

    def taken(self, name: str, steps: Array) -> tuple[Ints, Floats] | None:
        """Row [N] and value [N] of a gauge's samples taken in these steps (indices); ``None`` where no rank has any."""
        column = self.sampled_column(name)
        if column is None:
            return None
        inside = self._inside(column, steps)
        return column.row[inside], column.value[inside]

    def per_sample(self, name: str, row: int, per_step: Floats) -> tuple[Floats, Floats, Floats] | None:
        """For each sample of a rank's counter within the steps: its seconds [N], its rise [N], and its part of
        ``per_step`` [S] [N].

        ``None`` where unknown.
        """
        column = self.sampled_column(name)
        if column is None or column.seconds is None or len(self._bounds) < 2:
            return None
        seconds = column.seconds
        since, until = (column.time + half * seconds * 1e9 for half in (-0.5, 0.5))
        mask = (column.row == row) & (since >= self._bounds[0]) & (until <= self._bounds[-1])
        passed = np.append(0.0, np.cumsum(per_step))
        fell = np.interp(until[mask], self._bounds, passed) - np.interp(since[mask], self._bounds, passed)
        return seconds[mask], column.value[mask], fell

    def sampled_column(self, name: str) -> Column | None:
        """Samples are read when first asked for: most runs need few of them."""
        if name not in self._columns:
            self._columns[name] = _column(Metrics.of(self._run), SOURCES[name], self._ranks)
        return self._columns[name]

    def _inside(self, column: Column, steps: Array | None) -> Array:
        """[N] which samples were taken in these steps."""
        if len(self._bounds) < 2:
            return np.ones(len(column.time), bool)
        if id(column) not in self._steps:
            self._steps[id(column)] = np.searchsorted(self._bounds, column.time, side="right") - 1
        step = self._steps[id(column)]
        chosen = np.full(len(self._bounds) + 1, steps is None)
        chosen[slice(None) if steps is None else steps] = True
        chosen[-2:] = False  # no step: after the last, and before the first
        return np.asarray(chosen[step])


def _column(metrics: Metrics, source: Source, ranks: Ints) -> Column | None:
    """All samples of a quantity; ``None`` where no rank has any."""
    found = metrics.samples(source.metric)
    if found is None:
        return None
    number, rank = metrics.owners(found)
    order = np.argsort(ranks)
    row = order[np.minimum(np.searchsorted(ranks[order], rank), len(ranks) - 1)]
    ours = ranks[row] == rank
    if source.resource:
        of = [labels_of(metrics.labels[label]).get("resource") for label in found.label.tolist()]
        ours &= np.array([one == source.resource for one in of], bool)[number]
    number, row = number[ours], row[ours]
    series = np.repeat(np.arange(len(found.label)), np.diff(found.first))
    known = ~np.isnan(found.value)
    series, time, value = series[known], found.time[known], found.value[known]
    seconds = np.zeros(len(time))
    if source.counter:
        series, time, value, seconds = rises(series, time, value)
    first = np.searchsorted(series, np.arange(len(found.label) + 1))
    count = np.diff(first)[number]
    # The samples of each series once for every rank that it is of.
    at = np.repeat(first[number] - np.cumsum(count) + count, count) + np.arange(count.sum())
    if not len(at):
        return None
    columns = np.repeat(row, count), np.repeat(np.arange(len(number)), count), time[at], value[at]
    return Column(*columns, seconds[at] if source.counter else None, source.averaged)


def rises(series: Ints, time: Array, value: Floats) -> tuple[Ints, Array, Floats, Floats]:
    """Rises of counters and the seconds they took, at the middle between two samples; a reset counts from zero."""
    lasted, rise = np.diff(time), np.diff(value)
    mask = (series[1:] == series[:-1]) & (lasted > 0)
    rise = np.where(rise < 0, value[1:], rise)
    return series[1:][mask], ((time[1:] + time[:-1]) // 2)[mask], rise[mask], lasted[mask] / 1e9
