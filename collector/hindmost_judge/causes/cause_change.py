"""Cause change: a rank stays late, while one cause of its delay ends and another begins at some step.

The delay alone shows one slowdown there, or one on top of the other. The measurements in these steps show two, one
after the other: nothing that explains one is left in the other.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindmost_judge.causes import slow_computing, why_late
from hindmost_judge.causes.slow_computing import FINER
from hindmost_judge.causes.table import Cause, typical
from hindmost_judge.detect import episodes
from hindmost_judge.stats.robust import median, standard_error, with_peers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.blocks import Blocks
    from hindmost_judge.findings import Habit
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Floats, Ints

#: A cause is over even if it still measures as this share of the lesser delay: phases scatter by that.
_OVER = 0.2
#: A measurement that changes by less of the delay does not mark a cause that begins or ends.
_CHANGE = 0.2
#: A slowdown shorter than its segment by at most this many steps fills it, and one with this few steps is none: noise
#: moves each end by up to two.
_NEAR = 4
#: Ranks compared with: enough for a typical value, whatever the size of the job.
_SAMPLE = 512


def parted(habits: Sequence[Habit], blocks: Blocks, settings: Settings) -> list[Habit]:
    """The slowdowns, largest delay first, split where one cause takes over from another."""
    found: list[Habit] = []
    for whole in habits:
        if whole.outer is None:
            own = [one for one in habits if _outermost(one) is whole]
            own.sort(key=lambda one: one.first - one.stop)
            spans = list(itertools.pairwise(_edges(own, blocks, settings)))
            found += own if len(spans) == 1 else [part for span in spans for part in _within(*span, own, blocks)]
    return sorted(found, key=lambda habit: -habit.excess)


def _outermost(habit: Habit) -> Habit:
    while habit.outer is not None:
        habit = habit.outer
    return habit


def _edges(own: list[Habit], blocks: Blocks, settings: Settings) -> list[int]:
    """Where a rank's slowdown, the first of its ``own``, begins and ends, and where between one cause takes over.

    These are what is left of all steps with a change, once the least certain of them are dropped.
    """
    sure = _changes(own, blocks, settings)
    found = sorted(sure)

    @cache
    def explained(first: int, stop: int) -> _Explained:
        return _explained(own[0], (first, stop), blocks, settings)

    @cache
    def takes_over(first: int, edge: int, stop: int) -> bool:
        return _takes_over(explained(first, edge), explained(edge, stop), blocks, settings)

    while len(found) > 2:
        spans = zip(found, found[1:-1], found[2:], strict=False)
        others = [edge for first, edge, stop in spans if not takes_over(first, edge, stop)]
        if not others:
            break
        found.remove(min(others, key=lambda edge: sure[edge]))
    return found


class _Explained(NamedTuple):
    """A segment of delay and what explains it."""

    habit: Habit
    why: Cause


def _explained(whole: Habit, span: tuple[int, int], blocks: Blocks, settings: Settings) -> _Explained:
    """A segment of a slowdown with its cause; a pause has none."""
    part = _part(whole, *span, blocks)
    pauses = part.excess < whole.excess / 2
    return _Explained(part, Cause("unknown") if pauses else why_late.of(blocks, part, settings))


def _takes_over(one: _Explained, other: _Explained, blocks: Blocks, settings: Settings) -> bool:
    """Whether two segments have two causes, each of which is over in the other."""
    whys = one.why.cause, other.why.cause
    if "unknown" in whys or whys[0] == whys[1]:
        return False
    left = max(_left(whys[0], other, blocks, settings), _left(whys[1], one, blocks, settings))
    return left <= _OVER * min(one.habit.excess, other.habit.excess)


def _left(cause: str, beside: _Explained, blocks: Blocks, settings: Settings) -> float:
    """Ns a step of a segment's delay, explained by another cause, that are still measured as this cause."""
    habit, name = beside.habit, "compute" if cause in FINER else cause
    if name == ("compute" if beside.why.cause in FINER else beside.why.cause):
        columns = typical(blocks, habit.row, habit.steps(), settings)
        return habit.excess * slow_computing.left(cause, blocks, habit.row, columns, settings)
    return dict(beside.why.shares_ns).get(name, 0.0)


def _changes(own: list[Habit], blocks: Blocks, settings: Settings) -> dict[int, float]:
    """Steps (indices) at which a rank's delay or a measurement of it changes, with the ends of its slowdown.

    None is nearer to another than a slowdown is long; with the standard errors by which a measurement changes.
    """
    whole, least = own[0], settings.min_steps
    series = _measured(whole, blocks)
    at = {edge for one in own for edge in (one.first, one.stop)}
    for steps, more in series:
        if len(more):
            edges = episodes.pieces(more, 2 * _CHANGE * whole.excess, settings)
            at.update(int(steps[edge]) for edge in edges[1:-1])
    sure = {edge: max(_sureness(edge, steps, more, 2 * least) for steps, more in series) for edge in at}
    found = {whole.first: 0.0, whole.stop: 0.0}
    for edge in sorted(at, key=lambda edge: -sure[edge]):
        if all(abs(edge - other) >= least for other in found):
            found[edge] = sure[edge]
    return found


def _measured(whole: Habit, blocks: Blocks) -> list[tuple[Ints, Floats]]:
    """The known measurements [N] of a slowdown's steps, and ns [N] beyond the typical peer."""
    rows = with_peers(whole.row, len(blocks.ranks), _SAMPLE)
    span = slice(whole.first, whole.stop)
    parts = {name: part[rows, span] for name, part in blocks.parts.items()}
    measured = [blocks.excess[rows, span], *why_late.known(parts).values()]
    measured += [] if blocks.computing is None else [blocks.computing[rows, span]]
    usual = float(median(blocks.work)) if blocks.work is not None else 0.0
    if blocks.work is not None and usual > 0:
        measured.append(blocks.step_ns / usual * blocks.work[rows, span])
    found = []
    for block in measured:
        more = block[0] - median(block[1:], axis=0)
        known = np.flatnonzero(~np.isnan(more))
        found.append((whole.first + known, more[known]))
    return found


def _sureness(edge: int, steps: Ints, more: Floats, around: int) -> float:
    """By how many standard errors a measurement changes at a step, of so many steps on both sides; 0 of too few."""
    before = more[(steps >= edge - around) & (steps < edge)]
    after = more[(steps >= edge) & (steps < edge + around)]
    if min(len(before), len(after)) < 2:
        return 0.0
    noise = standard_error(before) + standard_error(after)
    return abs(float(median(after)) - float(median(before))) / max(noise, 1.0)


def _within(first: int, stop: int, own: list[Habit], blocks: Blocks) -> list[Habit]:
    """The slowdowns of one segment: what is late throughout as one, and what is on top of it for a while."""
    found: dict[Habit, Habit] = {}
    held = {one: (max(one.first, first), min(one.stop, stop)) for one in own}
    on_top = [one for one, (begin, end) in held.items() if _NEAR < end - begin < stop - first - _NEAR]
    base = _part(own[0], first, stop, blocks, tuple(held[one] for one in on_top if one.outer not in on_top))
    for one in sorted(on_top, key=lambda one: one.first - one.stop):
        begin, end = held[one]
        inner = tuple((max(a, begin), min(b, end)) for a, b in one.inner if a < end and b > begin)
        found[one] = replace(
            one, first=begin, stop=end, inner=inner, outer=found.get(one.outer, base) if one.outer else base
        )
    return [base, *found.values()]


def _part(habit: Habit, first: int, stop: int, blocks: Blocks, inner: tuple[tuple[int, int], ...] = ()) -> Habit:
    """A segment of a slowdown, without what is on top of it, as one: the more certain, the later and longer it is."""
    part = replace(habit, first=first, stop=stop, inner=inner, outer=None)
    part = part if len(part.steps()) else replace(part, inner=())
    level = float(median(blocks.excess[habit.row, part.steps()]))
    later, shorter = level / habit.excess, np.sqrt((stop - first) / (habit.stop - habit.first))
    return replace(part, excess=level, z=habit.z * later * shorter, spread_ratio=habit.spread_ratio * later)
