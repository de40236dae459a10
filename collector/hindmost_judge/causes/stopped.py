"""Ranks whose process was stopped: by SIGSTOP or a like signal, or by a debugger.

The agent samples the state of each process about once a second, on full cores every two seconds, at irregular times.
A process stopped at a sample is a fact; one that is not says nothing of the time between samples. So a stop lasted at
least from its first sample to its last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hindmost_judge.blocks import Blocks
from hindmost_judge.causes.telemetry import Metrics
from hindmost_judge.model import Run
from hindmost_judge.settings import Settings
from hindmost_judge.stats import recurring_events
from hindmost_judge.stats.robust import median, or_zero, peers_median
from hindmost_judge.types import Array, Ints
from hindmost_judge.verdict import wording
from hindmost_judge.verdict.schema import LATE, Stall, Verdict

METRIC = "hindmost_process_stopped"
#: A stop accounts for a wait from this share of it on.
_MOST = 0.5
#: A debugger or a tracer may stop a process for a moment: one sample shows no more than that, unless steps that are as
#: late as its own, within this factor, recur.
_SAMPLES, _ALIKE = 2, 1.5
#: So few samples of a rank that is stopped for as long as it is late are chance in one job of so many.
_SELDOM = 0.05
#: A rank that is stopped all the time runs at a sample with this chance: states are read a little later.
_NEVER = 1e-6


def stopped_samples(run: Run) -> Array:
    """When samples show a rank stopped, ns of the job clock, in order."""
    return np.sort(np.concatenate([np.zeros(0, np.int64), *(time[stopped] for _, time, stopped in _sampled(run))]))


def during(run: Run, since: int, until: int) -> dict[int, float]:
    """Rank to the seconds, at least, that it was stopped between these times (ns), of the ranks stopped for most of it:
    each sample stands for the time that is nearer to it than to others."""
    seconds: dict[int, float] = {}
    for rank, time, stopped in _sampled(run):
        overlaps = (min(end, until) - max(begin, since) for begin, end in _stops(time, stopped))
        lasted, inside = sum(max(one, 0) for one in overlaps), stopped[(time >= since) & (time <= until)]
        edges = np.clip(np.concatenate([[since], (time[1:] + time[:-1]) // 2, [until]]), since, until)
        most = np.diff(edges)[stopped].sum() >= _MOST * (until - since)
        if most and (lasted > 0 or (inside.size and inside.all())):
            seconds[rank] = max(lasted / 1e9, seconds.get(rank, 0.0))
    return seconds


def to_the_end(run: Run) -> dict[int, tuple[int, int]]:
    """Rank to the first and last sample (ns) of a stop after which it did not run, or only to be ended with its job."""
    end = run.job.ended_ns or int(run.metrics["time_ns"].max(initial=0))
    found = dict[int, tuple[int, int]]()
    for rank, time, stopped in _sampled(run):
        first, last = [(end, end), *_stops(time, stopped)][-1]
        if end - last < _MOST * (last - first) and (stopped[-1] or not run.at_work):
            found[rank] = first, last
    return found


def _sampled(run: Run) -> list[tuple[int, Array, Array]]:
    """Rank, times and whether it was stopped then, of ranks that were at any of them."""
    metrics = Metrics.of(run)
    found = metrics.samples(METRIC)
    if found is None or not (found.value > 0).any():
        return []
    owners = [*zip(*(column.tolist() for column in metrics.owners(found)), strict=True)]
    spans = [(rank, slice(int(found.first[at]), int(found.first[at + 1]))) for at, rank in owners]
    every = [(rank, found.time[span], found.value[span] > 0) for rank, span in spans]
    return [one for one in every if one[2].any()]


def _stops(time: Array, stopped: Array) -> list[tuple[int, int]]:
    """First and last sample, ns of the job clock, of every stop that was seen in at least two samples."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], stopped, [False]])))
    pairs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return [(int(time[first]), int(time[end - 1])) for first, end in pairs if end - first >= _SAMPLES]


def stopped_rows(blocks: Blocks) -> list[int]:
    """Rows that were stopped at a sample, unless most were, as a job that a scheduler suspends."""
    rows: list[int] = np.flatnonzero(_counted(blocks)[0]).tolist()
    return rows if len(rows) <= len(blocks.ranks) / 2 else []


def bears_out(blocks: Blocks, row: int, share: float) -> bool:
    """Whether samples show a row stopped as often as it is late, a ``share`` of the time."""
    stopped, samples = _counted(blocks)
    return _may_be(stopped[row], samples[row], share)


def _may_be(stopped: int, samples: int, share: float) -> bool:
    """Whether a rank that is stopped for this ``share`` of the time may be seen so at no more of so many samples."""
    return recurring_events.tail(samples - stopped, samples, max(1 - share, _NEVER)) > _SELDOM


def in_collectives(blocks: Blocks, settings: Settings) -> Blocks:
    """The same with what a rank held up when it was stopped inside collectives as a delay of its own.

    All ranks leave such a collective late and alike; if no call of it is known, all take as much longer between two.
    Only samples say whose stop it was: where they show one rank stopped, as often as these delays last, alone or with
    those of its own, and they are of one size. All ranks may do something between collectives now and then, such as
    saving: such delays are stops only if samples that show one are in them by no chance.
    """
    rows = stopped_rows(blocks)
    if len(rows) != 1 or blocks.overlapped or np.isnan(blocks.transfer).all(axis=0).any():
        return blocks
    row, least = rows[0], settings.stall_effect * blocks.step_ns
    inside, between = (or_zero(np.nanmin(block, axis=0)) for block in (blocks.transfer, blocks.self_time))
    inside, between = inside - median(inside), between - median(between)
    stops = blocks.delay.copy()
    stops[row] = np.maximum(or_zero(stops[row]), 0.0)
    own = (np.arange(len(stops)) == row)[:, None]
    for series, unseen in ((own * inside, 0.0), (stops + own * inside, 0.0), (stops + own * (inside + between), 1.0)):
        found = [one for one in recurring_events.find(series, least, settings.min_stalls, rows) if one.row == row]
        steps = found[0].steps if found else np.zeros(0, np.int64)
        if not found or not bears_out(blocks, row, float(series[row, steps].sum() / np.nansum(blocks.period))):
            continue
        if not unseen or _are_in(blocks, row, steps):
            break
    else:
        return blocks
    struck = np.isin(np.arange(len(inside)), steps)
    inside, between = (np.where(struck & (one >= least), one, 0.0) for one in (inside, between * unseen))
    late, stopped = own * (inside + between), np.zeros_like(blocks.intervals)
    stopped[:, np.searchsorted(blocks.interval_step, steps)] = late[:, steps]
    return replace(
        blocks,
        self_time=blocks.self_time + late - between,
        delay=blocks.delay + late - peers_median(late),
        intervals=blocks.intervals + stopped - peers_median(stopped),
        transfer=blocks.transfer - inside,
        wait=blocks.wait + late[row] - late,
    )


def _are_in(blocks: Blocks, row: int, steps: Ints) -> bool:
    """Whether samples show a row stopped in these steps (indices), or since the ones before, by no chance."""
    struck = np.unique(np.maximum(np.append(steps, steps - 1), 0))
    share = float(np.nansum(blocks.period[struck]) / np.nansum(blocks.period))
    return recurring_events.tail(int(_counted(blocks, struck)[0][row]), int(_counted(blocks)[0][row]), share) <= _SELDOM


def _counted(blocks: Blocks, columns: Array | None = None) -> tuple[Ints, Ints]:
    """[R] the samples in these steps, or all, at which each rank was stopped, and [R] all of them."""
    columns = np.arange(len(blocks.steps)) if columns is None else columns
    taken = blocks.samples.taken("stopped", columns) if blocks.samples is not None else None
    row, value = taken if taken is not None else (np.zeros(0, np.int64), np.zeros(0))
    count = len(blocks.ranks)
    return np.bincount(row[value > 0], minlength=count), np.bincount(row, minlength=count)


def note(run: Run, verdicts: Sequence[Verdict], stalls: Sequence[Stall]) -> list[str]:
    """A sentence on the ranks that were stopped and that no verdict or stall names as such."""
    named = {rank for verdict in verdicts if verdict.cause == "stopped" for rank in verdict.ranks}
    named |= {int(rank) for stall in stalls for rank in stall.stopped_s}
    seconds: dict[int, float] = {}
    for rank, time, stopped in sorted(_sampled(run), key=lambda one: one[0]):
        if rank not in named and (stops := _stops(time, stopped)):
            seconds[rank] = seconds.get(rank, 0.0) + sum(until - since for since, until in stops) / 1e9
    return [wording.stopped(seconds)] if seconds else []


def on(verdict: Verdict, blocks: Blocks, settings: Settings) -> Verdict:
    """A verdict without a known cause, with this one where samples in its steps show it; else as it was.

    The share of samples in which a rank was stopped is set against the share of time by which it is late. Where samples
    are few, stalls of one size have one cause, unless more of them would be seen stopped.
    """
    if verdict.kind not in LATE or verdict.cause != "unknown":
        return verdict
    first, end = np.searchsorted(blocks.steps, [verdict.since_step or 0, verdict.until_step or blocks.steps[-1] + 1])
    columns = np.arange(first, end)
    rows = np.flatnonzero(np.isin(blocks.ranks, verdict.ranks)).tolist()
    stopped, samples = _counted(blocks, columns)
    explained = min(
        (_explained(blocks, row, columns, stopped[row], samples[row], settings) for row in rows), default=0.0
    )
    if not explained:
        return verdict
    shown = [wording.stopped_in_samples(int(blocks.ranks[row]), stopped[row], samples[row]) for row in rows]
    evidence = (*verdict.evidence[:1], *wording.with_cause(shown, verdict.evidence[1:]))  # first by how much it is late
    return replace(verdict, cause="stopped", partial=None, explained=explained, evidence=evidence)


def _explained(blocks: Blocks, row: int, columns: Array, stopped: int, samples: int, settings: Settings) -> float:
    """Which part of a rank's delay in these steps its stops are, as samples show it; 0 where that is too little.

    Or which part of it is in stalls of one size, if a sample shows it stopped in one. Half of its delay in stalls is in
    those as long or longer. A state is read a little after the time of its sample. Where so few samples show a stop
    that it is less, it is not in stalls.
    """
    late = np.maximum(or_zero(blocks.delay[row]), 0.0)
    share = float(late[columns].sum() / np.nansum(blocks.period[columns]))
    ratio = min(stopped / samples / share, 1.0) if stopped >= _SAMPLES and share > 0 else 0.0
    ratio = ratio if ratio >= settings.min_explained else 0.0
    by_size = columns[np.argsort(late[columns])]
    by_size = by_size[late[by_size] >= settings.stall_effect * blocks.step_ns]
    if len(by_size) < settings.min_stalls:
        return ratio
    sums = np.cumsum(late[by_size])
    size = late[by_size[np.searchsorted(sums, sums[-1] / 2)]]
    alike = by_size[(late[by_size] >= size / _ALIKE) & (late[by_size] <= size * _ALIKE)]
    part = float(late[alike].sum() / late[columns].sum())
    seen, _ = _counted(blocks, np.intersect1d(np.append(alike, alike - 1), columns))
    borne_out = seen[row] > 0 and _may_be(stopped, samples, part * share)
    return max(ratio, part) if borne_out and len(alike) >= settings.min_stalls and part >= _MOST else ratio
