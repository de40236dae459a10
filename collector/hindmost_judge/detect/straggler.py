"""Ranks with a persistent slowdown: for the whole run, or from one step to another.

All ranks are screened at once; only candidates are judged one by one. A segment of a candidate's delay is a slowdown
if it is large, steady, later than healthy ranks differ, and passes the noise tests for small cohorts, for hosts whose
pace changes, and for chance.

Of three ranks two may be late at once, and the third then seems ahead. Where other steps, or a cause, show that it is
not, the two are set against it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from statistics import NormalDist

import numpy as np

from hindmost_judge.blocks import Blocks, Slowdown
from hindmost_judge.causes import launch_bound, stopped, table, why_late
from hindmost_judge.detect import nested_segments
from hindmost_judge.detect.nested_segments import SHORTEST, Layer
from hindmost_judge.settings import Settings
from hindmost_judge.stats.recurring_events import tail
from hindmost_judge.stats.robust import (
    FEW_RANKS,
    MAD_TO_SIGMA,
    MEDIAN_COST,
    SAMPLE,
    block_medians,
    median,
    or_zero,
    peers_median,
    spread,
    standard_error,
)
from hindmost_judge.timeline import cohorts, pipelined
from hindmost_judge.types import Floats, Ints


@dataclass(frozen=True)
class _Ranks:
    """All ranks, and ``suspects``, the rows that may be late: ``sole_peer`` [R] is the row of each one's only peer, -1
    where it has none or several.

    A slowdown is at least ``smallest`` ns a step: less is within what ranks differ by chance. ``whole``: nothing is
    missing; computed once, since a large job has thousands of candidates. ``shared``: they share CPUs.
    """

    blocks: Blocks
    settings: Settings
    smallest: float
    sole_peer: Ints
    suspects: list[int]
    whole: bool
    shared: bool

    @property
    def delay(self) -> Floats:
        """[R, S] ns that each rank is late by."""
        return self.blocks.delay

    def pair(self, row: int) -> list[int]:
        """A rank and its only peer."""
        return [row, int(self.sole_peer[row])]

    def unsuspected(self, row: int) -> Ints:
        """Rows that this one is compared with step by step."""
        pair = self.pair(row)
        return _healthy(self.compared(row), (self.suspects, pair, pair[:1]), 1)

    def noise(self, row: int) -> Callable[[int], float]:
        """How much medians of so many steps of the noisiest healthy rank differ, ns; inf where that is not known."""
        healthy = np.setdiff1d(self.unsuspected(row), self.suspects)
        if self.shared or not self.whole or len(healthy) < FEW_RANKS:
            return lambda _: inf
        return cache(lambda length: max(nested_segments.scatter(self.delay[one], length) for one in healthy.tolist()))

    def compared(self, row: int) -> Ints:
        """Rows whose delays show by what this one's may differ: against others, if its own is."""
        alone = self.blocks.alone
        return np.arange(len(self.delay)) if alone is None or alone[row] else np.flatnonzero(~alone)


def find(blocks: Blocks, settings: Settings, *, shared: bool = False) -> list[Slowdown]:
    """Persistent slowdowns, largest delay first; empty where no rank stands out by every criterion.

    Where ranks share CPUs (``shared``) the scheduler makes a different rank late now and then.
    """
    if len(blocks.ranks) < 2 or len(blocks.steps) < settings.min_steps_when_large:
        return []
    smallest = settings.effect(len(blocks.ranks)) * blocks.step_ns
    turn = _no_noise(blocks, settings) if len(blocks.ranks) < FEW_RANKS and not shared else np.inf
    candidates = screened_candidates(blocks.delay, smallest, turn)[: max(8, len(blocks.ranks) // 2)]
    sole_peer = cohorts.sole_peers(blocks.cohort)
    suspects = sorted({*candidates.tolist(), *sole_peer[candidates].tolist()} - {-1})
    ranks = _Ranks(blocks, settings, smallest, sole_peer, suspects, not np.isnan(blocks.delay).any(), shared)
    found = [slowdown for row in candidates.tolist() for slowdown in _slowdowns(ranks, row)]
    return _beyond_crowd(sorted(found, key=lambda slowdown: -slowdown.delay), ranks)


def of_stopped(blocks: Blocks, settings: Settings) -> list[Slowdown]:
    """Ranks late on the whole that samples show stopped as often as that takes: that is no noise, however they vary."""
    found = []
    for row in stopped.stopped_rows(blocks):
        late = blocks.delay[row][~np.isnan(blocks.delay[row])]
        level = float(median(late)) if len(late) else 0.0
        worth = level >= settings.effect(len(blocks.ranks)) * blocks.step_ns
        if worth and stopped.bears_out(blocks, row, level / blocks.step_ns):
            z, steady = level / max(standard_error(late), 1.0), float(np.mean(block_medians(late) >= level / 2))
            found.append(Slowdown(row, 0, len(blocks.steps), level, z, steady, settings.min_spread_ratio, 1.0))
    return found


def _beyond_crowd(slowdowns: list[Slowdown], ranks: _Ranks) -> list[Slowdown]:
    """Without ranks that are later than so few on-time ranks by what healthy GPUs may differ, the latest first.

    If one of four ranks is slow, three are left, any of which may be as much ahead or behind.
    """
    beyond: list[Slowdown] = []
    for slowdown in slowdowns:
        later = {one.row for one in beyond if one.first < slowdown.stop and slowdown.first < one.stop} - {slowdown.row}
        least = ranks.settings.effect(len(ranks.delay) - len(later)) * ranks.blocks.step_ns
        beyond += [slowdown] if slowdown.delay >= least or not later else []
    return beyond


@dataclass(frozen=True)
class _Series:
    """One rank's delay in the steps ``known`` (indices), without its other slowdowns: a step that others did not record
    says nothing, not zero. All ``steps`` have a number."""

    late: Floats
    known: Ints
    steps: int

    def at(self, first: int, stop: int) -> tuple[int, int]:
        """Steps by index from places in the series: to the ends where nothing is known beyond."""
        end = int(self.known[stop - 1]) + 1 if stop < len(self.late) else self.steps
        return int(self.known[first]) if first else 0, end

    def picked(self, first: int, stop: int) -> slice | Ints:
        """The same steps, as what picks them from a block, and as a view where all are known."""
        return slice(first, stop) if len(self.known) == self.steps else self.known[first:stop]


#: Where collectives overlap with backward, a slow GPU shows this share of its delay.
_SHOWN = 0.5


def _no_noise(blocks: Blocks, settings: Settings) -> float:
    """Ns a step that a rank of a healthy job is not late by."""
    return settings.large_effect * blocks.step_ns * (_SHOWN if blocks.overlapped else 1.0)


def _in_turn(ranks: _Ranks, row: int) -> bool:
    """Whether a rank is one of two in the job that may each be slow; on shared CPUs neither is."""
    return len(ranks.delay) < FEW_RANKS and ranks.sole_peer[row] >= 0 and not ranks.shared


def _at_its_peers_pace(ranks: _Ranks, late: Floats) -> None:
    """Where one of two is behind by what is no noise, the other is not ahead: it does as it did, and waits.

    Else of two that are slow in turn each would only seem to be now ahead and now behind.
    """
    least = _no_noise(ranks.blocks, ranks.settings)
    if not float(np.min(late)) <= -least:
        return
    for first, stop in itertools.pairwise(nested_segments.segment_edges(late, ranks.smallest)):
        ahead = -float(median(late[first:stop]))
        if stop - first >= SHORTEST and ahead >= least:
            late[first:stop] += ahead


def _slowdowns(ranks: _Ranks, row: int) -> list[Slowdown]:
    """The persistent slowdowns of one rank: one after the other, and one on top of the other."""
    known = np.flatnonzero(~np.isnan(ranks.delay[row]))
    if not len(known):
        return []
    series = _Series(ranks.delay[row, known], known, ranks.delay.shape[1])
    if _in_turn(ranks, row):
        _at_its_peers_pace(ranks, series.late)
    turn = _no_noise(ranks.blocks, ranks.settings) if not ranks.shared else np.inf
    took = ranks.blocks.period[series.picked(0, len(known))]
    layers = nested_segments.find(
        series.late, took, ranks.smallest, ranks.settings, turn, shared=ranks.shared, noise=ranks.noise(row)
    )
    for layer in layers:
        series.late[layer.first : layer.stop] -= layer.level
    found: dict[Layer, Slowdown] = {}
    for layer in layers:
        span = slice(layer.first, layer.stop)
        series.late[span] += layer.level
        slowdown = _judge(ranks, row, series, layer)
        if slowdown is not None:  # else what it holds is part of what is on top of it
            series.late[span] -= layer.level
            below = layer.outer
            while below is not None and below not in found:
                below = below.outer
            outer = found[below] if below is not None else None
            hidden = [*layer.inner, *([(layer.stop, layer.end)] if layer.end > layer.stop else [])]
            found[layer] = replace(slowdown, outer=outer, inner=tuple(series.at(*one) for one in hidden))
    return list(found.values())


def _judge(ranks: _Ranks, row: int, series: _Series, layer: Layer) -> Slowdown | None:
    """A segment as a persistent slowdown; ``None`` where it fails any criterion."""
    settings, step = ranks.settings, ranks.blocks.step_ns
    begin, end = layer.first, layer.stop
    part = series.late[begin:end]
    level = float(median(part))
    large = level >= settings.large_effect * step
    needed = settings.min_steps_when_large if large else settings.min_steps
    if len(part) < needed or not level >= ranks.smallest:
        return None
    z = level / max(standard_error(part), _noise(series.late) / np.sqrt(len(part)), 1.0)
    lasting = part if layer.end - end <= len(part) / 2 else series.late[begin : layer.end]
    consistency = float(np.mean(block_medians(lasting) >= level / 2))
    picked = series.picked(begin, end)
    if z < settings.min_z or consistency < settings.min_consistency:
        return None
    small = np.count_nonzero(ranks.blocks.cohort == ranks.blocks.cohort[row]) < FEW_RANKS
    # How long workers need does not drift.
    if small and ranks.blocks.turn == 1 and drifts(series.late, begin, end, level):
        return None
    delay = ranks.delay[:, picked]
    differ = spread(median(delay[_healthy_peers(ranks, row, delay)], axis=1))
    ratio = level / max(differ, 1.0) / extreme(len(delay))
    if ratio < settings.min_spread_ratio:
        ratio = max(ratio, _margin_in_small_cohort(ranks, row, part, delay))
    unsuspected = ranks.unsuspected(row)
    latest = share_last(part, delay[unsuspected])
    seldom_last = latest < settings.min_latest and (
        ranks.shared or not surely_longer(ranks.blocks, row, picked, level, settings)
    )
    if ratio < settings.min_spread_ratio or seldom_last:
        return None
    on_time = steps_on_time(series.late[:end], level, _noise(series.late)) if begin == 0 else 0
    first, stop = series.at(begin + on_time, layer.end)
    as_others = len(ranks.delay) >= FEW_RANKS and others_as_late(ranks.delay, row, first, stop, level)
    if as_others or _by_chance(ranks, row, unsuspected, len(part), level) > _CHANCE:
        return None
    return Slowdown(row, first, stop, level, z, consistency, ratio, latest)


#: Expected number of equally late segments of healthy ranks: a slowdown may be chance in one job of a thousand.
_CHANCE = 0.001


def _by_chance(ranks: _Ranks, row: int, unsuspected: Ints, length: int, level: float) -> float:
    """How many segments of so many steps, half of them at this level, ``unsuspected`` rows have by chance.

    Each of their steps reaches the level as often as all steps do: with work of uneven size that may be often. The
    segment was picked as the highest among all ranks and all ranges of steps. Two ranks that are slow in turn are both
    not healthy.
    """
    steps = ranks.delay.shape[1]
    in_turn = _in_turn(ranks, row) and level >= _no_noise(ranks.blocks, ranks.settings)
    if 2 * length >= steps or in_turn:
        return 0.0
    often = float(np.mean(or_zero(ranks.delay[unsuspected]) >= level))
    if often <= 0:
        return 0.0
    windows = len(ranks.delay) * steps * steps / 2
    return float(windows * tail((length + 1) // 2, length, often))


#: Each rank is compared with this many others, whatever the size of the job: among 1,000 there is always a noisier one.
_RIVALS = 7


def share_last(part: Floats, rivals: Floats) -> float:
    """Share of steps in which ``part`` [S] is later than all of ``_RIVALS`` of these unsuspected ranks would be."""
    rivals = or_zero(rivals)
    share = 1 - 1 / (_RIVALS + 1) if len(rivals) > _RIVALS else 1.0
    bound = np.quantile(rivals, share, axis=0)
    return float(np.mean(or_zero(part) > bound))


def _noise(series: Floats) -> float:
    """Scatter from step to step, over all steps: a segment was picked for being high, and may be calm by chance."""
    return float(MAD_TO_SIGMA * MEDIAN_COST * median(np.abs(np.diff(series))) / np.sqrt(2))


def extreme(ranks: int) -> float:
    """How many standard deviations the most extreme of so many healthy ranks is off, as a multiple of one's."""
    return 1 + float(np.sqrt(2 * np.log(ranks))) / 3


def _healthy(rows: Ints, left_out: Iterable[list[int]], least: int) -> Ints:
    """Those without the first of these sets that leaves at least ``least`` ranks: suspects are left out if possible."""
    for suspects in left_out:
        others = rows[~np.isin(rows, suspects)]
        if len(others) >= least:
            break
    return np.asarray(others[:: max(len(others) // SAMPLE, 1)])


def _margin_in_small_cohort(ranks: _Ranks, row: int, part: Floats, delay: Floats) -> float:
    """How far this rank is behind all others in these steps, in standard deviations of healthy ranks.

    ``delay`` [R, N] is of these steps, ``part`` [N] what counts of the rank's own. The scale takes healthy ranks to
    differ by the most they ever do. 0 where a rank is compared with one or two, where some delays are unsure, and with
    so many ranks that most of them show what is usual.
    """
    blocks, comparable = ranks.blocks, ranks.whole and ranks.sole_peer[row] < 0 and not ranks.shared
    small = len(delay) <= _SMALL and blocks.pipeline is None
    if not (small and comparable) or blocks.unsure is not None:
        return 0.0
    delay = delay.copy()
    delay[row] = part
    return behind_small_cohort(delay, row, ranks.settings.min_effect_of_few * blocks.step_ns, ranks.settings)


#: Healthy ranks needed to know how much they differ: a single rank shows no difference.
_FEWEST = 2


def _healthy_peers(ranks: _Ranks, row: int, delay: Floats) -> Ints:
    """Rows without suspects; if too few are left, rows whose delay [R, N] in these steps is small.

    Where ranks share CPUs, delays of other ranks for a while are part of the healthy spread.
    """
    pair = ranks.pair(row)
    left_out = [ranks.suspects, pair, pair[:1]]
    if not ranks.shared and len(delay) - len(ranks.suspects) < _FEWEST:  # suspected for some steps, not these perhaps
        late = [suspect for suspect in ranks.suspects if median(delay[suspect]) >= ranks.smallest]
        left_out.insert(1, sorted({*late, *ranks.sole_peer[late].tolist(), *pair}))
    return _healthy(ranks.compared(row), left_out, 1 if ranks.blocks.apart else _FEWEST)


#: A block of steps must exceed the rank's own noise by this many standard errors to make the rank a candidate.
_STANDS_OUT = 3.5
#: In a large job the limit rises until chance alone makes at most this many such blocks.
_MOST_BY_CHANCE = 8


def screened_candidates(delay: Floats, smallest: float, large: float) -> Ints:
    """Rows worth a closer look, latest first: late on the whole, or in some block of steps beyond their own noise.

    What is ``large`` in one is that, though turns of being slow be most of what seems noise.
    """
    size = max(_BLOCK, delay.shape[1] // _MOST_BLOCKS)
    count = delay.shape[1] // size
    if count <= _MOST_BLOCKS // 4:  # so short that blocks need not be of one length
        levels = or_zero(block_medians(delay))
    else:
        levels = or_zero(median(delay[:, : count * size].reshape(len(delay), count, size), axis=2))
    highest = levels.max(axis=1)
    found = np.flatnonzero(highest >= smallest)
    part = delay[found]
    usual = median(part, axis=1)
    noise = MAD_TO_SIGMA * MEDIAN_COST * median(np.abs(part - usual[:, None]), axis=1)
    by_chance = NormalDist().inv_cdf(1 - _MOST_BY_CHANCE / levels.size) if levels.size > 2 * _MOST_BY_CHANCE else 0.0
    limit = max(_STANDS_OUT, by_chance) * noise / np.sqrt(delay.shape[1] / levels.shape[1])
    beyond = highest[found] >= usual + limit
    found = found[(usual >= smallest) | beyond | (highest[found] >= large)]
    return np.asarray(found[np.argsort(-highest[found], kind="stable")])


#: Steps of a block, short enough to show a segment of a dozen; and most blocks in a long run.
_BLOCK, _MOST_BLOCKS = 8, 64


#: For up to this many ranks. In a larger job hardly half of the ranks are slow, each by its own amount; the usual
#: spread decides there.
_SMALL = 64
#: Two healthy GPUs differ by at most this many standard deviations of such differences.
_AT_MOST = 3.0


def behind_small_cohort(delay: Floats, row: int, least: float, settings: Settings) -> float:
    """How many standard deviations a rank is behind all ranks that are less late; 0 where it is not sure.

    With three of four ranks slow, each by a different amount, no cohort shows how much healthy ranks differ, and the
    typical rank is slow. Whichever of the others are slow, or ahead, all wait for the latest: fixing it to the next
    one's pace surely saves the difference.

    ``delay`` is [R, N]. Up to half of the ranks may be so late. Between them and the next rank lies a gap of
    ``least`` ns, the largest difference between healthy ranks.
    """
    if not least > 0:
        return 0.0
    levels = median(delay, axis=1)
    order = np.argsort(-levels, kind="stable")
    place, count = int(np.flatnonzero(order == row)[0]), len(order)
    best = 0.0
    for late in range(place + 1, count // 2 + 1):
        last, rest = order[late - 1], order[late:]
        # Each is set against the median of the others: around the middle of an even number, they against each other.
        scale = 2.0 if late + 1 > count // 2 and count % 2 == 0 else 1.0
        gap = (delay[last] - np.fmax.reduce(delay[rest], axis=0)) / scale
        if nested_segments.is_persistent(gap, least, settings):
            best = max(best, _AT_MOST * float(median(gap)) / least)
    return best


#: A segment of a rank in a small cohort must exceed the rank's level before and after by this many times its scatter
#: there.
_ABOVE = 3.0
#: Blocks of this fraction of the segment are reduced to their median; a slowdown under half of a block does not move
#: it.
_AS_LONG = 4


def drifts(series: Floats, begin: int, end: int, level: float) -> bool:
    """Small-cohort noise test: whether a rank drifts ahead of and behind the few others, and not in this segment only.

    Drifts shorter than an eighth of the segment do not count. For a segment longer than all else, an eighth of the
    rest may be other noise: a start, a host's stall.
    """
    around = np.concatenate([series[:begin], series[end:]])
    if len(around) < 2 * SHORTEST:
        return False
    levels, pieces = block_medians(around), len(around) // max((end - begin) // _AS_LONG, 1)
    if pieces < len(levels):
        levels = np.array([median(piece) for piece in np.array_split(around, max(pieces, 1))])
    scatters = np.sort(or_zero(np.abs(levels)))
    others = len(scatters) // 8 if end - begin >= len(around) else 0
    return level < _ABOVE * float(scatters[len(scatters) - 1 - others])


#: Segments of other ranks count as similar from this share of the delay on: the highest of a dozen draws is twice the
#: typical one.
_ALIKE = 0.4
#: One in this many ranks, and one at least, may have a transient slowdown of its own and says nothing about the others.
_SLOW_TOO = 4
#: A segment with this share of the steps is not tested: no other rank can have one as long at another time.
_MOST = 0.8
#: Starts tried for each segment length, most starts in a long run, and ranks sampled in a large job.
_STARTS, _MOST_STARTS, _PACE_SAMPLE = 4, 128, 512


def others_as_late(late: Floats, row: int, first: int, stop: int, level: float) -> bool:
    """Whether most other ranks have segments half as long as [first, stop) in which they are about as late.

    Then the latest one's is not a fault. Scatter from step to step does not show it. For a dozen steps in a row a CPU's
    clock or its neighbours make launching a quarter longer, now on this rank and now on that.

    ``late`` [R, S] is each rank's delay, ``level`` that of ``row`` in these steps. Each is set against its own
    usual.
    """
    steps = late.shape[1]
    if stop - first >= _MOST * steps:
        return False
    size = max(SHORTEST, (stop - first) // 2)
    starts = np.arange(0, steps - size + 1, max(size // _STARTS, (steps - size) // _MOST_STARTS, 1))
    others = np.delete(np.arange(len(late)), row)
    chosen = late[others[:: max(len(others) // _PACE_SAMPLE, 1)]]
    chosen = np.maximum(or_zero(chosen), 0.0)  # who is ahead of others that became late is not late before
    chosen = chosen - median(chosen, axis=1)[:, None]
    levels = np.stack([median(chosen[:, start : start + size], axis=1) for start in starts.tolist()], axis=1)
    peaks = np.sort(levels.max(axis=1))
    return bool(peaks[-1 - max(1, len(peaks) // _SLOW_TOO)] >= _ALIKE * level)


#: Phases that are a rank's own work from end to end: no wait for others and no late launch is in them.
_PHASES = ("input", "gpu_forward")


def surely_longer(blocks: Blocks, row: int, columns: Ints | slice, level: float, settings: Settings) -> bool:
    """Whether the typical of these steps has such a phase longer by about ``level`` ns, whatever batches differ by.

    With batches of uneven size, each makes another rank the last one. How often a rank is last then says little; how
    much longer it computes than its peers, over as many steps, is sure. A forward that its GPU ran as it was
    launched is the host's doing.
    """
    for name in _PHASES:
        part = blocks.parts.get(name)
        if part is None:
            continue
        more = (part[row] - peers_median(part)[row])[columns]
        if name == "gpu_forward":
            launched = launch_bound.launch_bound_steps(blocks, slice(row, row + 1))
            more = np.where(launched[0, columns], np.nan, more) if launched is not None else more
        known = more[~np.isnan(more)]
        if len(known) < max(settings.min_steps, len(more) / 2):
            continue
        steady = np.mean(block_medians(known) >= level / 2) >= settings.min_consistency
        longer = float(median(known))
        if steady and longer >= max(settings.min_explained * level, settings.min_z * standard_error(known)):
            return True
    return False


#: Fewer steps on time at the start are chance, or start-up; more of them form a segment of their own.
_FEWEST_AT_START, _MOST_AT_START = 2, 2 * SHORTEST
#: A rank was on time at first if it was later afterwards by this many times the scatter of so many steps.
_CLEAR = 4.0


def steps_on_time(late: Floats, level: float, noise: float) -> int:
    """How many steps are clearly on time before a rank's delay [S] reaches ``level``; its ``noise`` is a step's.

    One of three or more may have been late for something else, as a first step's warm-up.
    """
    start = late[:_MOST_AT_START]
    behind = np.append(0.0, np.cumsum(start - level / 2))
    first = int(np.argmin(behind))
    before, after = start[:first], start[first:]
    if len(before) < _FEWEST_AT_START or not len(after) or level * np.sqrt(first) < _CLEAR * noise:
        return 0
    return first if median(before) < level / 4 and median(after) >= level / 2 else 0


#: Of so many ranks two that are late at once make the third seem ahead: delays alone do not tell which it is.
_TRIO = 3


def set_apart(blocks: Blocks, settings: Settings) -> Blocks:
    """The blocks with ranks of three, where one or two are surely late, set against those that are not."""
    if blocks.lanes is not None or blocks.turn > 1:
        return blocks
    names, often = np.unique(blocks.cohort, return_counts=True)
    for name in names[often == _TRIO]:
        rows = np.flatnonzero(blocks.cohort == name)
        for usual, first, stop in _usual_of_three(blocks, rows, settings):
            blocks = _set_against(blocks, rows, usual, first, stop)
            blocks = replace(blocks, apart=blocks.apart or len(usual) == 1)
    return blocks


def _usual_of_three(blocks: Blocks, rows: Ints, settings: Settings) -> list[tuple[Ints, int, int]]:
    """The ``rows`` that are on time, not fast, and the steps [first, stop) in which the others of three are late."""
    smallest, replicas = settings.effect(_TRIO) * blocks.step_ns, len(blocks.ranks) > _TRIO
    delay = or_zero(blocks.delay[rows])
    each = [nested_segments.segment_edges(delay[i] - delay[j], smallest) for i, j in ((0, 1), (0, 2), (1, 2))]
    edges = sorted({edge for one in each for edge in one})
    spans = [span for span in itertools.pairwise(edges) if span[1] - span[0] >= SHORTEST]
    known = [_Levels(median(delay[:, a:b], axis=1), float(median(blocks.period[a:b]))) for a, b in spans]
    found = []
    for (first, stop), now in zip(spans, known, strict=True):
        order = third, second, latest = np.argsort(now.late).tolist()
        apart = delay[second] - delay[third]
        more, alone = apart[first:stop], delay[latest, first:stop] - delay[second, first:stop]
        surely = nested_segments.is_persistent(more, 2 * smallest, settings)  # any two may differ by one
        around = np.concatenate([apart[:first], apart[stop:]])
        calm = len(around) > 2 * SHORTEST and nested_segments.only_inside(more, around, smallest, settings)
        if not (surely or calm):
            if nested_segments.is_persistent(alone, 2 * smallest, settings):
                found.append((rows[[third, second]], first, stop))
            continue
        on_time = any(_is_slow(order, now, then, replicas=replicas) for then in known)
        if not on_time:
            compared = _set_against(blocks, rows, rows[[third]], first, stop)
            one = Slowdown(int(rows[second]), first, stop, float(median(more)), 0.0, 1.0, 0.0, 0.0)
            on_time = _has_own_cause(one, int(rows[latest]), compared, settings)
        if on_time:
            found.append((rows[[third]], first, stop))
    return found


@dataclass(frozen=True)
class _Levels:
    """How ``late`` [3] the ranks of a cohort are in some steps, and how long these typically are, ns."""

    late: Floats
    period: float


def _is_slow(order: list[int], now: _Levels, then: _Levels, *, replicas: bool) -> bool:
    """Whether other steps show that the second of three is slow, and not the third fast.

    The second was on time there, in steps that are no longer, and no other changed as much. Or it was as late there,
    and alone. Of ``replicas`` of a stage steps that are longer now show it too; a whole job's are ``all_slower``'s.
    """
    third, second, latest = order
    late = now.late[second] - now.late[third]
    was, alone = then.late[second] - then.late[third], then.late[second] - then.late[latest]
    longer = now.period - then.period
    changed = abs(alone - (now.late[second] - now.late[latest])) >= late / 2 or (replicas and longer >= late / 2)
    on_time = was < late / 2 and longer > -late / 2
    return bool((on_time and changed) or (alone >= late / 2 and abs(was - late) < late / 2))


def _has_own_cause(one: Slowdown, other: int, compared: Blocks, settings: Settings) -> bool:
    """Whether what explains a slowdown is measured on this rank, and not on the other late one."""
    why = why_late.cause_of(compared, one, settings)
    own, its = dict(why.shares_ns), dict(table.explain(compared, other, one.steps(), settings).shares_ns)
    name = why.cause if why.cause in own else "compute"
    return why.cause != "unknown" and its.get(name, 0.0) < own.get(name, 0.0) / 2


def _set_against(blocks: Blocks, rows: Ints, usual: Ints, first: int, stop: int) -> Blocks:
    """The same with these ``rows`` set against the mean of some of them in steps [first, stop)."""
    delay, pipeline = blocks.delay.copy(), blocks.pipeline
    delay[rows, first:stop] -= blocks.delay[usual, first:stop].mean(axis=0)
    if pipeline is None:
        during = (blocks.interval_step >= first) & (blocks.interval_step < stop)
        intervals = blocks.intervals.copy()
        intervals[np.ix_(rows, during)] -= blocks.intervals[np.ix_(usual, during)].mean(axis=0)
        return replace(blocks, delay=delay, intervals=intervals)
    work, mask = pipeline.delay.copy(), (pipeline.steps >= first) & (pipeline.steps < stop)
    against = np.mean([pipeline.delay[np.ix_(pipeline.row == row, mask)] for row in usual], axis=0)
    for row in rows:
        work[np.ix_(pipeline.row == row, mask)] -= against
    return replace(pipelined.by(blocks, replace(pipeline, delay=work)), delay=delay)
