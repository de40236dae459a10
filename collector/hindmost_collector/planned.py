"""Checkpoints that a few ranks write for all: the script has them do so, and that the others wait is nobody's fault.

They are taken out of who is late, so that they are no stalls, and nothing that work or a slow rank is held against;
what they cost is told. Steps stay as long as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.robust import average, median
from hindmost_collector.whatif import stall_saving
from hindmost_collector.wording import ms, names

if TYPE_CHECKING:
    from hindmost_collector.align import Array, Floats, Ints
    from hindmost_collector.blocks import Blocks
    from hindmost_collector.settings import Settings

#: Of fewer that write at once nobody knows who should take how long.
_CROWD = 4
#: A checkpoint that ends one step and holds up the next is in two of them; what is in more on end is a habit.
_ON_END = 2.0


def aside(blocks: Blocks, settings: Settings) -> tuple[Blocks, list[str]]:
    """The same with nobody late for checkpoints that it writes for the others, and what these cost."""
    took = blocks.parts.get("checkpoint")
    if took is None or len(blocks.ranks) < 2:
        return blocks, []
    due = _due(np.nan_to_num(took))
    rows = np.flatnonzero(due.any(axis=1))
    if not len(rows):
        return blocks, []
    late = _late(blocks, rows, due[rows])
    excess = blocks.excess.copy()
    excess[rows] -= late
    parts = blocks.parts | {"checkpoint": took - due}
    return replace(blocks, excess=excess, parts=parts), _told(blocks, rows, late, due, settings)


def _late(blocks: Blocks, rows: Ints, due: Floats) -> Floats:
    """[N, S] ns that these are late by for the checkpoints ``due`` [N, S].

    One that is written after a step's collectives is in that step, and holds up the next.
    """
    usual = median(blocks.excess[rows], axis=1)[:, None]
    beyond = np.maximum(np.nan_to_num(blocks.excess[rows] - usual), 0.0)
    now = np.minimum(beyond, due)
    left = np.where(now < due / 2, due - now, 0.0)
    return np.asarray(now + np.minimum(beyond - now, np.pad(left[:, :-1], ((0, 0), (1, 0)))))


def _due(took: Floats) -> Floats:
    """[R, S] of the time in checkpoints, that which is no more than others' who write then; 0 where most do.

    Most ranks are compared with each other as in all else. In steps on end, or in most, a checkpoint is no plan but
    what makes a rank slow.
    """
    writes = took > 0
    writes[~_now_and_then(writes)] = False
    writing = writes.sum(axis=0)
    few = writes & (2 * writing < len(took))
    due: Floats = np.where(few, took, 0.0)
    crowd = np.flatnonzero(few.any(axis=0) & (writing >= _CROWD))
    if len(crowd):
        usual = median(np.where(writes, took, np.nan)[:, crowd], axis=0)
        due[:, crowd] = np.minimum(due[:, crowd], usual)
    return due


def _now_and_then(writes: Array) -> Array:
    """[R] whether a rank writes in a few steps apart in time."""
    steps = np.count_nonzero(writes, axis=1)
    apart = np.count_nonzero(writes[:, 1:] & ~writes[:, :-1], axis=1) + writes[:, 0]
    return np.asarray((2 * steps < writes.shape[1]) & (steps <= _ON_END * apart))


def _told(blocks: Blocks, rows: Ints, late: Floats, due: Floats, settings: Settings) -> list[str]:
    """What the others wait for checkpoints, where that is worth a word."""
    held = [stall_saving(blocks, [row], np.flatnonzero(mine)) for row, mine in zip(rows.tolist(), late, strict=True)]
    saved = float(np.max(held, axis=0).mean())  # of several at once the longest
    if saved < settings.min_cost * blocks.step_ns:
        return []
    steps = int(np.count_nonzero(due.any(axis=0)))
    who = names([int(blocks.ranks[row]) for row in rows])
    verb, own = ("writes", "its") if len(rows) == 1 else ("write", "their")
    waited = f"{who} {verb} checkpoints in {steps} of {len(blocks.steps)} steps, and the others wait"
    cost = f"{ms(saved * len(blocks.steps) / steps)} each, {saved / average(blocks.period):.1%} of the job's time"
    return [f"{waited}: {cost}; no fault of {own} own: written in the background, or less often, they would cost less"]
