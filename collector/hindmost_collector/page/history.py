"""What each rank did in each step since a job began, in bounded memory: columns of more and more steps.

A column is the mean of its steps. Where columns run out each takes in its neighbour, and is of twice as many steps.
Values are kept as shares of the step, so that a lane's parts add up whichever steps were measured of each.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from hindmost_judge.overview import Lane, Overview, lanes
from hindmost_judge.types import Array, Floats, Ints

#: Numbers that are kept of one job, of 4 bytes each, and columns in any case and at most.
CELLS, LEAST, MOST = 6_000_000, 48, 512
#: Numbers that all jobs may have together, beyond the least columns.
ALL_CELLS = 12_000_000
#: A page that is open asks at least so often, s.
_OPEN_S = 30.0
#: Steps are counted back by more than this where a job was started again.
_BACK = 5
#: Steps whose pace is the present one.
_NEWEST = 20
#: The plane that is a share of a step's collectives, not of its time: a long step counts no more than another.
_OF_STEPS = "last"


def cells_of(jobs: int) -> int:
    """How many numbers are kept of each of so many jobs."""
    return min(CELLS, ALL_CELLS // max(jobs, 1))


@dataclass(frozen=True)
class Means:
    """R ranks over a range of steps: ``step_ms`` of the mean step, and planes [R] as shares of it."""

    first: int
    last: int
    steps: int
    step_ms: float
    shares: dict[str, Floats]
    on_gpu: bool
    gathers: bool

    def lanes(self) -> dict[str, Lane]:
        """Where a step went, as shares of it."""
        ranks = len(next(iter(self.shares.values())))
        return lanes(self.shares, np.ones(ranks), on_gpu=self.on_gpu, gathers=self.gathers)


@dataclass(frozen=True)
class Heat:
    """Delays of rows of ranks [H] in columns of steps [C]: ``ms`` [H, C], NaN is not measured. A row holds the latest
    of its ranks; ``order`` is the ranks from top to bottom, ``per_row`` how many a row has."""

    ms: Floats
    order: Ints
    per_row: int


class StepHistory:
    """Of one job. Threads that judge add to it, threads that serve read it."""

    def __init__(self, cells: int = CELLS) -> None:
        self._lock = threading.Lock()
        self._cells = cells
        self.revision = 0
        self.watched = float("-inf")  # when a page was last open, on the monotonic clock
        self._clear()

    def _clear(self) -> None:
        self.ranks: Ints = np.empty(0, np.int64)
        self.cohort: Ints = np.empty(0, np.int64)
        self._planes: dict[str, Floats] = {}
        self._width = 1
        self._first = np.empty(0, np.int64)  # of each column: its first step, steps, ns, median and p99 step in ns
        self._count = np.empty(0, np.int64)
        self._ns, self._median, self._slow = (np.empty(0) for _ in range(3))
        self._saved = np.empty(0, bool)
        self._last = -1
        self._pace: tuple[float, float | None] | None = None
        self.gauges: dict[str, Floats] = {}
        self.on_gpu = self.gathers = False

    def bound(self, cells: int) -> None:
        """Keep no more than so many numbers from now on, but the least columns."""
        with self._lock:
            self._cells = cells
            self._fit()

    def is_watched(self) -> bool:
        """Whether a page is open."""
        return time.monotonic() - self.watched < _OPEN_S

    def __bool__(self) -> bool:
        return len(self._first) > 0

    def add(self, seen: Overview, gauges: dict[str, Floats] | None = None, *, without_gap: bool = False) -> None:
        """Take the steps in that are newer than those before; ``without_gap``: only if none is missing between."""
        with self._lock:
            if len(seen.steps) == 0:
                return
            if seen.steps[-1] < self._last - _BACK:
                self._clear()
            if without_gap and (not self or seen.steps[0] > self._last + 1):
                return
            if gauges:
                self.gauges = dict(zip(gauges, self._by_rank(seen, gauges), strict=True))
            new = np.flatnonzero((seen.steps > self._last) & np.isfinite(seen.period) & (seen.period > 0))
            if len(new) == 0:
                return
            self._know(seen)
            self._take(seen, new)
            self._last = int(seen.steps[new[-1]])
            self._pace = self._pace_of(seen, new)
            self.revision += 1

    def _by_rank(self, seen: Overview, gauges: dict[str, Floats]) -> list[Floats]:
        self._know(seen)
        place = np.searchsorted(self.ranks, seen.ranks)
        found = []
        for values in gauges.values():
            one = np.full(len(self.ranks), np.nan)
            one[place] = values
            found.append(one)
        return found

    @staticmethod
    def _pace_of(seen: Overview, new: Ints) -> tuple[float, float | None]:
        """Steps a second, and samples or tokens where these are counted, of the newest steps."""
        newest = new[-_NEWEST:]
        seconds = float(seen.period[newest].sum()) / 1e9
        work = None if seen.work is None else float(np.nansum(seen.work[newest])) / seconds
        return len(newest) / seconds, work or None

    def _know(self, seen: Overview) -> None:
        """Make room for ranks and parts that are new."""
        self.on_gpu, self.gathers = seen.on_gpu, seen.gathers
        union = np.union1d(self.ranks, seen.ranks)
        if len(union) != len(self.ranks):
            place = np.searchsorted(union, self.ranks)
            for name, before in self._planes.items():
                self._planes[name] = np.full((len(union), before.shape[1]), np.nan, np.float32)
                self._planes[name][place] = before
            cohort = np.zeros(len(union), np.int64)
            cohort[place] = self.cohort
            self.ranks, self.cohort = union, cohort
            self.gauges = {}
        self.cohort[np.searchsorted(self.ranks, seen.ranks)] = seen.cohort
        for name in seen.planes.keys() - self._planes.keys():
            self._planes[name] = np.full((len(self.ranks), len(self._first)), np.nan, np.float32)

    @property
    def _most(self) -> int:
        return min(max(self._cells // max(len(self.ranks) * len(self._planes), 1), LEAST), MOST)

    def _fit(self, steps: Ints | None = None) -> None:
        """Make columns wider until they are few enough, with those of these ``steps``."""
        more = np.empty(0, np.int64) if steps is None else steps
        while len(np.union1d(self._first // self._width, more // self._width)) > self._most:
            self._width *= 2
            self._merge(self._first // self._width)

    def _take(self, seen: Overview, new: Ints) -> None:
        steps = seen.steps[new]
        self._fit(steps)
        bucket, starts = np.unique(steps // self._width, return_index=True)
        place, period = np.searchsorted(self.ranks, seen.ranks), seen.period[new]
        ns = np.add.reduceat(period, starts)
        bounds = [*starts.tolist(), len(new)]
        slices = [period[begin:end] for begin, end in pairwise(bounds)]
        for name, before in self._planes.items():
            column = np.full((len(self.ranks), len(bucket)), np.nan, np.float32)
            if name in seen.planes:
                block = seen.planes[name][:, new]
                column[place] = _shares(block, np.ones(len(new)) if name == _OF_STEPS else period, starts)
            self._planes[name] = np.concatenate([before, column], axis=1)
        self._first = np.append(self._first, bucket * self._width)
        self._count = np.append(self._count, np.diff(bounds))
        self._ns = np.append(self._ns, ns)
        self._median = np.append(self._median, [np.median(one) for one in slices])
        self._slow = np.append(self._slow, [np.percentile(one, 99) for one in slices])
        self._saved = np.append(self._saved, np.logical_or.reduceat(seen.checkpoint[new], starts))
        if len(self._first) > len(bucket) and self._first[-len(bucket)] == self._first[-len(bucket) - 1]:
            self._merge(self._first // self._width)

    def _merge(self, group: Ints) -> None:
        """Make one column of those of one group."""
        if len(group) == 0:
            return
        starts = np.flatnonzero(np.diff(group, prepend=group[0] - 1))
        for name, before in self._planes.items():
            weights = self._weight(name)
            self._planes[name] = _shares(before * weights, weights, starts).astype(np.float32)
        weight = np.add.reduceat(self._count, starts)
        self._median = np.add.reduceat(self._median * self._count, starts) / weight
        self._slow = np.maximum.reduceat(self._slow, starts)
        self._count, self._ns = weight, np.add.reduceat(self._ns, starts)
        self._saved = np.logical_or.reduceat(self._saved, starts)
        self._first = group[starts] * self._width

    def _weight(self, name: str) -> Floats:
        """[C] what each column counts for in a mean: of a share of steps its steps, of a share of time its time."""
        return self._count.astype(np.float64) if name == _OF_STEPS else self._ns

    @property
    def last_step(self) -> int:
        """The newest step that is held; -1 where none is."""
        return self._last

    def pace(self) -> tuple[float, float | None] | None:
        """Steps a second and samples or tokens a second of the newest steps; None where unknown."""
        return self._pace

    def columns(self) -> dict[str, Any]:
        """Of each column: its first step, how many it has, their median and p99 in ms, whether a checkpoint was in
        it."""
        with self._lock:
            return {
                "first": self._first.tolist(),
                "count": self._count.tolist(),
                "step_ms": np.round(self._median / 1e6, 4).tolist(),
                "p99_ms": np.round(self._slow / 1e6, 4).tolist(),
                "checkpoint": np.flatnonzero(self._saved).tolist(),
                "last": self._last,
            }

    def means(self, first: int | None = None, last: int | None = None) -> Means | None:
        """The means of the columns within steps ``first`` to ``last``, else of those that have some; None where there
        is none."""
        with self._lock:
            begin, end = self._first, np.append(self._first[1:], self._last + 1)[: len(self._first)]
            low, high = -1 if first is None else first, np.inf if last is None else last
            within = (begin >= low) & (end - 1 <= high)
            at = np.flatnonzero(within if within.any() else (end > low) & (begin <= high))
            if len(at) == 0:
                return None
            held_here = slice(int(at[0]), int(at[-1]) + 1)
            ns = self._ns[held_here]
            weighed = ((name, block, self._weight(name)) for name, block in self._planes.items())
            shares = {name: _mean(block[:, held_here], weight[held_here]) for name, block, weight in weighed}
            until = self._last if at[-1] == len(self._first) - 1 else int(self._first[at[-1] + 1]) - 1
            steps = int(self._count[held_here].sum())
            step_ms = float(ns.sum()) / steps / 1e6
            return Means(int(self._first[at[0]]), until, steps, step_ms, shares, self.on_gpu, self.gathers)

    def each(self) -> tuple[Floats, Means] | None:
        """The ns of each column [C], and all of them at once as means of [R * C], a rank's columns in a row.

        What is measured now and then counts until it is measured again.
        """
        with self._lock:
            if not self:
                return None
            shares = {name: _forward_filled(block.astype(np.float64)).ravel() for name, block in self._planes.items()}
            steps, ns = int(self._count.sum()), float(self._ns.sum())
            found = Means(int(self._first[0]), self._last, steps, ns / steps / 1e6, shares, self.on_gpu, self.gathers)
            return self._ns.copy(), found

    def coarse(self, columns: int) -> StepHistory:
        """A copy of no more than so many columns."""
        made = StepHistory()
        with self._lock:
            for name, value in vars(self).items():
                if name not in ("_lock", "_planes"):
                    setattr(made, name, value)
            made._planes = dict(self._planes)
        while len(made._first) > columns:
            made._width *= 2
            made._merge(made._first // made._width)
        return made

    def heat(self, rows: int, order: Ints | None = None) -> Heat | None:
        """Delays for a screen with so many rows; ``order`` has the places of ranks from top to bottom."""
        with self._lock:
            delay = self._planes.get("delay")
            if delay is None or not self:
                return None
            order = np.arange(len(self.ranks)) if order is None else order
            ms = np.asarray(delay[order] * (self._ns / self._count / 1e6), np.float64)
            ranks = self.ranks[order]
        per_row = max(-(-len(order) // rows), 1)
        return Heat(np.fmax.reduceat(ms, np.arange(0, len(order), per_row), axis=0), ranks, per_row)


def _forward_filled(block: Floats) -> Floats:
    """[R, C] with the last known value of its row, or before it the first, in place of each that is missing."""
    known = ~np.isnan(block)
    if known.all():
        return block
    place = np.where(known, np.arange(block.shape[1]), -1)
    place = np.maximum.accumulate(place, axis=1)
    first = np.argmax(known, axis=1)[:, None]
    return np.asarray(np.take_along_axis(block, np.where(place < 0, first, place), axis=1))


def _mean(block: Floats, weight: Floats) -> Floats:
    """[R] weighted mean of the columns of ``block`` [R, C], each rank's over those in which it was measured."""
    found = np.asarray(block @ (weight / weight.sum()).astype(np.float32), np.float64)
    partly = np.isnan(found)
    if partly.any():
        found[partly] = _shares(block[partly] * weight, weight, np.zeros(1, np.int64))[:, 0]
    return found


def _shares(block: Floats, period: Floats, starts: Array) -> Floats:
    """[R, G] what each group of columns of ``block`` [R, S] is of the time of those in which it was measured."""
    known = ~np.isnan(block)
    if known.all():
        return np.asarray(np.add.reduceat(block, starts, axis=1) / np.add.reduceat(period, starts))
    total = np.add.reduceat(np.where(known, block, 0.0), starts, axis=1)
    base = np.add.reduceat(known * period, starts, axis=1)
    return np.asarray(np.divide(total, base, out=np.full(total.shape, np.nan), where=base > 0))
