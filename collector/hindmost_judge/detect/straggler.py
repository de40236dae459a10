"""Ranks with a persistent slowdown: for the whole run, or from one step to another."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from math import exp, lgamma, log
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes import stopped
from hindmost_judge.detect import (
    at_start,
    behind_small_cohort,
    candidate_screening,
    drifting,
    episodes,
    pace_noise_test,
    self_time,
    transient,
)
from hindmost_judge.detect.episodes import SHORTEST, Layer
from hindmost_judge.findings import Habit
from hindmost_judge.stats.robust import MAD_TO_SIGMA, MEDIAN_COST, block_medians, median, spread, standard_error
from hindmost_judge.timeline import cohorts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hindmost_judge.blocks import Blocks
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Floats, Ints


@dataclass(frozen=True)
class _Ranks:
    """All ranks, and which of them may be late: ``mate`` [R] is each one's sole peer, -1 where it has none or several.

    A slowdown is at least ``smallest`` ns a step. ``whole``: nothing is missing; computed once, since a large job
    has thousands of candidates. ``shared``: they share CPUs.
    """

    blocks: Blocks
    settings: Settings
    smallest: float
    mate: Ints
    suspects: list[int]
    whole: bool
    shared: bool

    @property
    def excess(self) -> Floats:
        """[R, S] ns that each rank is late by."""
        return self.blocks.excess

    def pair(self, row: int) -> list[int]:
        """A rank and its only peer."""
        return [row, int(self.mate[row])]


def find(blocks: Blocks, settings: Settings, *, shared: bool = False) -> list[Habit]:
    """Persistent slowdowns, largest delay first; empty where no rank stands out by every criterion.

    Where ranks share CPUs (``shared``) the scheduler makes a different rank late now and then.
    """
    if len(blocks.ranks) < 2 or len(blocks.steps) < settings.min_steps_when_large:
        return []
    smallest = settings.effect(len(blocks.ranks)) * blocks.step_ns
    turn = _no_noise(blocks, settings) if len(blocks.ranks) < _FEW and not shared else np.inf
    candidates = candidate_screening.find(blocks.excess, smallest, turn)[: max(8, len(blocks.ranks) // 2)]
    mate = cohorts.mates(blocks.role)
    suspects = sorted({*candidates.tolist(), *mate[candidates].tolist()} - {-1})
    ranks = _Ranks(blocks, settings, smallest, mate, suspects, not np.isnan(blocks.excess).any(), shared)
    found = [habit for row in candidates.tolist() for habit in _habits(ranks, row)]
    told = [(habit.row, habit.first, habit.stop) for habit in found]
    for row, *span in transient.find(blocks.excess, settings.stall_effect * blocks.step_ns, told, settings):
        habit = _burst(ranks, row, (span[0], span[1]), [one for one in found if one.row == row])
        found += [habit] if habit is not None else []
    return _beside_a_crowd(sorted(found, key=lambda habit: -habit.excess), ranks)


def of_stopped(blocks: Blocks, settings: Settings) -> list[Habit]:
    """Ranks late on the whole that samples show stopped as often as that takes: that is no noise, however they vary."""
    found = []
    for row in stopped.seen(blocks):
        late = blocks.excess[row][~np.isnan(blocks.excess[row])]
        level = float(median(late)) if len(late) else 0.0
        worth = level >= settings.effect(len(blocks.ranks)) * blocks.step_ns
        if worth and stopped.bears_out(blocks, row, level / blocks.step_ns):
            z, steady = level / max(standard_error(late), 1.0), float(np.mean(block_medians(late) >= level / 2))
            found.append(Habit(row, 0, len(blocks.steps), level, z, steady, settings.min_spread_ratio, 1.0))
    return found


def _beside_a_crowd(habits: list[Habit], ranks: _Ranks) -> list[Habit]:
    """Without ranks that are later than so few on-time ranks by what healthy GPUs may differ, the latest first.

    If one of four ranks is slow, three are left, any of which may be as much ahead or behind.
    """
    kept: list[Habit] = []
    for habit in habits:
        later = {one.row for one in kept if one.first < habit.stop and habit.first < one.stop} - {habit.row}
        least = ranks.settings.effect(len(ranks.excess) - len(later)) * ranks.blocks.step_ns
        kept += [habit] if habit.excess >= least or not later else []
    return kept


@dataclass(frozen=True)
class _Series:
    """One rank's delay in the steps ``known`` (indices; ``None``: all), without its other slowdowns."""

    late: Floats
    known: Ints | None
    steps: int

    def at(self, first: int, stop: int) -> tuple[int, int]:
        """Steps by index from places in the series: to the ends where nothing is known beyond."""
        if self.known is None:
            return first, stop
        end = int(self.known[stop - 1]) + 1 if stop < len(self.late) else self.steps
        return int(self.known[first]) if first else 0, end

    def held(self, first: int, stop: int) -> slice | Ints:
        """The same steps, as what picks them from a block."""
        return slice(first, stop) if self.known is None else self.known[first:stop]


def _series(ranks: _Ranks, row: int) -> _Series:
    """A step that others did not record says nothing, not zero."""
    series = ranks.excess[row]
    known = None if ranks.whole else np.flatnonzero(~np.isnan(series))
    late = series.copy() if known is None else series[known]
    if len(late) and _in_turn(ranks, row):
        _at_its_peers_pace(ranks, late)
    return _Series(late, known, len(series))


#: Where collectives overlap with backward, a slow GPU shows this share of its delay.
_SHOWN = 0.5


def _no_noise(blocks: Blocks, settings: Settings) -> float:
    """Ns a step that a rank of a healthy job is not late by."""
    return settings.large_effect * blocks.step_ns * (_SHOWN if blocks.overlapped else 1.0)


def _in_turn(ranks: _Ranks, row: int) -> bool:
    """Whether a rank is one of two in the job that may each be slow; on shared CPUs neither is."""
    return len(ranks.excess) < _FEW and ranks.mate[row] >= 0 and not ranks.shared


def _at_its_peers_pace(ranks: _Ranks, late: Floats) -> None:
    """Where one of two is behind by what is no noise, the other is not ahead: it does as it did, and waits.

    Else of two that are slow in turn each would only seem to be now ahead and now behind.
    """
    least = _no_noise(ranks.blocks, ranks.settings)
    if not float(np.min(late)) <= -least:
        return
    for first, stop in itertools.pairwise(episodes.pieces(late, ranks.smallest, ranks.settings)):
        ahead = -float(median(late[first:stop]))
        if stop - first >= SHORTEST and ahead >= least:
            late[first:stop] += ahead


def _habits(ranks: _Ranks, row: int) -> list[Habit]:
    """The persistent slowdowns of one rank: one after the other, and one on top of the other."""
    series = _series(ranks, row)
    turn = _no_noise(ranks.blocks, ranks.settings) if _in_turn(ranks, row) else np.inf
    known = len(series.late) > 0
    layers = episodes.find(series.late, ranks.smallest, ranks.settings, turn, shared=ranks.shared) if known else []
    for layer in layers:
        series.late[layer.first : layer.stop] -= layer.level
    found: dict[Layer, Habit] = {}
    for layer in layers:
        span = slice(layer.first, layer.stop)
        series.late[span] += layer.level
        habit = _judge(ranks, row, series, layer)
        if habit is not None:  # else what it holds is part of what is on top of it
            series.late[span] -= layer.level
            outer = next((found[one] for one in _around(layer) if one in found), None)
            hidden = [*layer.inner, *([(layer.stop, layer.end)] if layer.end > layer.stop else [])]
            found[layer] = replace(habit, outer=outer, inner=tuple(series.at(*one) for one in hidden))
    return list(found.values())


def _around(layer: Layer) -> Iterator[Layer]:
    """What a layer is on top of, the nearest first."""
    while layer.outer is not None:
        layer = layer.outer
        yield layer


def _burst(ranks: _Ranks, row: int, span: tuple[int, int], habits: list[Habit]) -> Habit | None:
    """A few very late steps as a slowdown of a rank that has these others."""
    series = _series(ranks, row)
    steps = np.arange(series.steps) if series.known is None else series.known
    for habit in habits:
        series.late[(steps >= habit.first) & (steps < habit.stop)] -= habit.excess
    begin, end = np.searchsorted(steps, span).tolist()
    layer = Layer(begin, end, end, float(median(series.late[begin:end])))
    return _judge(ranks, row, series, layer, burst=True)


def _judge(ranks: _Ranks, row: int, series: _Series, layer: Layer, *, burst: bool = False) -> Habit | None:
    """A segment as a persistent slowdown; ``None`` where it fails any criterion."""
    settings, step = ranks.settings, ranks.blocks.step_ns
    begin, end = layer.first, layer.stop
    part = series.late[begin:end]
    level = float(median(part))
    large = burst or level >= settings.large_effect * step
    needed = settings.min_steps_when_large if large else settings.min_steps
    if len(part) < needed or not level >= ranks.smallest:
        return None
    z = level / max(standard_error(part), _noise(series.late) / np.sqrt(len(part)), 1.0)
    told = part if layer.end - end <= len(part) / 2 else series.late[begin : layer.end]
    consistency = float(np.mean(block_medians(told) >= level / 2))
    held = series.held(begin, end)
    if z < settings.min_z or consistency < settings.min_consistency:
        return None
    if not burst and len(ranks.excess) < _FEW and drifting.wanders(series.late, begin, end, level):
        return None
    healthy = ranks.excess[:, held]
    spread_of = max(_healthy_spread(ranks, row, held), 1.0)
    ratio = level / spread_of / extreme(len(ranks.excess))
    if ratio < settings.min_spread_ratio:
        ratio = max(ratio, _behind_all(ranks, row, part, healthy))
    latest = _latest(part, healthy, ranks.suspects, ranks.pair(row))
    seldom_last = latest < settings.min_latest and (burst or not _computes_longer(ranks, row, held, level))
    if ratio < settings.min_spread_ratio or seldom_last:
        return None
    on_time = at_start.on_time(series.late[:end], level, _noise(series.late)) if begin == 0 else 0
    first, stop = series.at(begin + on_time, layer.end)
    as_others = len(ranks.excess) >= _FEW and pace_noise_test.others_too(ranks.excess, row, first, stop, level)
    if not burst and (as_others or _by_chance(ranks, row, len(part), level) > _CHANCE):
        return None
    return Habit(row, first, stop, level, z, consistency, ratio, latest)


def _computes_longer(ranks: _Ranks, row: int, held: Ints | slice, level: float) -> bool:
    """Whether a rank that is rarely last surely computes longer than its peers, by all of its delay."""
    return not ranks.shared and self_time.surely_longer(ranks.blocks, row, held, level, ranks.settings)


#: Expected number of equally late segments of healthy ranks: a slowdown may be chance in one job of a thousand.
_CHANCE = 0.001


def _by_chance(ranks: _Ranks, row: int, length: int, level: float) -> float:
    """How many segments of so many steps, half of them at this level, unsuspected ranks have by chance.

    Each of their steps reaches the level as often as all steps do: with work of uneven size that may be often. The
    segment was picked as the highest among all ranks and all ranges of steps. Two ranks that are slow in turn are both
    not healthy.
    """
    steps = ranks.excess.shape[1]
    in_turn = _in_turn(ranks, row) and level >= _no_noise(ranks.blocks, ranks.settings)
    if 2 * length >= steps or in_turn:
        return 0.0
    healthy = ranks.excess[_healthy_peers(ranks, row, ranks.excess)]
    often = float(np.mean(np.nan_to_num(healthy) >= level))
    if often <= 0:
        return 0.0
    half = (length + 1) // 2
    ways = lgamma(length + 1) - lgamma(half + 1) - lgamma(length - half + 1)
    windows = len(ranks.excess) * steps * steps / 2
    return exp(min(ways + half * log(often) + log(windows), 0.0))


#: With fewer ranks, it is unknown how much healthy ones differ.
_FEW = 4
#: Each rank is compared with this many others, whatever the size of the job: among 1,000 there is always a noisier one.
_RIVALS = 7


def _latest(part: Floats, excess: Floats, suspects: list[int], pair: list[int]) -> float:
    """Share of steps in which ``part`` is later than all of ``_RIVALS`` unsuspected ranks would be."""
    others = _healthy(len(excess), (suspects, pair, pair[:1]), 1)
    rivals = np.nan_to_num(excess[others])
    share = 1 - 1 / (_RIVALS + 1) if len(rivals) > _RIVALS else 1.0
    bound = np.quantile(rivals, share, axis=0)
    return float(np.mean(np.nan_to_num(part) > bound))


def _noise(series: Floats) -> float:
    """Scatter from step to step, over all steps: a segment was picked for being high, and may be calm by chance."""
    return float(MAD_TO_SIGMA * MEDIAN_COST * median(np.abs(np.diff(series))) / np.sqrt(2))


def extreme(ranks: int) -> float:
    """How many standard deviations the most extreme of so many healthy ranks is off, as a multiple of one's."""
    return 1 + float(np.sqrt(2 * np.log(ranks))) / 3


#: Healthy ranks sampled: enough to know their spread, whatever the size of the job.
_SAMPLE = 512


def _healthy(ranks: int, left_out: Iterable[list[int]], least: int) -> Ints:
    """Rows without the first of these sets that leaves at least ``least`` ranks: suspects are left out if possible."""
    for some in left_out:
        kept = np.ones(ranks, bool)
        kept[[row for row in some if row >= 0]] = False
        others = np.flatnonzero(kept)
        if len(others) >= least:
            break
    return np.asarray(others[:: max(len(others) // _SAMPLE, 1)])


#: In a cohort of three each rank is set against the mean of the other two, so both seem ahead by half of one rank's
#: delay.
_TRIO = 3


def _healthy_spread(ranks: _Ranks, row: int, held: Ints | slice) -> float:
    """How much healthy ranks differ in their typical delay in these steps, in which this one is late.

    In a large cohort, all but this rank count as healthy.
    """
    excess, role = ranks.excess[:, held], ranks.blocks.role
    healthy = _healthy_peers(ranks, row, excess)
    typical = median(excess[healthy], axis=1)
    names, often = np.unique(role, return_counts=True)
    for name in names[often == _TRIO] if len(names) > 1 else ():
        peers = role[healthy] == name
        typical[peers] -= typical[peers].mean() if peers.any() else 0.0
    return spread(typical)


def _behind_all(ranks: _Ranks, row: int, part: Floats, excess: Floats) -> float:
    """How far this rank is behind all others in these steps, in standard deviations of healthy ranks.

    ``excess`` [R, N] is of these steps, ``part`` [N] what counts of the rank's own. The scale takes healthy ranks to
    differ by the most they ever do. 0 where a rank is compared with one or two, where some delays are unsure, and with
    so many ranks that most of them show what is usual.
    """
    blocks, compared = ranks.blocks, ranks.whole and ranks.mate[row] < 0 and not ranks.shared
    few = _FEW <= len(excess) <= behind_small_cohort.MOST and blocks.pipeline is None
    if not (few and compared) or blocks.unsure is not None:
        return 0.0
    beside = excess.copy()
    beside[row] = part
    return behind_small_cohort.ratio(beside, row, ranks.settings.min_effect_of_few * blocks.step_ns, ranks.settings)


#: Healthy ranks needed to know how much they differ: a single rank shows no difference.
_FEWEST = 2


def _healthy_peers(ranks: _Ranks, row: int, excess: Floats) -> Ints:
    """Rows without suspects; if too few are left, rows whose delay [R, N] in these steps is small.

    Where ranks share CPUs, delays of other ranks for a while are part of the healthy spread.
    """
    pair = ranks.pair(row)
    left_out = [ranks.suspects, pair, pair[:1]]
    if not ranks.shared and len(excess) - len(ranks.suspects) < _FEWEST:  # suspected for some steps, not these perhaps
        left_out.insert(1, sorted({*_late(ranks, excess), *pair}))
    return _healthy(len(excess), left_out, _FEWEST)


def _late(ranks: _Ranks, excess: Floats) -> list[int]:
    """Suspects that are late in these steps, and their only peers, which are ahead by as much."""
    late = [one for one in ranks.suspects if median(excess[one]) >= ranks.smallest]
    return [*late, *ranks.mate[late].tolist()]
