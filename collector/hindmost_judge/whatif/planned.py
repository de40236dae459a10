"""Checkpoints, evaluations and pauses that a few ranks make for all: planned by the script, so no rank is at fault.

They are removed from the delays. They then count as no stalls, and neither work nor a slow rank is judged against them.
Their cost is reported. Steps keep their length.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindmost_judge import constant
from hindmost_judge.model import rows
from hindmost_judge.stats.robust import average, lower_median, median
from hindmost_judge.verdict.wording import ms, names, percent
from hindmost_judge.whatif.savings import stall_saving

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.model import Table
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Array, Floats, Ints

#: With fewer ranks writing at once, the usual time of a write is unknown.
_CROWD = 4
#: Least cohort size for counting: of two ranks, one writes for both if the other does not.
_THIRD = 3
#: A checkpoint that ends one step and delays the next is in two steps; more steps in a row are a persistent slowdown.
_ON_END = 2.0


#: This many pauses at equal distances in steps are planned by the script: disturbances do not count steps.
_COUNTED = 4
#: Pauses that cost more of the job's time than this are not planned: a garbage collector counts steps, too.
_MOST_PLANNED = 0.25


class _Words(NamedTuple):
    """What one rank does, what several do, how the others would wait less for it, and the cause that waste has then."""

    one: str
    several: str
    remedy: str
    cause: str | None = None


class Planned(NamedTuple):
    """What the others wait for these ranks by the script's doing, ms of the mean step; ``cause`` is also its phase."""

    ranks: tuple[int, ...]
    ms_per_step: float
    cause: str | None


_WRITES = _Words("writes checkpoints", "write checkpoints", "in the background, or less often", "checkpoint")
_EVALUATES = _Words(
    "evaluates longer than its peers", "evaluate longer than their peers", "spread over all ranks, or less often"
)

_PAUSES = _Words(
    "pauses (at regular intervals, as for checkpoints)",
    "pause (at regular intervals, as for checkpoints)",
    "in the background, or less often",
)


def aside(blocks: Blocks, steps: Table, settings: Settings) -> tuple[Blocks, list[Planned], list[str]]:
    """The same without delays due to a rank's work for the others, what these wait for it, and notes."""
    told: list[tuple[Planned, str] | None] = []
    took, evaluated = blocks.parts.get("checkpoint"), _evaluated(blocks, steps)
    if len(blocks.ranks) < 2:
        return blocks, [], []
    if took is not None:
        due = _written(np.nan_to_num(took))
        blocks, writes = _without(blocks, due, _WRITES, settings)
        told.append(writes)
        blocks = replace(blocks, parts=blocks.parts | {"checkpoint": took - due}) if due.any() else blocks
    if evaluated is not None:
        due = _longer(evaluated, settings.stall_effect * blocks.step_ns)
        blocks, evaluates = _without(blocks, due, _EVALUATES, settings)
        told.append(evaluates)
    outside = _outside(blocks)
    if outside is not None:
        due = _counted_out(_longer(outside, settings.stall_effect * blocks.step_ns), blocks.steps)
        on_time, pauses = _without(blocks, due, _PAUSES, settings)
        if pauses is None or pauses[0].ms_per_step * 1e6 <= _MOST_PLANNED * average(blocks.period):
            blocks = on_time
            told.append(pauses)
    known = [one for one in told if one is not None]
    return blocks, [planned for planned, _ in known], [note for _, note in known]


def _without(
    blocks: Blocks, due: Floats, words: _Words, settings: Settings
) -> tuple[Blocks, tuple[Planned, str] | None]:
    """The same without the delays ``due`` [R, S]; what the others wait for them and the note on that."""
    held = np.flatnonzero(due.any(axis=1))
    if not len(held):
        return blocks, None
    late = _late(blocks, held, due[held])
    saved = float(stall_saving(blocks, held.tolist(), np.flatnonzero(late.any(axis=0))).mean())
    told = None
    if saved >= settings.min_cost * blocks.step_ns:
        waited = Planned(tuple(blocks.ranks[held].tolist()), saved / 1e6, words.cause)
        told = (waited, _told(blocks, held, saved, due, words))
    excess = blocks.excess.copy()
    excess[held] -= late
    return replace(blocks, excess=excess), told


def _late(blocks: Blocks, held: Ints, due: Floats) -> Floats:
    """[N, S] ns that these are late by for what is ``due`` [N, S].

    A checkpoint that is written after a step's collectives is in that step, and holds up the next.
    """
    usual = median(blocks.excess[held], axis=1)[:, None]
    beyond = np.maximum(np.nan_to_num(blocks.excess[held] - usual), 0.0)
    now = np.minimum(beyond, due)
    left = np.where(now < due / 2, due - now, 0.0)
    return np.asarray(now + np.minimum(beyond - now, np.pad(left[:, :-1], ((0, 0), (1, 0)))))


def _written(took: Floats) -> Floats:
    """[R, S] of the time in checkpoints, that which is no more than others' who write then; 0 where most do.

    Most ranks are compared with each other as in all else; of two both, where each writes, though it be a step later.
    In steps on end, or in most, a checkpoint is no plan but what makes a rank slow.
    """
    writes = (took > 0) & _now_and_then(took > 0)
    writing = (writes if len(took) >= _THIRD else _around(writes)).sum(axis=0)
    few = writes & (2 * writing < max(len(took), _THIRD))
    due: Floats = np.where(few, took, 0.0)
    crowd = np.flatnonzero(few.any(axis=0) & (writing >= _CROWD))
    if len(crowd):
        usual = median(np.where(writes, took, np.nan)[:, crowd], axis=0)
        due[:, crowd] = np.minimum(due[:, crowd], usual)
    return due


def _evaluated(blocks: Blocks, steps: Table) -> Floats | None:
    """[R, S] ns that each rank evaluated before or in each step; ``None`` if none did, or the times are unknown."""
    if rows(steps) == 0 or blocks.ended is None or blocks.took is None:
        return None
    kind = steps["kind"]
    if constant.is_constant(kind) and kind[0] != "eval":
        return None
    held = np.flatnonzero((kind == "eval") & (steps["duration_ns"] > 0) & (steps["start_ns"] >= 0))
    if not len(held):
        return None
    found = np.zeros_like(blocks.excess)
    rank, start, lasted = (steps[name][held] for name in ("rank", "start_ns", "duration_ns"))
    for row in np.flatnonzero(np.isin(blocks.ranks, rank)).tolist():
        known = np.flatnonzero(~np.isnan(blocks.ended[row]))
        if not len(known):
            continue
        begins = blocks.ended[row, known[0]] - blocks.took[row, known[0]]
        mine = np.flatnonzero((rank == blocks.ranks[row]) & (start >= begins))
        at = np.searchsorted(blocks.ended[row, known], start[mine], side="right")
        inside = at < len(known)
        np.add.at(found[row], known[at[inside]], lasted[mine[inside]].astype(np.float64))
    return found


def _outside(blocks: Blocks) -> Floats | None:
    """[R, S] ns from the last operation that a step issued to the next step's begin; ``None`` if either is unmarked."""
    issued, took = blocks.parts.get("issue"), blocks.took
    if issued is None or took is None:
        return None
    return np.nan_to_num(np.maximum(took - issued - np.nan_to_num(blocks.parts.get("input", 0.0)), 0.0))


def _counted_out(pauses: Floats, steps: Ints) -> Floats:
    """[R, S] of each rank's pauses the long ones, where all of these are as many steps apart; else 0."""
    due: Floats = np.where(pauses > pauses.max(axis=1, initial=0.0)[:, None] / 2, pauses, 0.0)
    for row in due:
        at = steps[row > 0]
        if len(at) < _COUNTED or len(np.unique(np.diff(at))) > 1:
            row[:] = 0.0
    return due


def _longer(took: Floats, least: float) -> Floats:
    """[R, S] ns that a rank evaluates, or pauses, longer than the typical one, now and then, where that is a stall.

    Of two ranks the typical one is the rank that evaluates less: half of the other's work for both would be left as
    its own fault. What begins at the very end of a step may be in that step on some ranks, and in the next on
    others.
    """
    longer = np.maximum(took - lower_median(_around(took), axis=0), 0.0)
    longer[longer < least] = 0.0
    return np.asarray(np.where(_now_and_then(longer > 0), longer, 0.0))


def _around(block: Array) -> Array:
    """[R, S] the most of each step, the one before and the one after."""
    wide = np.pad(block, ((0, 0), (1, 1)))
    return np.asarray(np.maximum(np.maximum(wide[:, :-2], wide[:, 2:]), block))


def _now_and_then(does: Array) -> Array:
    """[R, 1] whether a rank does something in a few steps apart in time."""
    steps = np.count_nonzero(does, axis=1)
    apart = np.count_nonzero(does[:, 1:] & ~does[:, :-1], axis=1) + does[:, 0]
    return np.asarray((2 * steps < does.shape[1]) & (steps <= _ON_END * apart))[:, None]


def _told(blocks: Blocks, held: Ints, saved: float, due: Floats, words: _Words) -> str:
    """The note on what the others wait for these, ``saved`` ns a step."""
    steps = int(np.count_nonzero(due.any(axis=0)))
    who = names([int(blocks.ranks[row]) for row in held])
    does = words.one if len(held) == 1 else words.several
    waited = f"{who} {does} in {steps} of {len(blocks.steps)} steps"
    cost = f"others wait {ms(saved * len(blocks.steps) / steps)} each time ({percent(saved / average(blocks.period))})"
    return f"{waited}: {cost}; it costs less {words.remedy}"
