"""What metrics say of each rank during given steps: a fault that begins late is looked for where it acts.

Before the first step and after the last a GPU idles, at its highest clock: samples outside of the steps say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes.telemetry import Metrics, has

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hindmost_judge.model import Run
    from hindmost_judge.types import Array, Floats, Ints


#: A sample covers up to a second: it says nothing about chosen steps that are a smaller share of the steps it covers.
_DENSE = 0.3


def scattered(columns: Array) -> bool:
    """Whether these steps (indices) are so few of those between them that samples are not of them alone."""
    return len(columns) < _DENSE * (int(columns.max()) + 1 - int(columns.min()))


@dataclass(frozen=True)
class Source:
    """Where a quantity comes from: a metric, whether it counts up, and labels that its series must have.

    Of a gauge the level is the median, or the mean where ``averaged``: of a state that holds now and then."""

    metric: str
    counter: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    averaged: bool = False


#: Quantities that causes ask for. Gauges as they are, counters as their rate per second.
SOURCES: Mapping[str, Source] = {
    "runqueue": Source("hindmost_process_runqueue_seconds_total", counter=True),
    "threads_runqueue": Source("hindmost_process_thread_group_runqueue_seconds_total", counter=True),
    "cpu": Source("hindmost_process_cpu_seconds_total", counter=True),
    "major_faults": Source("hindmost_process_major_page_faults_total", counter=True),
    "memory_pressure": Source("hindmost_node_pressure_waiting_seconds_total", True, (("resource", "memory"),)),
    "io_pressure": Source("hindmost_node_pressure_waiting_seconds_total", True, (("resource", "io"),)),
    "read": Source("hindmost_process_read_bytes_total", counter=True),
    "written": Source("hindmost_process_written_bytes_total", counter=True),
    "rss": Source("hindmost_process_resident_memory_bytes"),
    "sm_clock": Source("hindmost_gpu_sm_clock_hertz"),
    "clock_reasons": Source("hindmost_gpu_clocks_event_reasons"),
    "power": Source("hindmost_gpu_power_watts"),
    "utilization": Source("hindmost_gpu_utilization_ratio"),
    "used_memory": Source("hindmost_gpu_memory_used_bytes"),
    "own_memory": Source("hindmost_gpu_process_memory_used_bytes"),
}

#: Quantities that are asked for one by one: what a job is bound by, what its workers do, who was stopped.
LEVELS: Mapping[str, Source] = {
    "stopped": Source("hindmost_process_stopped"),
    "blocked": Source("hindmost_process_blocked", averaged=True),
    "children": Source("hindmost_process_children", averaged=True),
    "children_blocked": Source("hindmost_process_children_blocked", averaged=True),
    "children_cpu": Source("hindmost_process_children_cpu_seconds_total", counter=True),
    "children_runqueue": Source("hindmost_process_children_runqueue_seconds_total", counter=True),
    "children_read": Source("hindmost_process_children_read_bytes_total", counter=True),
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

    def level(self, ranks: int, held: Array) -> Floats:
        """[R] median or mean of a gauge, or rate of a rank's counters together, over the samples ``held`` [N]."""
        row, value = self.row[held], self.value[held]
        out = np.full(ranks, np.nan)
        if self.seconds is not None:
            series, first, which = np.unique(self.series[held], return_index=True, return_inverse=True)
            rates = np.bincount(which, value, len(series)) / np.bincount(which, self.seconds[held], len(series))
            sums, known = np.bincount(row[first], rates, ranks), np.bincount(row[first], minlength=ranks) > 0
            return np.where(known, sums, np.nan)
        if self.averaged:
            count = np.bincount(row, minlength=ranks)
            return np.where(count > 0, np.bincount(row, value, ranks) / np.maximum(count, 1), np.nan)
        order = np.lexsort((value, row))
        row, value = row[order], value[order]
        found, first, count = np.unique(row, return_index=True, return_counts=True)
        out[found] = (value[first + (count - 1) // 2] + value[first + count // 2]) / 2
        return out


class Samples:
    """A run's metrics by rank, read for chosen steps.

    ``bounds`` [S + 1] is when each step began on the job clock, and when the last ended; empty where unknown.
    """

    def __init__(self, run: Run, ranks: Ints, bounds: Floats) -> None:
        self._run, self._ranks, self._bounds = run, ranks, bounds
        self._metrics: Metrics | None = None
        self._columns: dict[str, Column | None] = {}
        self._known: dict[bytes, dict[str, Floats]] = {}

    def during(self, steps: Array | None = None) -> dict[str, Floats]:
        """Quantity to [R] over these steps (indices; default all); left out where no rank has it, NaN for ranks without
        it.

        A rank without a sample in those steps, too short for the sampling rate, counts by the samples between the
        first and the last of them, else by all of the run's.
        """
        key = b"" if steps is None else np.asarray(steps).tobytes()
        if key not in self._known:
            self._known[key] = self._during(steps)
        return self._known[key]

    def before(self, step: int) -> dict[str, Floats]:
        """The same over the steps before this one; empty where there are none."""
        return self._during(np.arange(step), strictly=True) if step > 0 and len(self._bounds) else {}

    def typical(self, name: str) -> Floats | None:
        """[R] one quantity over all steps, without reading the others; ``None`` where no rank has it."""
        return self.level(name, None)

    def level(self, name: str, steps: Array | None) -> Floats | None:
        """[R] the same over these steps (indices); of ranks without a sample in them over all."""
        column = self._column(name)
        if column is None:
            return None
        inside, over_all = (column.level(len(self._ranks), self._inside(column.time, held)) for held in (steps, None))
        return np.where(np.isnan(inside), over_all, inside)

    def rise(self, name: str, first: int, stop: int) -> Floats | None:
        """[R] by how much a counter rose at most in steps [first, stop) by index.

        A sample that reaches beyond these steps counts in full: when in it the counter rose is not known. A rank
        without a sample there counts by its rate over all. ``None`` where no rank has the counter, or where it is not
        known when the steps were.
        """
        column = self._column(name)
        if column is None or column.seconds is None or len(self._bounds) < 2:
            return None
        since, until = self._bounds[first], self._bounds[stop]
        half = column.seconds * 5e8
        inside = (column.time + half > since) & (column.time - half < until)
        row, count = column.row[inside], len(self._ranks)
        elsewhere = column.level(count, np.ones(len(column.time), bool)) * (until - since) / 1e9
        sampled = np.bincount(row, minlength=count) > 0
        return np.where(sampled, np.bincount(row, column.value[inside], count), elsewhere)

    def mount(self, row: int) -> tuple[str, str] | None:
        """Device and mount point whose files a rank, or its workers, waited for at most samples; ``None``: at none."""
        self._metrics = self._metrics or Metrics.of(self._run)
        seen = {
            (one.labels["device"], one.labels["mountpoint"]): float(np.nansum(one.values))
            for one in self._metrics.series("hindmost_process_mount_blocked")
            if one.labels.get("rank") == str(self._ranks[row])
        }
        most = max(seen, key=lambda one: seen[one], default=None)
        return most if most is not None and seen[most] > 0 else None

    def taken(self, name: str, steps: Array) -> tuple[Ints, Floats] | None:
        """Row [N] and value [N] of a gauge's samples taken in these steps (indices); ``None`` where no rank has any."""
        column = self._column(name)
        if column is None:
            return None
        held = self._inside(column.time, steps)
        return column.row[held], column.value[held]

    def beside(self, name: str, row: int, per_step: Floats) -> tuple[Floats, Floats, Floats] | None:
        """For each sample of a rank's counter within the steps: its seconds [N], its rise [N], and its part of
        ``per_step`` [S] [N].

        ``None`` where unknown.
        """
        column = self._column(name)
        if column is None or column.seconds is None or len(self._bounds) < 2:
            return None
        seconds = column.seconds
        since, until = (column.time + half * seconds * 1e9 for half in (-0.5, 0.5))
        held = (column.row == row) & (since >= self._bounds[0]) & (until <= self._bounds[-1])
        passed = np.append(0.0, np.cumsum(per_step))
        fell = np.interp(until[held], self._bounds, passed) - np.interp(since[held], self._bounds, passed)
        return seconds[held], column.value[held], fell

    def _column(self, name: str) -> Column | None:
        """Samples are read when first asked for: most runs need few of them."""
        if name not in self._columns:
            self._metrics = self._metrics or Metrics.of(self._run)
            source = SOURCES[name] if name in SOURCES else LEVELS[name]
            self._columns[name] = _column(self._metrics, source, self._ranks)
        return self._columns[name]

    def _during(self, steps: Array | None, strictly: bool = False) -> dict[str, Floats]:
        found = {}
        for name in SOURCES:
            column = self._column(name)
            if column is None:
                continue
            level = column.level(len(self._ranks), self._inside(column.time, steps))
            for wider in () if strictly else self._wider(column, steps):
                if np.isnan(level).any():
                    level = np.where(np.isnan(level), column.level(len(self._ranks), wider), level)
            if not np.isnan(level).all():
                found[name] = level
        if "used_memory" in found and "own_memory" in found:
            found["foreign_memory"] = found["used_memory"] - found["own_memory"]
        return found

    def _wider(self, column: Column, steps: Array | None) -> Iterator[Array]:
        """[N] which samples speak of steps in which there are none: those of the steps between them, then all."""
        if steps is not None and len(steps):
            yield self._inside(column.time, np.arange(int(np.min(steps)), int(np.max(steps)) + 1))
        yield np.ones(len(column.time), bool)

    def _inside(self, time: Array, steps: Array | None) -> Array:
        """[N] which samples were taken in these steps."""
        if len(self._bounds) < 2:
            return np.ones(len(time), bool)
        step = np.searchsorted(self._bounds, time, side="right") - 1
        inside = (step >= 0) & (step < len(self._bounds) - 1)
        return inside if steps is None else inside & np.isin(step, steps)


def _column(metrics: Metrics, source: Source, ranks: Ints) -> Column | None:
    """All samples of a quantity; ``None`` where no rank has any."""
    found = metrics.samples(source.metric)
    if found is None:
        return None
    number, rank = metrics.owners(found)
    order = np.argsort(ranks)
    row = order[np.minimum(np.searchsorted(ranks[order], rank), len(ranks) - 1)]
    ours = ranks[row] == rank
    if source.labels:
        texts = [metrics.labels[label] for label in found.label.tolist()]
        ours &= np.array([has(text, source.labels) for text in texts], bool)[number]
    number, row = number[ours], row[ours]
    series = np.repeat(np.arange(len(found.label)), np.diff(found.first))
    known = ~np.isnan(found.value)
    series, time, value = series[known], found.time[known], found.value[known]
    seconds = np.zeros(len(time))
    if source.counter:
        series, time, value, seconds = _rises(series, time, value)
    first = np.searchsorted(series, np.arange(len(found.label) + 1))
    count = np.diff(first)[number]
    # The samples of each series once for every rank that it is of.
    at = np.repeat(first[number] - np.cumsum(count) + count, count) + np.arange(count.sum())
    if not len(at):
        return None
    columns = np.repeat(row, count), np.repeat(np.arange(len(number)), count), time[at], value[at]
    return Column(*columns, seconds[at] if source.counter else None, source.averaged)


def _rises(series: Ints, time: Array, value: Floats) -> tuple[Ints, Array, Floats, Floats]:
    """Rises of counters and the seconds they took, at the middle between two samples; a reset counts from zero."""
    lasted, rise = np.diff(time), np.diff(value)
    held = (series[1:] == series[:-1]) & (lasted > 0)
    rise = np.where(rise < 0, value[1:], rise)
    return series[1:][held], ((time[1:] + time[:-1]) // 2)[held], rise[held], lasted[held] / 1e9
