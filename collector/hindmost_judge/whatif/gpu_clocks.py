"""What a fix gives back where GPUs are at their power limit: waiting ranks draw less power, and clock higher.

Once a rank is fixed, its peers no longer wait, and compute at a lower clock than now. The loss is limited by their
clocks' lead over that of the rank, which does not wait, and by the clock gain that the saved power buys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes.telemetry import POWER_CAP, scattered
from hindmost_judge.stats.robust import average, median, median_error
from hindmost_judge.verdict.wording import ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.blocks import Blocks, Habit
    from hindmost_judge.causes.table import Cause
    from hindmost_judge.types import Array, Floats, Ints

#: Causes by which a GPU works all of the time that its peers wait in.
_WORKING = ("compute", "workload")
#: Samples of a GPU's clock rate needed for its typical value.
_ENOUGH = 8
#: Ranks of each side that are read: more would add nothing.
_SAMPLE = 64
#: Largest gain in clock rate per share of time that a GPU waits: waiting in a collective draws about half of
#: computing's power, and power grows with the cube of the clock rate.
_BOUGHT = 1 / 6


@dataclass(frozen=True)
class Given:
    """Ns a step that a repair gives away again; clocks in Hz of who is repaired and of the typical peer that waits."""

    ns: float
    own: float
    peers: float


def given_away(blocks: Blocks, habits: Sequence[Habit], columns: Array, cause: Cause, saved: float) -> Given | None:
    """What the peers' clock rates take back of the ns ``saved`` a step by fixing these slowdowns.

    ``None`` where samples do not show it. ``None`` also where part of the cost is not observed: the cost is then a
    minimum anyway. If other ranks are late too, and set the pace once these are fixed, their peers wait on.
    """
    rows = [habit.row for habit in habits]
    if cause.cause not in _WORKING or cause.unseen > 0 or not saved > 0 or scattered(columns):
        return None
    peers = np.setdiff1d(np.arange(len(blocks.ranks)), rows)
    sides = [np.array(side, np.int64)[:: len(side) // _SAMPLE + 1] for side in (rows, peers)]
    if not len(peers) or not all(_limited(blocks, side, columns) for side in sides):
        return None
    taken = blocks.samples.taken("sm_clock", columns) if blocks.samples is not None else None
    if taken is None:
        return None
    (own, error), (others, noise) = (_clock(side, *taken) for side in sides)
    if not others - own > np.hypot(error, noise):  # NaN too
        return None
    step = average(blocks.period[columns])
    transfer = 0.0 if blocks.overlapped else average(median(blocks.transfer[:, columns], axis=0))
    given = min(others / own - 1, _BOUGHT * saved / step) * (step - saved - transfer)
    given *= min(saved / max(habit.excess for habit in habits), 1.0)
    return Given(given, own, others) if given > 0 else None


def told(given: Given) -> str:
    """Evidence for what was taken off a cost."""
    clocks = f"SM clock {given.own / 1e6:.0f} MHz, {given.peers / 1e6:.0f} MHz on GPUs that wait"
    return f"all GPUs are at their power limit ({clocks}); the cost is {ms(given.ns)} lower for that"


def _limited(blocks: Blocks, rows: Ints, columns: Array) -> bool:
    """Whether the typical of these GPUs is at its power limit in these steps (indices), and slow for nothing else."""
    reasons = blocks.gauges(columns).get("clock_reasons")
    return reasons is not None and float(median(reasons[rows])) == POWER_CAP


def _clock(rows: Ints, row: Ints, clock: Floats) -> tuple[float, float]:
    """The SM clock of the typical of these ``rows``, of samples of each ``row`` [N] the ``clock`` [N], and its standard
    error; NaN of few samples."""
    held = np.isin(row, rows)
    row, clock = row[held], clock[held]
    each = [value for value in (clock[row == one] for one in rows) if len(value) >= _ENOUGH]
    if 2 * len(each) <= len(rows):
        return float("nan"), float("nan")
    levels, errors = zip(*((float(median(value)), float(median_error(value))) for value in each), strict=True)
    return float(median(np.array(levels))), float(median(np.array(errors)))
