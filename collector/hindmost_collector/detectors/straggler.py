"""Ranks that are late by habit: for the whole run, or from one step to another."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector import roles
from hindmost_collector.detectors import bursts
from hindmost_collector.robust import MAD_TO_SIGMA, MEDIAN_COST, block_medians, median, spread, standard_error

if TYPE_CHECKING:
    from hindmost_collector.align import Floats, Ints
    from hindmost_collector.blocks import Blocks
    from hindmost_collector.settings import Settings

#: Shortest stretch of steps that a change of pace may make: fewer have no median worth the name.
_SHORTEST = 8
#: Change points looked for at most, one inside the other: a fault that comes and goes more often is intermittent.
_CHANGES = 4


@dataclass(frozen=True)
class Habit:
    """One rank's habitual lateness: ``row`` in the blocks, steps [first, stop) by index, excess ns a step."""

    row: int
    first: int
    stop: int
    excess: float
    z: float
    consistency: float
    spread_ratio: float
    latest: float


def find(blocks: Blocks, settings: Settings) -> list[Habit]:
    """Habitually late ranks, largest excess first; empty where nobody stands out by every criterion."""
    if len(blocks.ranks) < 2 or len(blocks.steps) < settings.min_steps_when_large:
        return []
    effect = settings.min_effect if len(blocks.ranks) > 3 else settings.min_effect_of_few
    smallest = effect * blocks.step_ns
    candidates = _candidates(blocks.excess, smallest)[: max(8, len(blocks.ranks) // 2)]
    mate = roles.mates(blocks.role)
    suspects = sorted({*candidates.tolist(), *mate[candidates].tolist()} - {-1})
    whole = not np.isnan(blocks.excess).any()  # asked once: of a large job thousands are looked at
    found: list[Habit] = []
    for row in candidates.tolist():
        habit = _judge(blocks, [row, int(mate[row])], suspects, smallest, settings, whole=whole)
        if habit is not None:
            found.append(habit)
    late = {habit.row for habit in found}
    for row, *span in bursts.find(blocks.excess, settings.stall_effect * blocks.step_ns):
        burst = (span[0], span[1])
        pair = [row, int(mate[row])]
        habit = (
            _judge(blocks, pair, suspects, smallest, settings, whole=whole, burst=burst) if row not in late else None
        )
        if habit is not None:
            found.append(habit)
    return sorted(found, key=lambda habit: -habit.excess)


#: A block of steps must be above a rank's own noise by so many standard errors for the rank to be looked at closer.
_STANDS_OUT = 3.5


def _candidates(excess: Floats, smallest: float) -> Ints:
    """Rows worth a closer look, latest first: late on the whole, or in some block of steps beyond their own noise."""
    levels = np.nan_to_num(block_medians(excess))
    highest = levels.max(axis=1)
    found = np.flatnonzero(highest >= smallest)
    part = excess[found]
    usual = median(part, axis=1)
    noise = MAD_TO_SIGMA * MEDIAN_COST * median(np.abs(part - usual[:, None]), axis=1)
    beyond = highest[found] >= usual + _STANDS_OUT * noise / np.sqrt(excess.shape[1] / levels.shape[1])
    found = found[(usual >= smallest) | beyond]
    return np.asarray(found[np.argsort(-highest[found], kind="stable")])


def _judge(
    blocks: Blocks,
    pair: list[int],
    suspects: list[int],
    smallest: float,
    settings: Settings,
    *,
    whole: bool,
    burst: tuple[int, int] | None = None,
) -> Habit | None:
    """The habit of one rank, or its ``burst``; ``None`` where it falls short of any criterion.

    ``pair`` is its row and that of its only peer, -1 where it has none or several.
    """
    row = pair[0]
    series = blocks.excess[row]
    known = None if whole else np.flatnonzero(~np.isnan(series))
    if known is not None:  # a step that others did not record says nothing, not zero
        series = series[known]
    if len(series) == 0:
        return None
    begin, end = stretch(series, smallest) if burst is None else burst
    if burst is not None and known is not None:
        begin, end = np.searchsorted(known, burst).tolist()
    part = series[begin:end]
    held = slice(begin, end) if known is None else known[begin:end]
    level = float(median(part))
    large = burst is not None or level >= settings.large_effect * blocks.step_ns
    needed = settings.min_steps_when_large if large else settings.min_steps
    if len(part) < needed or not level >= smallest:
        return None
    z = level / max(standard_error(part), _noise(series) / np.sqrt(len(part)), 1.0)
    consistency = float(np.mean(block_medians(part) >= level / 2))
    wanders = burst is None and len(blocks.ranks) < _FEW and _wanders(series, begin, end, level)
    if z < settings.min_z or consistency < settings.min_consistency or wanders:
        return None
    ratio = level / max(_healthy_spread(blocks.excess[:, held], suspects, pair), 1.0) / extreme(len(blocks.ranks))
    latest = _latest(blocks.excess[:, held], suspects, pair)
    if ratio < settings.min_spread_ratio:
        return None
    if latest < settings.min_latest:
        return None
    if known is not None:  # to the ends where nothing is known beyond: the habit is not seen to begin or end there
        stop = int(known[end - 1]) + 1 if end < len(series) else blocks.excess.shape[1]
        begin, end = int(known[begin]) if begin else 0, stop
    return Habit(row, begin, end, level, z, consistency, ratio, latest)


#: Of fewer ranks nobody knows how much healthy ones differ.
_FEW = 4
#: A stretch of a rank among few must be above what it is before and after by so many times what that scatters to.
_ABOVE = 3.0


def _wanders(series: Floats, begin: int, end: int, level: float) -> bool:
    """Whether a rank is now ahead and now behind of the few others, for a while each, and not in this stretch only."""
    around = np.concatenate([series[:begin], series[end:]])
    if len(around) < 2 * _SHORTEST:
        return False
    return level < _ABOVE * float(np.nanmax(np.abs(block_medians(around))))


#: A rank is set against so many others, whatever the size of the job: of 1,000 there is always one with more noise.
_RIVALS = 7


def _latest(excess: Floats, suspects: list[int], pair: list[int]) -> float:
    """Share of steps in which this rank is later than all of ``_RIVALS`` ranks that nobody suspects would be."""
    others = _healthy(len(excess), suspects, pair, 1)
    rivals = np.nan_to_num(excess[others])
    share = 1 - 1 / (_RIVALS + 1) if len(rivals) > _RIVALS else 1.0
    bound = np.quantile(rivals, share, axis=0)
    return float(np.mean(np.nan_to_num(excess[pair[0]]) > bound))


def _noise(series: Floats) -> float:
    """Scatter from step to step, over all steps: a stretch was picked for being high, and may be calm by chance."""
    return float(MAD_TO_SIGMA * MEDIAN_COST * median(np.abs(np.diff(series))) / np.sqrt(2))


def extreme(ranks: int) -> float:
    """How many standard deviations the most extreme of so many healthy ranks is off, as a multiple of one's."""
    return 1 + float(np.sqrt(2 * np.log(ranks))) / 3


#: Healthy ranks looked at: enough to know how much ranks differ, whatever the size of the job.
_SAMPLE = 512


def _healthy(ranks: int, suspects: list[int], pair: list[int], least: int) -> Ints:
    """Rows of ranks that nobody suspects; where there are too few, all but this one and its only peer.

    ``pair`` is the rank itself and its only peer: that is ahead by what this is behind.
    """
    for left_out in (suspects, pair, pair[:1]):
        others = np.setdiff1d(np.arange(ranks), left_out)
        if len(others) >= least:
            break
    return np.asarray(others[:: max(len(others) // _SAMPLE, 1)])


def _healthy_spread(excess: Floats, suspects: list[int], pair: list[int]) -> float:
    """How much ranks that nobody suspects differ in their typical excess; of a crowd, all but this rank."""
    return spread(median(excess[_healthy(len(excess), suspects, pair, 2)], axis=1))


def stretch(series: Floats, smallest: float) -> tuple[int, int]:
    """[first, stop) of the steps in which a series is habitually high, found by its change points.

    Neighbouring pieces count as one while each is at least half as high as the highest.
    """
    edges = pieces(series, smallest)
    levels = [float(np.median(series[a:b])) for a, b in itertools.pairwise(edges)]
    lengths = np.diff(edges)
    worth = [level * length for level, length in zip(levels, lengths, strict=True)]
    best = int(np.argmax(worth))
    first = last = best
    while first > 0 and levels[first - 1] >= levels[best] / 2:
        first -= 1
    while last < len(levels) - 1 and levels[last + 1] >= levels[best] / 2:
        last += 1
    stop = edges[last + 1]
    ended = stop < len(series) and _over(series[stop:], levels[best])
    return edges[first], stop if ended else len(series)


def pieces(series: Floats, smallest: float) -> list[int]:
    """Edges of the stretches between the change points of a series, its own ends among them."""
    return [0, *sorted(_changes(np.nan_to_num(series), 0, len(series), smallest, _CHANGES)), len(series)]


def _over(after: Floats, level: float) -> bool:
    """Whether a habit has ended: what follows is long enough to tell, and clearly lower throughout."""
    if len(after) < 2 * _SHORTEST:
        return False
    return bool(np.nanmax(block_medians(after)) < level / 2 and float(median(after)) < level / 4)


def _changes(series: Floats, start: int, stop: int, smallest: float, left: int) -> list[int]:
    """Change points by binary segmentation on clipped values, each verified by the medians on its two sides."""
    if left == 0 or stop - start < 2 * _SHORTEST:
        return []
    part = series[start:stop]
    low, high = np.percentile(part, [5, 95])
    clipped = np.clip(part, low, high)  # one long step must not make a change point
    sums = np.cumsum(clipped - clipped.mean())[_SHORTEST - 1 : -_SHORTEST]
    count = np.arange(_SHORTEST, len(part) - _SHORTEST + 1)
    score = np.abs(sums) / np.sqrt(count * (len(part) - count))
    split = start + int(count[np.argmax(score)])
    step = abs(float(np.median(series[start:split]) - np.median(series[split:stop])))
    noise = standard_error(series[start:split]) + standard_error(series[split:stop])
    if step < smallest / 2 or step < 3 * noise:
        return _episode(series, clipped, start, stop, smallest)
    split = _sharpen(series, start, split, stop)
    return [
        *_changes(series, start, split, smallest, left - 1),
        split,
        *_changes(series, split, stop, smallest, left - 1),
    ]


#: An episode must be above the steps around it by so many times what their own blocks differ: it was picked for being
#: high among very many stretches.
_EPISODE = 5.0


def _episode(series: Floats, clipped: Floats, start: int, stop: int, smallest: float) -> list[int]:
    """Both ends of the one stretch in the middle that is higher than all around it; empty where there is none.

    Shorter than half of the steps on either side of it, it moves the median of no side of one change point.
    """
    sums = np.concatenate([[0.0], np.cumsum(clipped - clipped.mean())])
    lowest = np.minimum.accumulate(sums)
    last = int(np.argmax(sums - lowest))
    first = int(np.argmin(sums[: last + 1]))
    if min(first, len(clipped) - last) < _SHORTEST or last - first < 2 * _SHORTEST:
        return []
    first, last = (
        _sharpen(series, start, start + first, start + last),
        _sharpen(series, start + first, start + last, stop),
    )
    inside, sides = series[first:last], (series[start:first], series[last:stop])
    if min(len(inside), *map(len, sides)) < _SHORTEST:
        return []
    around = np.concatenate(sides)
    usual = max(float(np.median(side)) for side in sides)
    differ = max(standard_error(inside) + standard_error(around), spread(block_medians(around)))
    step = float(np.median(inside)) - usual
    return [first, last] if step >= smallest / 2 and step >= _EPISODE * differ else []


def _sharpen(series: Floats, start: int, split: int, stop: int) -> int:
    """Move a change point to where least squares around the two levels put it, within a few steps."""
    before, after = np.median(series[start:split]), np.median(series[split:stop])
    spots = range(max(start + 1, split - _SHORTEST), min(stop - 1, split + _SHORTEST) + 1)
    costs = [np.abs(series[start:s] - before).sum() + np.abs(series[s:stop] - after).sum() for s in spots]
    return int(spots[int(np.argmin(costs))])
