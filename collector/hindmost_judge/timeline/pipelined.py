"""Blocks of a pipeline: its self time and delays by interval, between sends, receives and collectives.

The enqueue time of each operation shows how long GPUs idled because their hosts had launched no more. A kernel that
begins as soon as it is launched found nothing queued before it. If the interval before it took longer than with work
queued throughout, the GPU waited for its host for the difference. That is no work of its stage.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hindmost_judge.blocks import Blocks
from hindmost_judge.model import Run
from hindmost_judge.stats.robust import median, or_zero, peers_median
from hindmost_judge.timeline.cohorts import beyond_peers
from hindmost_judge.timeline.messages import RECEIVE, Schedule, schedule_of_transfers
from hindmost_judge.types import Array, Floats, Ints
from hindmost_judge.whatif import pipeline_replay
from hindmost_judge.whatif.pipeline_replay import PipelineGraph


def of(found: Blocks, order: Schedule | None) -> Blocks:
    """With each interval between two operations separate, where ranks keep one order of them; else unchanged."""
    built = pipeline_replay.build(order, found.cohort, len(found.steps)) if order is not None else None
    if built is None:
        return found
    self_time = built.self_time(len(found.ranks))
    idle = gpu_starvation(order, built, found.cohort, found.self_time.shape) if order is not None else None
    return by(replace(found, self_time=self_time, delay=beyond_peers(self_time, found.cohort), starvation=idle), built)


def of_transfers(found: Blocks, run: Run) -> Blocks:
    """With the stages of a pipeline whose ranks do nothing together but send to each other; else as it was.

    There the phases do not tell who is late: a stage waits in its forward for what it receives, on its GPU as well.
    """
    order = schedule_of_transfers(run, found.ranks, found.steps)
    stage = order.stages(len(found.ranks)) if order is not None else None
    if order is None or stage is None:
        return found
    staged = of(replace(found, cohort=stage), order)
    if staged.pipeline is None:
        return found
    late = _late_by_hosts(staged, staged.pipeline)
    built = replace(staged.pipeline, delay=late, least=staged.pipeline.work - late)
    delay = np.zeros(staged.self_time.shape)
    np.add.at(delay, (order.row[:, None], order.steps[None, :]), late)
    wait = np.zeros(delay.shape)  # in receives
    took = np.where((order.kind == RECEIVE)[:, None], order.end - order.start, 0.0)
    np.add.at(wait, (order.row[:, None], order.steps[None, :]), took)
    wait[:, np.setdiff1d(np.arange(len(found.steps)), order.steps)] = np.nan  # steps left out
    return by(replace(staged, delay=delay, wait=wait), built)


#: Phases of the host before it launches: they are alike whatever layers a stage holds.
OF_HOST = ("input", "h2d", "checkpoint", "gc", "runqueue")


def _late_by_hosts(found: Blocks, built: PipelineGraph) -> Floats:
    """[N, G] ns by which a host was later with a step's first operation than those of other stages.

    As far as such phases of it were longer."""
    began = built.before_first(len(found.ranks))
    longer = np.zeros(found.self_time.shape)
    for part in (or_zero(found.parts[name]) for name in OF_HOST if name in found.parts):
        longer += np.maximum(part - peers_median(part), 0.0)
    shown = np.clip(or_zero(began - peers_median(began)), 0.0, longer)
    late, first = np.zeros_like(built.work), np.flatnonzero(built.place == 0)
    late[first] = shown[built.row[first][:, None], built.steps[None, :]]
    return late


def by(found: Blocks, built: PipelineGraph) -> Blocks:
    """With intervals and the GPUs' computing from these dependencies."""
    intervals, interval_step = built.intervals(len(found.ranks))
    on_gpu = found.joined is not None and found.joined.gpu_time
    return replace(
        found,
        intervals=intervals,
        interval_step=interval_step,
        pipeline=built,
        computing=built.computing(len(found.ranks)) if on_gpu else None,
    )


#: A kernel began at its launch if its wait exceeds its rank's shortest by at most this time (ns), or this share of a
#: step's work; earlier launches may begin after it was launched.
_AT_ONCE_NS, _AT_ONCE = 100_000.0, 0.02
#: Clocks of GPU and host drift apart by tens of us a second: the shortest wait is taken over this many steps.
_WINDOW = 25
#: Steps with queued work that give the usual length of an interval; with fewer, this percentile of its lengths does.
_ENOUGH, _SHORT = 5, 10


def gpu_starvation(order: Schedule, built: PipelineGraph, cohort: Ints, shape: tuple[int, ...]) -> Floats | None:
    """[R, S] ns, the ``shape``; ``None`` where enqueue times were not recorded.

    An interval that was rarely seen with queued work is taken to be no longer than for a rank of the same ``cohort``
    [R] that had work queued.
    """
    if order.enqueue is None or np.isnan(order.enqueue).all():
        return None
    waited = order.start - order.enqueue
    in_step = float(np.bincount(built.row, median(built.work, axis=1)).max())
    at_once = _at_once(order, waited, max(_AT_ONCE_NS, _AT_ONCE * in_step))
    queued = np.where(at_once, np.nan, built.work)
    known = (~at_once).sum(axis=1) >= _ENOUGH
    typical = np.where(known, median(queued, axis=1), np.nan)
    short = np.percentile(built.work, _SHORT, axis=1)
    usual = np.where(known, typical, np.fmin(short, _of_peers(typical, built, cohort)))
    idle = np.where(at_once, np.maximum(built.work - usual[:, None], 0.0), 0.0)
    found = np.zeros(shape)
    np.add.at(found, (order.row[:, None], order.steps[None, :]), idle)
    return found


def _of_peers(typical: Floats, built: PipelineGraph, cohort: Ints) -> Floats:
    """[N] the known times ``typical`` [N] of that interval for the typical rank of the cohort, of two the quicker.

    NaN where no rank of the same ``cohort`` [R] has it."""
    alike = cohort[built.row] * (int(built.place.max()) + 1) + built.place
    lacking = np.zeros(int(alike.max()) + 1, bool)
    lacking[alike[np.isnan(typical)]] = True
    asked = np.flatnonzero(lacking[alike])
    which = np.unique(alike[asked], return_inverse=True)[1].ravel()
    order = np.lexsort((typical[asked], which))  # NaN goes last
    known = np.bincount(which, ~np.isnan(typical[asked])).astype(np.int64)
    first = np.searchsorted(which[order], np.arange(len(known)))
    found = np.full(len(typical), np.nan)
    found[asked] = typical[asked][order][first + np.maximum(known - 1, 0) // 2][which]
    return found


def _at_once(order: Schedule, waited: Floats, soon: float) -> Array:
    """[N, G] which operations began as soon as they were launched: within so many ns."""
    found = np.zeros(waited.shape, bool)
    windows = np.array_split(np.arange(waited.shape[1]), max(waited.shape[1] // _WINDOW, 1))
    first = np.flatnonzero(np.diff(order.row, prepend=-1))
    counts = np.diff(np.append(first, len(order.row)))
    for steps in windows:
        least = np.fmin.reduceat(np.fmin.reduce(waited[:, steps], axis=1), first)
        found[:, steps] = waited[:, steps] - np.repeat(least, counts)[:, None] <= soon
    return found
