"""Blocks of a pipeline: its self time and delays by interval, between sends, receives and collectives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import peers_median
from hindmost_judge.timeline import cohorts, gpu_starvation, schedule
from hindmost_judge.whatif import pipeline_replay

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.model import Run
    from hindmost_judge.timeline.join import Grid
    from hindmost_judge.timeline.schedule import Schedule
    from hindmost_judge.types import Floats
    from hindmost_judge.whatif.pipeline_replay import Bubbles


def left(before: Grid) -> Floats:
    """[R] when each rank's last collective of these ended; NaN where there was none."""
    if before.columns == 0:
        return np.full(len(before.ranks), np.nan)
    return np.asarray(np.fmax.reduce(before.start + before.duration, axis=1))


def of(found: Blocks, order: Schedule | None) -> Blocks:
    """With each interval between two operations separate, where ranks keep one order of them; else unchanged."""
    built = pipeline_replay.build(order, found.role, len(found.steps)) if order is not None else None
    if built is None:
        return found
    own = built.own(len(found.ranks))
    idle = gpu_starvation.find(order, built, found.role, found.own.shape) if order is not None else None
    return by(replace(found, own=own, excess=cohorts.beyond_peers(own, found.role), starved=idle), built)


def of_transfers(found: Blocks, run: Run) -> Blocks:
    """With the stages of a pipeline whose ranks do nothing together but send to each other; else as it was.

    There the phases do not tell who is late: a stage waits in its forward for what it receives, on its GPU as well.
    """
    order = schedule.of_transfers(run, found.ranks, found.steps)
    stage = order.stages(len(found.ranks)) if order is not None else None
    if order is None or stage is None:
        return found
    told = of(replace(found, role=stage), order)
    if told.pipeline is None:
        return found
    late = _late_by_hosts(told, told.pipeline)
    built = replace(told.pipeline, excess=late, least=told.pipeline.work - late)
    excess = np.zeros(told.own.shape)
    np.add.at(excess, (order.row[:, None], order.steps[None, :]), late)
    return by(replace(told, excess=excess, wait=_received(order, told)), built)


#: Phases of the host before it launches: they are alike whatever layers a stage holds.
OF_HOST = ("input", "h2d", "checkpoint", "gc", "runqueue")


def _late_by_hosts(found: Blocks, built: Bubbles) -> Floats:
    """[N, G] ns by which a host was later with a step's first operation than those of other stages.

    As far as such phases of it were longer."""
    began = built.before_first(len(found.ranks))
    longer = np.zeros(found.own.shape)
    for part in (np.nan_to_num(found.parts[name]) for name in OF_HOST if name in found.parts):
        longer += np.maximum(part - peers_median(part), 0.0)
    shown = np.clip(np.nan_to_num(began - peers_median(began)), 0.0, longer)
    late, first = np.zeros_like(built.work), np.flatnonzero(built.place == 0)
    late[first] = shown[built.row[first][:, None], built.steps[None, :]]
    return late


def _received(order: Schedule, found: Blocks) -> Floats:
    """[R, S] ns that each rank spent in receives; NaN in steps left out."""
    wait = np.zeros(found.own.shape)
    took = np.where((order.kind == schedule.RECEIVE)[:, None], order.end - order.start, 0.0)
    np.add.at(wait, (order.row[:, None], order.steps[None, :]), took)
    wait[:, np.setdiff1d(np.arange(len(found.steps)), order.steps)] = np.nan
    return wait


def by(found: Blocks, built: Bubbles) -> Blocks:
    """With intervals and the GPUs' computing from these dependencies."""
    segments, segment_step = built.segments(len(found.ranks))
    on_gpu = found.joined is not None and found.joined.gpu_time
    return replace(
        found,
        segments=segments,
        segment_step=segment_step,
        pipeline=built,
        computing=built.computing(len(found.ranks)) if on_gpu else None,
    )
