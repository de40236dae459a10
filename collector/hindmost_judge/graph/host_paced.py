"""The lanes of hosts and GPUs of a job whose hosts set the pace, and its blocks by their work in place of delays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.graph.self_time import build_lanes, paced_by_hosts, paces
from hindmost_judge.model import OTHER
from hindmost_judge.stats import segmentation
from hindmost_judge.stats.robust import median, quantile
from hindmost_judge.timeline.overlap import ahead_of_host
from hindmost_judge.types import Timeline
from hindmost_judge.whatif import replay

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.types import Floats, Lanes

#: Marks of a host and of its GPU may be so many ns apart: clocks differ by 0.5 to 3 ms, and collectives are launched
#: before the phase ends in which they are.
_CLOCKS_NS = 4e6
#: The phase in which a step's last collective is launched.
_LAUNCHING = "backward"
#: What hosts do in a step, in the order of a usual loop; GPUs are waited for mostly at its end, as by ``.item()``.
_IN_ORDER = ("input", "device_copy", "forward", "backward", "sync", "optimizer", "checkpoint", "device_wait")
#: The time from one step to the next.
BETWEEN = "between"
#: Steps by which the begin of a step's collectives may be numbered too late or too early.
_MISCOUNTED = 2
#: Steps of which fewer say nothing of how a host and its GPU keep pace.
_FEWEST = 8


def by_work(blocks: Blocks) -> Blocks:
    """The blocks with hosts' own work in place of delays, where hosts set the pace; else as they are."""
    timeline = of(blocks)
    if timeline is None:
        return blocks
    built = build_lanes(timeline)
    if not paced_by_hosts(timeline, built):
        return blocks
    own = built.host.sum(axis=0)
    excess = own - built.peer_pace
    steps = len(blocks.steps)
    parts = {name: block for name, block in blocks.parts.items() if not name.startswith("gpu_") and name != "h2d"}
    parts |= {name: built.host[at] for at, name in enumerate(built.phases) if name != BETWEEN}
    return replace(
        blocks,
        own=own,
        took=own - built.host[-1],
        excess=excess,
        segments=excess,
        segment_step=np.arange(steps),
        klass=np.zeros(steps, np.int64),
        overlapped=False,
        parts=parts,
        caused=_caused(blocks, built, excess),
        lanes=built,
    )


#: Most ranks of which the cost of being late is replayed: who comes last in most collectives is among the first.
_ASKED = 16
#: Less of the waits than this share of the most is no rank's doing.
_LITTLE = 0.05


def _caused(blocks: Blocks, built: Lanes, excess: Floats) -> Floats:
    """[R, S] ns by which the others' steps are longer for each rank: its share of their waits that a replay bears out.

    A host may come a whole step late and cost nothing, where the others are a step ahead.
    """
    waits = np.nan_to_num(blocks.caused).mean(axis=1)
    found = np.zeros_like(blocks.caused)
    as_it_was = replay.stretched(built, excess)
    for row in np.argsort(-waits, kind="stable")[:_ASKED].tolist():
        longer = np.maximum(segmentation.levels(excess[row]), 0.0)
        if longer.any() and waits[row] > _LITTLE * waits.max():
            less = excess.copy()
            less[row] -= longer
            saved = float((as_it_was - replay.stretched(built, less)).mean())
            found[row] = blocks.caused[row] * min(max(saved, 0.0) / waits[row], 1.0)
    return found


def of_phase(blocks: Blocks, phase: str) -> Blocks:
    """The blocks with what hosts work longer in one phase in place of all that they do."""
    assert blocks.lanes is not None  # noqa: S101 - slowdowns of a phase come from these
    own = blocks.lanes.host[blocks.lanes.phases.index(phase)]
    beyond = own - paces(own, blocks.role)[0]
    left_out = {*blocks.lanes.phases} - {phase}
    parts = {name: block for name, block in blocks.parts.items() if name not in left_out}
    return replace(blocks, own=own, excess=beyond, parts=parts)


def of(blocks: Blocks) -> Timeline | None:
    """When hosts and GPUs were where; ``None`` where hosts did not say, or not all ranks meet at once."""
    grid = blocks.joined
    if grid is None or not grid.gpu_time or blocks.ended is None or blocks.took is None or "input" not in blocks.parts:
        return None
    if len(blocks.steps) < _FEWEST or grid.group.shape[1] > 1 or len(np.unique(grid.group)) > 1:
        return None
    if np.isnan(grid.start).all() or np.isnan(blocks.ended).all(axis=1).any() or blocks.pipeline is not None:
        return None
    if grid.gathers.any() or not blocks.overlapped:  # hosts that wait for each collective are never ahead
        return None
    began = blocks.ended - blocks.took
    last = np.append(blocks.starts[1:], grid.columns) - 1
    start, enqueued, queued = grid.start, None, None
    if not np.isnan(grid.enqueue).all():
        start, enqueued = grid.start - ahead_of_host(grid), grid.enqueue[:, last]
        queued = (start - grid.enqueue)[:, blocks.starts]
    arrived, left = start[:, last], (start + grid.duration)[:, last]
    phases, spent = _phases(blocks, began)
    launched = phases.index(_LAUNCHING) if _LAUNCHING in phases else len(phases) - 2
    shift = _shift(began + spent[: launched + 1].sum(axis=0), arrived)
    return Timeline(
        phases=tuple(phases),
        began=began,
        spent=spent,
        launched=launched,
        enqueued=_moved(enqueued, shift) if enqueued is not None else None,
        queued=_moved(queued, shift) if queued is not None else None,
        arrived=_moved(arrived, shift),
        left=_moved(left, shift),
        waited=_moved(blocks.wait, shift),
        between=_moved(blocks.own, shift),
        cohort=blocks.role,
        clock=_CLOCKS_NS,
    )


def _phases(blocks: Blocks, began: Floats) -> tuple[list[str], Floats]:
    """Names [P] of what hosts do in a step, in order, and [P, R, S] how long each takes.

    Where they mark no more than their input, launches of the step's first and last collective part the rest.
    """
    assert blocks.took is not None  # noqa: S101 - of() has looked
    assert blocks.ended is not None  # noqa: S101
    between = np.zeros_like(began)
    between[:, :-1] = began[:, 1:] - blocks.ended[:, :-1]
    between[:, -1] = median(between[:, :-1], axis=1)
    if _LAUNCHING not in blocks.parts and blocks.joined is not None and not np.isnan(blocks.joined.enqueue).all():
        first, last = _launches(blocks, began)
        marks = [began, began + np.nan_to_num(blocks.parts["input"]), first, last, blocks.ended]
        spent = np.diff(np.maximum.accumulate(np.stack(marks), axis=0), axis=0)
        return ["input", "forward", _LAUNCHING, OTHER, BETWEEN], np.stack([*spent, between])
    names = [name for name in _IN_ORDER if name in blocks.parts]
    parts = [np.nan_to_num(blocks.parts[name]) for name in names]
    rest = np.maximum(blocks.took - np.sum(parts, axis=0), 0.0)
    return [*names, OTHER, BETWEEN], np.stack([*parts, rest, between])


def _launches(blocks: Blocks, began: Floats) -> tuple[Floats, Floats]:
    """[R, S] when each host launched the first and the last collective of a step; NaN of steps in which it did not."""
    assert blocks.joined is not None  # noqa: S101 - of() has looked
    found = np.full((2, *began.shape), np.nan)
    for row, (launched, begins) in enumerate(zip(blocks.joined.enqueue, began, strict=True)):
        times = np.sort(launched[launched > 0])
        bounds = np.searchsorted(times, np.append(begins, np.inf))
        there = np.flatnonzero(np.diff(bounds) > 0)
        found[:, row, there] = times[bounds[there]], times[bounds[there + 1] - 1]
    return found[0], found[1]


def _shift(launched: Floats, arrived: Floats) -> int:
    """By how many steps collectives are numbered too low: none begins before it is launched."""
    for shift in range(-_MISCOUNTED, _MISCOUNTED + 1):
        lead = _moved(arrived, shift) - launched
        if (quantile(lead, 0.02) >= -_CLOCKS_NS).all():
            return shift
    return 0


def _moved(block: Floats, shift: int) -> Floats:
    """[R, S] of the step so many later; NaN beyond the ends."""
    found = np.full_like(block, np.nan)
    steps = block.shape[1]
    found[:, max(-shift, 0) : steps - max(shift, 0)] = block[:, max(shift, 0) : steps + min(shift, 0)]
    return found
