"""Pipeline stages that are slower than the others on every replica, while no rank in them is late against its cohort.

Uneven work and a slow stage look alike in time, so no rank is named. Only the onset separates the two.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from hindmost_judge.blocks import Blocks
from hindmost_judge.detect import Case
from hindmost_judge.detect.nested_segments import is_persistent, main_segment, together
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import lower_median, median, or_zero
from hindmost_judge.timeline.pipelined import OF_HOST
from hindmost_judge.types import Array, Floats, Ints
from hindmost_judge.verdict.schema import Verdict
from hindmost_judge.verdict.whole_job import of_stages


def verdicts(case: Case) -> list[Verdict]:
    """The verdict on stages of a pipeline that are slow on every replica."""
    if case.shared is not None:
        return []
    return find(case.blocks, case.named, case.settings)


def find(blocks: Blocks, named: Collection[int], settings: Settings) -> list[Verdict]:
    """The verdict on slow stages of a pipeline, ranks ``named`` as slow by themselves left aside."""
    pipeline = blocks.pipeline
    if pipeline is None or pipeline.stage is None or len(blocks.steps) < 2 * settings.min_steps:
        return []
    stage = pipeline.stage
    slow_themselves = np.isin(blocks.ranks, list(named))
    level = _levels(blocks, stage, slow_themselves)
    if level is None:
        return []
    # Of two stages the quicker one is typical: their mean would hold half of the slower one's delay.
    beyond = level / (lower_median if len(level) == 2 else median)(level, axis=0) - 1
    found = [(one, _slowdown(series, settings)) for one, series in enumerate(beyond)]
    left = [np.count_nonzero(~slow_themselves[stage == one]) for one in range(len(level))]
    every = np.bincount(stage)  # the only replica left may wait for those that are slow by themselves
    heavy = {one: span for one, span in found if span is not None and (left[one] > 1 or left[one] == every[one])}
    if not heavy:
        return []
    span = max(heavy.values(), key=lambda each: each.stop - each.start)
    slow = [one for one, each in heavy.items() if together(each, span)]
    typical = median(level[:, span], axis=1)
    usual = float(lower_median(typical, axis=0))
    to_usual, to_mean = np.ones(len(level)), typical.mean() / typical
    to_usual[slow] = usual / typical[slow]
    measured = pipeline.replayed(np.ones(len(blocks.ranks)))[span]
    cost, spread = (float((measured - pipeline.replayed(pace[stage])[span]).mean()) for pace in (to_usual, to_mean))
    if cost < settings.min_effect * blocks.step_ns:
        return []
    return of_stages(blocks, slow, stage, (float(typical[slow].max()), usual), span, (cost, max(spread, 0.0)))


def _levels(blocks: Blocks, stage: Ints, named: Array) -> Floats | None:
    """[P, S] ns that the typical rank of each stage works; of two, the quicker one.

    Without what its host takes longer than other stages' hosts, and its GPU's idle time for that; ``None`` if a stage
    has no rank left."""
    rows = [np.flatnonzero((stage == one) & ~named) for one in range(int(stage.max()) + 1)]
    if any(len(row) == 0 for row in rows):
        return None
    own = blocks.self_time - (blocks.starvation if blocks.starvation is not None else 0.0)
    for name in OF_HOST:
        if name in blocks.parts:
            host = or_zero(blocks.parts[name])
            usual = median(np.array([median(host[row], axis=0) for row in rows]), axis=0)
            own = _without(own, np.maximum(host - usual, 0.0), rows)
    if blocks.joined is None and blocks.pipeline is not None:
        # An unrecorded collective, on hosts for example, may make the last stages wait there for the first.
        before = blocks.pipeline.before_first(len(own))
        own -= or_zero(np.maximum(before - median(before, axis=0), 0.0))
    level = np.array([lower_median(own[row], axis=0) for row in rows])
    return level if (level > 0).all() else None


def _without(own: Floats, longer: Floats, stages: list[Array]) -> Floats:
    """[R, S] self time less what a host took ``longer``, no further than to its replicas'. GPUs missed the rest."""
    left = own - longer
    for stage in stages:
        if len(stage) > 1:
            left[stage] = np.maximum(left[stage], np.minimum(own[stage], lower_median(own[stage], axis=0)))
    return left


def _slowdown(beyond: Floats, settings: Settings) -> slice | None:
    """The steps in which a stage is slower than the typical one, persistently and surely."""
    smallest = settings.uneven_stage - 1
    first, stop = main_segment(beyond, smallest, settings)
    part = beyond[first:stop]
    return slice(first, stop) if len(part) >= settings.min_steps and is_persistent(part, smallest, settings) else None
