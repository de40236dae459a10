"""Where a job's wall-clock time went, from its start to its end; and how many steps, samples or tokens a second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hindmost_judge.model import GPU_TIME, Run, Table, rows
from hindmost_judge.overview import Overview
from hindmost_judge.timeline.phases import training
from hindmost_judge.types import Array, Floats, Ints

#: The parts of a job before its first step.
START_UP = ("launch", "imports", "communicators", "set-up", "first batch")


class WallClock(NamedTuple):
    """R ranks. ``parts``: name to [R] seconds, in the order of time; of each rank they add up to ``seconds``.

    ``whole``: it is known when the job began and ended; else the parts are of what was recorded.
    """

    seconds: float
    ranks: Ints
    parts: dict[str, Floats]
    whole: bool


class Throughput(NamedTuple):
    """R ranks: ``steps`` [R] and samples or tokens ``work`` [R] (NaN: not counted) in ``seconds`` [R] of training.

    ``step_ms`` is the mean step after warm-up; ``None`` is unknown.
    """

    ranks: Ints
    steps: Ints
    work: Floats
    seconds: Floats
    step_ms: float | None

    @property
    def work_per_step(self) -> float | None:
        """Samples or tokens of all ranks in a step; ``None`` where none counted any."""
        return None if np.isnan(self.work).all() else float(np.nansum(self.work / self.steps))

    @property
    def steps_per_s(self) -> float:
        """Of the whole job."""
        if self.step_ms:
            return 1e3 / self.step_ms
        return float(self.steps.max() / np.nanmedian(np.where(self.seconds > 0, self.seconds, np.nan)))

    @property
    def work_per_s(self) -> float | None:
        """Samples or tokens of the whole job; ``None`` where none were counted."""
        return None if self.work_per_step is None else self.work_per_step * self.steps_per_s


def wall_clock(
    run: Run, stalls: Sequence[tuple[float, float]] = (), first: int | None = None, *, hung: bool = False
) -> WallClock | None:
    """The parts of each rank's time; ``None`` where no rank recorded when its steps or collectives were.

    ``stalls`` are (since, until) in seconds from the start of the job, ``first`` the first step after warm-up.
    What follows the last step of a job that ``hung`` is no tear-down.
    """
    table = _spans(run)
    if table is None:
        return None
    known = np.unique(table["rank"])
    row = np.searchsorted(known, table["rank"])
    begin, end = table["start_ns"], table["start_ns"] + table["duration_ns"]
    job = run.job
    began = job.started_ns if job.started_ns else int(begin.min())
    ended = job.ended_ns if job.ended_ns else int(end.max())
    began, ended = min(began, int(begin.min())), max(ended, int(end.max()))
    line, ranks = _Line(row, begin - began, end - began, ended - began, len(known)), len(known)
    of_steps = table.get("kind")
    evaluates = np.zeros(len(row), bool) if of_steps is None else of_steps == "eval"
    warms = np.zeros(len(row), bool)
    if of_steps is not None and first is not None and "step" in table:
        warms = ~evaluates & (table["step"] < first)
    trains, zero = ~evaluates & ~warms, np.zeros(ranks)
    busy = "training" if of_steps is not None else "first to last communication"
    first_ns, last_ns = line.first(), line.last()
    launched = _launched(run, known, began, first_ns)
    imports, joining = _start_up(run, known, began, launched, first_ns)
    parts = {
        "launch": launched,
        "imports": imports,
        "communicators": joining,
        "set-up": first_ns - launched - imports - joining,
        "first batch": zero,
        "warm-up steps": line.lengths(warms),
        busy: line.lengths(trains),
        "evaluation": line.lengths(evaluates),
        "checkpoints": zero,
        "stalls": zero,
        "between steps": last_ns - first_ns - line.lengths(),
        "hang" if hung else "tear-down" if job.ended_ns else "not recorded": float(ended - began) - last_ns,
    }

    def move(ns: Floats, name: str, to: str) -> None:
        """Count so many ns [R] of one part, or all that there is of it, to another."""
        moved = np.minimum(ns, parts[name])
        parts[name], parts[to] = parts[name] - moved, parts[to] + moved

    for name, which in (("warm-up steps", warms), (busy, trains)):
        move(line.at_first(table.get("input_ns"), which), name, "first batch")
    for since, until in stalls:
        left, right = (np.clip(np.full(ranks, one * 1e9), first_ns, last_ns) for one in (since, until))
        within = line.within(left, right, trains)
        move(within, busy, "stalls")
        move(np.maximum(right - left - within, 0.0), "between steps", "stalls")
    wrote = run.steps.get("checkpoint_ns")
    if wrote is not None and "step" in table:
        inside = np.minimum(np.maximum(wrote[run.steps["duration_ns"] > 0], 0), table["duration_ns"])
        move(np.bincount(row, inside * trains, ranks).astype(np.float64), busy, "checkpoints")
    move(_between_steps(run, known, began, line), "between steps", "checkpoints")
    if not job.started_ns:
        parts["set-up"] = sum((parts.pop(name) for name in ("launch", "imports", "communicators")), parts["set-up"])
    shown = {name: values / 1e9 for name, values in parts.items() if (values > 0).any() or name == busy}
    return WallClock((ended - began) / 1e9, known.astype(np.int64), shown, bool(job.started_ns and job.ended_ns))


def _spans(run: Run) -> Table | None:
    """The steps that were marked, else one span of each rank from its first collective to its last.

    Ranks wait in the first for the last to be set up: it counts from its end.
    """
    if rows(run.steps):
        mask = run.steps["duration_ns"] > 0
        names = ("rank", "step", "kind", "start_ns", "duration_ns", "input_ns")
        found = {name: run.steps[name][mask] for name in names if name in run.steps}
        return _without_gaps(found, run) if mask.any() and int(found["start_ns"].min()) > 0 else None
    table = run.collectives
    if not rows(table) or (table["flags"] & GPU_TIME).any() or int(table["start_ns"].min()) <= 0:
        return None  # a GPU's clock is not the job's
    known, row = np.unique(table["rank"], return_inverse=True)
    first, last = np.full(len(known), np.iinfo(np.int64).max), np.zeros(len(known), np.int64)
    ends = table["start_ns"] + np.maximum(table["duration_ns"], 0)
    np.minimum.at(first, row.ravel(), ends)
    np.maximum.at(last, row.ravel(), ends)
    return {"rank": known, "start_ns": first, "duration_ns": last - first}


def _without_gaps(table: Table, run: Run) -> Table:
    """Of a long recording, of which an excerpt was read, steps last until the next that was: in between are others."""
    if run.job.steps is None:
        return table
    order = np.lexsort((table["start_ns"], table["kind"], table["rank"]))
    now, later = order[:-1], order[1:]
    same = (table["rank"][now] == table["rank"][later]) & (table["kind"][now] == table["kind"][later])
    left_out = same & (table["step"][later] > table["step"][now] + 1)
    long = table["duration_ns"].copy()
    long[now[left_out]] = (table["start_ns"][later] - table["start_ns"][now])[left_out]
    return table | {"duration_ns": long}


class _Line:
    """Spans [N] of R ranks as a line of time each: what two of them share counts for the earlier one."""

    def __init__(self, row: Array, begin: Ints, end: Ints, span: int, ranks: int) -> None:
        self._order = np.lexsort((begin, row))
        self._ranks, self.row, begin, end = ranks, row[self._order], begin[self._order], end[self._order]
        apart = self.row.astype(np.int64) * (2 * span + 1)  # one axis for all ranks
        reached = np.maximum.accumulate(end + apart) - apart
        before = np.append(begin[:1], reached[:-1])
        self._first = np.flatnonzero(np.append(True, self.row[1:] != self.row[:-1]))
        before[self._first] = 0
        self.begin = np.maximum(begin, before)
        self.end = np.maximum(reached, self.begin)

    def first(self) -> Floats:
        """[R] begin of the first span."""
        return np.asarray(self.begin[self._first], np.float64)

    def last(self) -> Floats:
        """[R] end of the last."""
        return np.asarray(self.end[np.append(self._first[1:], len(self.end)) - 1], np.float64)

    def lengths(self, which: Array | None = None) -> Floats:
        """[R] length of all spans, or of those of the [N]."""
        return self._of_ranks((self.end - self.begin).astype(np.float64), which)

    def within(self, left: Floats, right: Floats, which: Array | None = None) -> Floats:
        """[R] how much of the time between ``left`` and ``right`` [R] is in these."""
        shared = np.minimum(self.end, right[self.row]) - np.maximum(self.begin, left[self.row])
        return self._of_ranks(np.maximum(shared, 0.0), which)

    def _of_ranks(self, ns: Floats, which: Array | None) -> Floats:
        shown = ns if which is None else ns * which[self._order]
        return np.asarray(np.bincount(self.row, shown, self._ranks), np.float64)

    def at_first(self, values: Ints | None, which: Array) -> Floats:
        """[R] the value of each rank's first span, where that is one of the [N]; what is not known is 0."""
        found, at = np.zeros(self._ranks), self._order[self._first]
        if values is not None:
            found[self.row[self._first]] = np.maximum(values[at], 0) * which[at]
        return found


def _launched(run: Run, known: Array, began: int, first_ns: Floats) -> Floats:
    """[R] ns from the job's start to that of each rank's process; 0 where it is not known."""
    found = np.zeros(len(known))
    place = np.minimum(np.searchsorted(known, run.ranks["rank"]), len(known) - 1)
    there = (known[place] == run.ranks["rank"]) & (run.ranks["start_ns"] > began)
    found[place[there]] = run.ranks["start_ns"][there] - began
    return np.minimum(found, first_ns)


#: What communicators are set up in.
_INITS = ("init", "mpi_init")


def _start_up(run: Run, known: Array, began: int, launched: Floats, first_ns: Floats) -> tuple[Floats, Floats]:
    """[R] ns that a rank's process took to import, and to set up its communicators, before its first step.

    It imports until its last framework is there; a compiled program loads its libraries until it sets up communicators.
    0 where neither was recorded.
    """
    table, count = run.intervals, len(known)
    imports, joining = np.zeros(count), np.zeros(count)
    wanted = np.isin(table["name"], (*_INITS, "import")) & np.isin(table["rank"], known)
    if not wanted.any():
        return imports, joining
    row = np.searchsorted(known, table["rank"][wanted])
    begin = table["start_ns"][wanted] - began
    end = np.minimum(begin + np.maximum(table["duration_ns"][wanted], 0), first_ns[row])
    begin = np.maximum(begin, launched[row])
    early = begin < end
    joins = (table["name"][wanted] != "import") & early
    until = np.full(count, np.inf)
    np.minimum.at(until, row[joins], begin[joins])
    loaded = ~joins & early
    last = np.full(count, -np.inf)
    np.maximum.at(last, row[loaded], end[loaded])
    until = np.where(np.isfinite(last), last, np.where(np.isfinite(until), until, launched))
    if not joins.any():
        return until - launched, joining
    line = _Line(row[joins], begin[joins], end[joins], int(first_ns.max()), count)
    return until - launched - line.within(launched, until), line.lengths()


def _between_steps(run: Run, known: Array, began: int, line: _Line) -> Floats:
    """[R] ns of checkpoints that were written between two steps."""
    found = np.zeros(len(known))
    table = run.intervals
    indices = np.flatnonzero((table["name"] == "checkpoint") & (table["duration_ns"] > 0)) if rows(table) else ()
    for one in indices:
        at = int(np.searchsorted(known, table["rank"][one]))
        if at >= len(known) or known[at] != table["rank"][one]:
            continue
        left = float(table["start_ns"][one] - began)
        right = left + float(table["duration_ns"][one])
        edges = np.zeros(len(known)), np.zeros(len(known))
        edges[0][at], edges[1][at] = left, right
        found[at] += right - left - line.within(*edges)[at]
    return np.maximum(found, 0.0)


def throughput(run: Run, seen: Overview | None) -> Throughput | None:
    """Steps and work of each rank after warm-up; ``None`` where no steps are known."""
    step_ms = None if seen is None or np.isnan(seen.step) else seen.step / 1e6
    table = training(run.steps)
    if seen is not None and len(seen.steps) and rows(table):
        mask = (table["step"] >= seen.steps[0]) & (table["step"] <= seen.steps[-1])
        table = {name: column[mask] for name, column in table.items()}
    if not rows(table):
        if seen is None or step_ms is None:
            return None
        each = np.full(len(seen.ranks), len(seen.steps))
        seconds = np.full(len(seen.ranks), float(np.nansum(seen.period)) / 1e9)
        return Throughput(seen.ranks, each, np.full(len(seen.ranks), np.nan), seconds, step_ms)
    known, row = np.unique(table["rank"], return_inverse=True)
    row, count = row.ravel(), len(known)
    counted = np.bincount(row, table["work"] > 0, count) > 0
    work = np.where(counted, np.bincount(row, np.maximum(table["work"], 0), count), np.nan)
    seconds = np.bincount(row, table["duration_ns"], count) / 1e9
    return Throughput(known.astype(np.int64), np.bincount(row, minlength=count), work, seconds, step_ms)
