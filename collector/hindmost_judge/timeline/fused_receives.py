"""Receives that share a kernel with a send, for which NCCL reports the send's end: they end when the peer's send does.

A group call's send and receive may be one kernel. NCCL takes its start and end from its first thread, a send's if
there is one. A receive that waits on for its peer then seems to be over, and the waiting seems to be work. The other
side shows when the message was there: its send ends when it has been taken.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import median
from hindmost_judge.timeline.schedule import COLLECTIVE, SEND

if TYPE_CHECKING:
    from hindmost_judge.timeline.schedule import Schedule
    from hindmost_judge.types import Array, Floats, Ints

#: Messages of one kernel are reported within this time (ns) of each other, each by its own channels.
_ONE_KERNEL = 20_000.0
#: Share of the steps in which they must be.
_ALWAYS = 0.95
#: Most messages of one group call between two of them.
_NEAR = 8
#: In this percentage of steps, those in which a message is received soonest, it was waited for: send and receive end
#: together.
_SOONEST = 10


def told_in_full(schedule: Schedule, source: Ints, unit: Ints) -> Schedule:
    """The schedule with the ends of such receives as their peers saw them.

    ``source`` [N] is the send that each receive gets (-1: it is none), ``unit`` [N] which operations of all ranks end
    together. Where the clocks of two ranks have no common point, their receives keep their recorded ends.
    """
    receives = np.flatnonzero((source >= 0) & _beside_a_send(schedule))
    if len(receives) == 0:
        return schedule
    alone = (source >= 0) & ~np.isin(np.arange(len(source)), receives)
    end = schedule.end.copy()
    row, whom = schedule.row[receives], schedule.row[source[receives]]
    for mine, theirs in sorted(set(zip(row.tolist(), whom.tolist(), strict=True))):
        ahead = _ahead(schedule, source, unit, alone, mine, theirs)
        if ahead is not None:
            held = receives[(row == mine) & (whom == theirs)]
            end[held] = np.fmax(end[held], schedule.end[source[held]] + ahead)
    return replace(schedule, end=end)


def _beside_a_send(schedule: Schedule) -> Array:
    """[N] which operations begin and end with a send of the same rank, in nearly all steps."""
    found = np.zeros(len(schedule.row), bool)
    pairs: list[tuple[Ints, Ints]] = []
    for away in range(1, min(_NEAR + 1, len(found))):
        one, other = np.arange(len(found) - away), np.arange(away, len(found))
        pairs += [(one, other), (other, one)]
    for each, other in pairs:
        near = (schedule.row[each] == schedule.row[other]) & (schedule.kind[other] == SEND)
        this, send = each[near], other[near]
        apart = np.maximum(
            np.abs(schedule.start[this] - schedule.start[send]), np.abs(schedule.end[this] - schedule.end[send])
        )
        found[this] |= (apart <= _ONE_KERNEL).mean(axis=1) >= _ALWAYS
    return found & (schedule.kind < COLLECTIVE)


def _ahead(schedule: Schedule, source: Ints, unit: Ints, alone: Array, mine: int, theirs: int) -> Floats | None:
    """[G] ns by which one rank's clock is ahead of another's; ``None`` where they share nothing that ends at once."""
    end = schedule.end
    meets = schedule.kind >= COLLECTIVE
    one, other = (np.flatnonzero(meets & (schedule.row == row)) for row in (mine, theirs))
    _, here, there = np.intersect1d(unit[one], unit[other], return_indices=True)
    if len(here):
        return _drifting(median(end[one[here]] - end[other[there]], axis=0))
    taken, given = (
        np.flatnonzero(alone & (schedule.row == to) & (schedule.row[source] == by))
        for to, by in ((mine, theirs), (theirs, mine))
    )
    most = _soonest(end[taken] - end[source[taken]])
    least = _soonest(end[given] - end[source[given]])
    if most is None or least is None:
        return most if least is None else -least
    return (most - least) / 2


def _soonest(late: Floats) -> Floats | None:
    """[G] how long after its send a message is taken that was waited for, of messages [M, G]; ``None`` of none."""
    if len(late) == 0:
        return None
    message = int(np.argmin(np.percentile(late, _SOONEST, axis=1)))
    return _drifting(late[message])


def _drifting(values: Floats) -> Floats:
    """[G] a line through values that scatter: clocks drift steadily. Through the medians of the two halves."""
    middle = len(values) // 2
    if middle < 2:
        return np.full(len(values), float(median(values)))
    first, second = float(median(values[:middle])), float(median(values[middle:]))
    place = (np.arange(len(values)) - (middle - 1) / 2) / (len(values) / 2)
    return np.asarray(first + (second - first) * place)
