"""Ranks that stall now and then: most steps like their peers', some far later, and always the same rank.

Several may, most of the steps or most of their peers among them. Each is either late or on time, and hardly ever
between, many times apart; those who are neither are the calm ones that it is set against. Where half of its peers or
more stall, that these are calm and not ahead shows in what grows then: the steps, or a part of the rank's own work.

Stalls spread over ranks at random would not hit the same ranks as often: that is the noise test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import comb

import numpy as np

from hindmost_judge.blocks import Blocks, Slowdown, Stalls
from hindmost_judge.causes import loading, stopped
from hindmost_judge.settings import Settings
from hindmost_judge.stats import recurring_events
from hindmost_judge.stats.recurring_events import begins, tail
from hindmost_judge.stats.robust import MAD_TO_SIGMA, median, or_zero
from hindmost_judge.timeline import cohorts
from hindmost_judge.timeline.cohorts import behind_early_ranks
from hindmost_judge.types import Array, Floats, Ints


def find(blocks: Blocks, settings: Settings, slowdowns: Sequence[Slowdown] = ()) -> list[Stalls]:
    """Ranks that own most of the job's stalls, by far more than chance would give one of them.

    Delay that belongs to ``slowdowns`` is not a stall that could hide another rank's stalls.
    """
    if len(blocks.ranks) < 2:
        return []
    if len(blocks.steps) < 2 * settings.min_steps:
        return _of_intervals(blocks, settings)
    delay = or_zero(blocks.delay - _usual(blocks, settings)[:, None])
    sole_peer = cohorts.sole_peers(blocks.cohort)
    found = [stalls for stalls in _large(blocks, delay, settings) if not _in_turn(blocks.delay, stalls, sole_peer)]
    found += _outliers(blocks, [row for stalls in found for row in stalls.rows], slowdowns, settings)
    reported = {row for stalls in found for row in stalls.rows}
    found = _sets(blocks, settings, reported, {slowdown.row for slowdown in slowdowns}) or found
    return [*found, *_long_stalls(blocks, delay, {row for stalls in found for row in stalls.rows})]


def _sets(blocks: Blocks, settings: Settings, reported: set[int], late: set[int]) -> list[Stalls]:
    """All ranks that stall, if they are more than those ``reported``, or too many of their peers for those.

    Also if some are ``late`` persistently only because they stall in most steps.
    """
    found = find_stall_sets(blocks, settings)
    most = _most_of_peers(blocks, list(found), _MAJORITY)
    rows = set(found)
    if len(rows) < 2 or (reported >= rows and not most and late.isdisjoint(rows)):
        return []
    behind = behind_early_ranks(or_zero(blocks.delay), blocks.cohort)
    total = sum(int(np.count_nonzero(mask)) for mask in found.values())
    each = []
    for row, mask in found.items():
        delay, usual = float(median(behind[row, mask])), float(median(behind[row, ~mask]))
        frequent = usual < _ALIKE * delay
        share = int(np.count_nonzero(mask)) / total
        each.append(
            Stalls(
                (row,),
                np.flatnonzero(mask),
                delay,
                share,
                widespread=bool(most),
                frequent=frequent,
                explained_share=1.0,
            )
        )
    return each


#: From this share on, stalling ranks set the median of their cohort.
_MAJORITY = 0.51


#: The sole peer of a stalling rank must not be late by this share of the stall in this many steps for each stall.
_AS_LATE, _TURNS = 0.75, 0.5


def _in_turn(late: Floats, one: Stalls, sole_peer: Ints) -> bool:
    """Whether the sole peer of a rank is now and then as late [R, S] as it is in its stalls: then both are, in turn.

    If the work of two ranks varies, one is usually behind, and the other's extra work is far from its usual.
    """
    row = one.rows[0]
    if sole_peer[row] < 0:
        return False
    typical = float(median(late[row, one.stalled]))
    return bool(np.sum(late[sole_peer[row]] >= _AS_LATE * typical) >= _TURNS * len(one.stalled))


def _large(blocks: Blocks, delay: Floats, settings: Settings) -> list[Stalls]:
    """Those who own most of the stalls, however large; else those with some of one size.

    Who alone does such work may take long now and then by design: such a rank only has stalls that are far longer.
    """
    if blocks.alone is not None:
        delay = np.where(blocks.alone[:, None], np.minimum(delay, 0.0), delay)
    stalled = delay >= settings.stall_effect * blocks.step_ns
    owners = _owners(stalled, settings, picked=loading.throughout(blocks))
    found = [_with_its_like(delay, row, steps, share, settings) for row, steps, share in owners]
    found.sort(key=lambda one: -len(one.stalled))
    reported = {row for one in found for row in one.rows}
    found += [stalls for stalls in _of_one_size(blocks, delay, settings) if reported.isdisjoint(stalls.rows)]
    return found


#: Stalls of one disturbance follow each other within so many steps. Of jobs with random ones so large a share has as
#: many as large on one rank.
_ONE_DISTURBANCE, _ACCIDENT = 8, 0.005
#: Of jobs with so many random stalls, whatever their sizes, all hit one rank in this share: two of 27 ranks, three of
#: six, four of three. How many there are is random, too: two, at the most, in a fourth of jobs. Where no other rank was
#: ever late by a fourth of them, less often is enough: three of eight, four of four.
_ALL_OF_ONE, _FAR, _ALL_FAR_OF_ONE = 1 / 27, 4.0, 1 / 62.5
#: How sure it is that a rank was waited for that stalled as no other did.
_SURE_OF_EVENTS = 0.9


def _long_stalls(blocks: Blocks, delay: Floats, reported: set[int]) -> list[Stalls]:
    """A rank that stalled at least twice, each time for longer than a step, or than any other was late [R, S].

    Every other rank waited for it: that is an event, whatever noise there is. Random ones follow a Pareto distribution
    of index 1, as hiccups do: each rank has c / x of them longer than x, and c follows from the ``longest`` of the
    R - 1 others. Then a rank has n with the chance (longest / (longest + (R - 1) x))^n. Where others have none, that
    says nothing: n of any size are all of one rank with the chance R^(1 - n). So few say nothing of the next. Ranks
    whose stalls are ``reported`` are none of these.
    """
    *_, second, row = [-1, -1, *sorted(set(range(len(delay))) - reported, key=lambda one: float(delay[one].max()))]
    if second < 0:
        return []
    late, others = float(delay[second].max()), len(delay) - len(reported) - 1
    longest = max(late, blocks.step_ns)
    steps = np.flatnonzero(delay[row] >= longest)
    firsts = np.flatnonzero(np.diff(steps, prepend=-_ONE_DISTURBANCE) >= _ONE_DISTURBANCE)
    if len(firsts) <= 1:
        return []
    sizes = np.sort(np.maximum.reduceat(delay[row, steps], firsts))[-2::-1]  # the shortest of two, of three …
    count = np.arange(2, len(sizes) + 2)
    chance = (others + 1) * (longest / (longest + others * sizes)) ** count
    alone = (others + 1.0) ** (1 - count)
    sure = ((chance <= _ACCIDENT) & (alone <= _ALL_OF_ONE)) | ((sizes >= _FAR * late) & (alone <= _ALL_FAR_OF_ONE))
    if not sure.any():
        return []
    steps = steps[delay[row, steps] >= _ALIKE * sizes[np.flatnonzero(sure)[-1]]]
    return [Stalls((row,), steps, float(median(delay[row, steps])), 1.0, explained_share=_SURE_OF_EVENTS)]


def _of_one_size(blocks: Blocks, delay: Floats, settings: Settings) -> list[Stalls]:
    """Those whose stalls are few and alike: in steps, else in their intervals."""
    found = _worth_it(delay, blocks, settings)
    return [
        replace(_with_its_like(delay, one.row, one.steps, one.share, settings), explained_share=1 - one.p_value)
        for one in found
    ] or _of_intervals(blocks, settings)


def _of_intervals(blocks: Blocks, settings: Settings) -> list[Stalls]:
    """The same in single intervals, as far as their steps show it: several stalls may be in one step, or half of one
    next to a peer's. Delays in one interval of steps on end are no stalls."""
    each = blocks.intervals.shape[1] // len(blocks.steps)
    if each == 1:
        return []
    late = or_zero(np.minimum(blocks.intervals, blocks.delay[:, blocks.interval_step]))
    found = []
    for one in _worth_it(late, blocks, settings):
        apart = 1 + int(np.count_nonzero(np.diff(one.steps) > each))
        if apart < max(settings.min_stalls, len(one.steps) / 2):
            continue
        steps = np.unique(blocks.interval_step[one.steps])
        typical = float(median(blocks.delay[one.row, steps]))
        found.append(Stalls((one.row,), steps, typical, one.share, explained_share=1 - one.p_value))
    return found


def _worth_it(late: Floats, blocks: Blocks, settings: Settings) -> list[recurring_events.Recurring]:
    """Rows of ``late`` [R, K] ns with a few delays of one size that are worth it, and are mostly theirs."""
    smallest = settings.stall_effect * blocks.step_ns
    found = recurring_events.find(late, smallest, settings.min_stalls, stopped.stopped_rows(blocks))
    least = settings.effect(len(blocks.ranks)) * float(np.nansum(blocks.period))
    return [one for one in found if one.share >= settings.min_stall_share and one.size * len(one.steps) >= least]


#: A small stall counts if it is this many times the distance from the typical rank's least late tenth to its median:
#: 1.3 standard deviations of noise. Then nothing of that size happens to the others.
_CALM = 4.0
#: Per cent of a rank's steps taken as its least late: a rank that stalls in most steps does not stall in these.
_FEWEST = 10
#: With fewer peers, a rank seems ahead by a good part of what one of them is behind.
_PEERS = 3


def _outliers(blocks: Blocks, named: list[int], slowdowns: Sequence[Slowdown], settings: Settings) -> list[Stalls]:
    """The few ranks that stall as no other rank does, however little, without what is already reported."""
    _, cohort, often = np.unique(blocks.cohort, return_inverse=True, return_counts=True)
    unknown = np.isnan(blocks.delay).all(axis=1) | (often[cohort] <= _PEERS)
    if unknown.all():
        return []
    known = np.where(unknown[:, None], 0.0, blocks.delay)
    low, usual = calm_level(known)
    calm = float(np.median((usual - low)[~unknown]))
    above = or_zero(known - (low + calm)[:, None])
    above[named] = 0.0
    others = above.copy()
    for slowdown in slowdowns:
        others[slowdown.row, slowdown.first : slowdown.stop] = 0.0
    large = settings.stall_effect * blocks.step_ns
    for size in (large, max(_SMALL * large, _CALM * calm)):
        count = min(_MOST_RANKS, len(above) // 4)
        most = _owners(others >= size, settings, count, times=2.0)
        for row, _, _ in most:
            others[row] = 0.0
        found = []
        for row, _, share in most:
            late = np.where(np.arange(len(above))[:, None] == row, above, others)
            one = _with_its_like(late, row, np.flatnonzero(above[row] >= size), share, settings)
            found += [one] if _stands_apart(above[row], one.delay, len(one.stalled)) else []
        if found:
            return found
    return []


def calm_level(late: Floats) -> tuple[Floats, Floats]:
    """[R] how late each row of [R, S] is in its least late steps, and in its middle one."""
    ordered = np.sort(late, axis=1)  # NaN goes last
    last = np.count_nonzero(~np.isnan(late), axis=1) - 1
    rows = np.arange(len(late))
    return np.asarray(ordered[rows, last * _FEWEST // 100]), np.asarray(ordered[rows, last // 2])


#: Most ranks that may stall independently; in a small job at most one in four.
_MOST_RANKS = 4


#: Per cent of a rank's steps, least late first, in which a rank that stalls in most steps is as usual.
_LEAST = 25


def _usual(blocks: Blocks, settings: Settings) -> Floats:
    """[R] how late a rank is where it does not stall.

    The sole peer of a stalling rank is ahead in its stalls, and on time in the other steps.
    """
    usual = median(blocks.delay, axis=1)
    most = np.flatnonzero(usual >= settings.stall_effect * blocks.step_ns)
    if len(most):
        usual[most] = np.nanpercentile(blocks.delay[most], _LEAST, axis=1)
        sole_peer = cohorts.sole_peers(blocks.cohort)[most]
        usual[sole_peer[sole_peer >= 0]] = -usual[most[sole_peer >= 0]]
    return usual


#: A rank's steps that are late by this share of its typical stall are stalls too, if it has most of such steps.
_ALIKE = 0.5


def _with_its_like(delay: Floats, row: int, steps: Ints, share: float, settings: Settings) -> Stalls:
    """The stalls of a row, with those that fall a little short of the general threshold."""
    late = delay >= _ALIKE * float(np.median(delay[row, steps]))
    if np.sum(late[row]) >= settings.min_stall_share * np.sum(late):
        steps = np.flatnonzero(late[row])
    steps = _of_one_kind(delay[row], steps, settings)
    return Stalls((row,), steps, float(np.median(delay[row, steps])), share)


def _of_one_kind(late: Floats, steps: Ints, settings: Settings) -> Ints:
    """The large stalls of a row [S], if they are separate from the small ones and most of its delay; else all.

    A host that hesitates now and then is another problem than one that makes a rank late by a step: it began at
    another time, and counted as such a stall it would cost as much.
    """
    by_size = steps[np.argsort(late[steps])]
    sums = np.cumsum(late[by_size])
    typical = late[by_size[np.searchsorted(sums, sums[-1] / 2)]]  # half of all delay is in stalls as long as that
    large = np.sort(steps[late[steps] >= _ALIKE * typical])
    one = Stalls((), large, float(np.median(late[large])), 1.0)
    most = late[large].sum() >= settings.min_stall_share * sums[-1]
    often = len(begins(large)) >= settings.min_stalls
    return large if most and often and _stands_apart(late, one.delay, len(one.stalled)) else steps


def _owners(
    stalled: Array, settings: Settings, most: int = 1, times: float = 0.0, picked: Array | None = None
) -> list[tuple[int, Ints, float]]:
    """Row, stalled steps and share of all stalls of [R, S], of the fewest rows, at ``most`` so many, that have most.

    Each stalls in more than so many ``times`` the steps of any other; what stalls all along counts as one stall. Rows
    ``picked`` [R] by something else than their stalls are not one of all that may have them by chance.
    """
    episodes = _count_stalls(stalled)
    order = np.argsort(-episodes, kind="stable")
    total, stalls = max(int(episodes.sum()), 1), np.count_nonzero(stalled, axis=1)
    for count in range(1, most + 1):
        rows, rest = order[:count], order[count:]
        covered = int(episodes[rows].sum())
        if episodes[rows[-1]] < settings.min_stalls:
            break
        ways = int(picked.sum()) if picked is not None and picked[rows].all() else comb(len(order), count)
        accident = by_chance(covered, total, count / len(order), ways)
        clear = stalls[rows].min() > times * stalls[rest].max(initial=0)
        if covered >= settings.min_stall_share * total and clear and not accident:
            return [(row, np.flatnonzero(stalled[row]), float(episodes[row] / total)) for row in rows.tolist()]
    return []


def beyond_stalls(
    slowdowns: list[Slowdown], stalls: list[Stalls], blocks: Blocks, settings: Settings
) -> list[Slowdown]:
    """Those that are more than a cluster of a rank's stalls, if it has enough stalls outside all its slowdowns.

    A rank that stalls now and then, and is slow in nearly all steps since one, is slow since then.
    """
    frequent = other_stalls(slowdowns, stalls, settings)
    lasting = {
        row for row in frequent if _lasts([one for one in slowdowns if one.row == row], blocks.delay[row], settings)
    }
    return [slowdown for slowdown in slowdowns if slowdown.row not in frequent - lasting]


def other_stalls(slowdowns: list[Slowdown], stalls: list[Stalls], settings: Settings) -> set[int]:
    """Rows of the ranks with enough stalls outside their persistent slowdowns to be reported for these alone."""
    found: set[int] = set()
    for one in stalls:
        steps = one.stalled
        for slowdown in slowdowns:
            if slowdown.row in one.rows:
                steps = steps[(steps < slowdown.first) | (steps >= slowdown.stop)]
        often = one.frequent or len(begins(steps)) >= settings.min_stalls
        if len(one.rows) == 1 and often:
            found.add(one.rows[0])
    return found


#: Per cent of a persistent slowdown's steps that may be on time, and the part of it by which all others are late: it
#: covers nearly all steps, despite noise.
_ON_TIME, _LATE_BY = 25, 0.25
#: A persistent slowdown holds most of the steps in which the rank is late by half of it; stalls cluster in some of
#: them.
_MOST = 0.5


def _lasts(slowdowns: list[Slowdown], late: Floats, settings: Settings) -> bool:
    """Whether a rank that is ``late`` [S] is late in nearly all steps of its slowdowns, and rarely outside of them."""
    inside = np.zeros(len(late), bool)
    for slowdown in slowdowns:
        inside[slowdown.first : slowdown.stop] = True
    if min(np.sum(inside), np.sum(~inside)) < settings.recovered_steps:
        return False
    usual, smallest = float(median(late[~inside])), min(slowdown.delay for slowdown in slowdowns)
    if float(np.nanpercentile(late[inside], _ON_TIME)) < usual + _LATE_BY * smallest:
        return False
    often = or_zero(late) >= usual + smallest / 2
    return bool(np.sum(often & inside) > _MOST * np.sum(often))


#: In a job of more ranks the median is the baseline: a few stalling ranks do not move it. With more stalling ranks than
#: the second number no set is looked for.
_CROWD, _MOST_ROWS = 256, 64
#: Share of `stall_effect` that is enough: a GPU's stall shows half or less of itself as delay where collectives overlap
#: with backward.
_SMALL = 0.3
#: A rank's late and on-time steps must be apart by this many times the scatter of either.
_SIGMAS = 6.0
#: Most steps that a stall, or the time between two, lasts on average; with more, it is a slow segment.
_LASTS = 8
#: Stalls are capped at this many typical ones, before late steps are separated from the others.
_LONGEST = 2.0
#: Divisor of a cohort's size: at least that many ranks must be calm, more than those ahead by chance that the baseline
#: leaves out.
_CALM_SHARE = 4
#: In stalls, steps or a part of the rank's self time must be longer by this share of its delay.
_GROWS = 0.5
#: Steps with and without a stall needed to test that.
_ENOUGH = 10


def find_stall_sets(blocks: Blocks, settings: Settings) -> dict[int, Array]:
    """Row to [S] in which steps it stalls, of all that do; empty where there is any doubt who does."""
    least = _SMALL * settings.stall_effect * blocks.step_ns
    late = or_zero(blocks.delay)
    late = behind_early_ranks(late, blocks.cohort) if len(late) <= _CROWD else late
    rows = np.flatnonzero(np.count_nonzero(late >= least, axis=1) >= settings.min_stalls)
    if len(rows) > _MOST_ROWS:
        return {}
    splits = {row: _split(late[row]) for row in rows.tolist()}
    found = {row: mask for row, (mask, size) in splits.items() if _stalls(late[row], mask, size, least, settings)}
    if not found or not _leave_calm(blocks, found):
        return {}
    if not _owned(late, found, min(splits[row][1] for row in found), settings):
        return {}
    sizes = {row: splits[row][1] for row in found}
    return found if all(_grows(blocks, row, found, sizes) for row in _most_of_peers(blocks, list(found))) else {}


#: If this share of a cohort stalls, a further sign must show that these are late, and not the others ahead.
_HALF = 0.5


def _most_of_peers(blocks: Blocks, rows: list[int], share: float = _HALF) -> list[int]:
    """The rows whose cohort has at least that share of its ranks among them."""
    stall = np.isin(np.arange(len(blocks.cohort)), rows)
    return [row for row in rows if np.mean(stall[blocks.cohort == blocks.cohort[row]]) >= share]


def _split(late: Floats) -> tuple[Array, float]:
    """[S] which steps are the late ones, where a rank has two kinds, and by how much: Otsu's split."""
    values = np.minimum(late, _LONGEST * np.percentile(late, 90))
    ordered = np.sort(values)
    count = np.arange(1, len(ordered))
    sums = np.cumsum(ordered)
    low, high = sums[:-1] / count, (sums[-1] - sums[:-1]) / (len(ordered) - count)
    best = int(np.argmax(count * (len(ordered) - count) * (high - low) ** 2))
    mask = values > (ordered[best] + ordered[best + 1]) / 2
    if not mask.any() or mask.all():
        return np.zeros(len(late), bool), 0.0
    return mask, float(median(late[mask]) - median(late[~mask]))


def _stalls(late: Floats, mask: Array, size: float, least: float, settings: Settings) -> bool:
    """Whether a rank's steps [S] are of two kinds, often in turn."""
    fewer = min(int(mask.sum()), int((~mask).sum()))
    if size < least or fewer < settings.min_stalls:
        return False
    on_time = float(median(late[~mask]))
    scatter = max(MAD_TO_SIGMA * float(median(np.abs(late[one] - median(late[one])))) for one in (mask, ~mask))
    times = _count_stalls(mask[None])[0]
    often = times >= settings.min_stalls and times * _LASTS >= fewer
    return bool(often and size >= _SIGMAS * scatter and _stands_apart(late - on_time, size, fewer))


def _leave_calm(blocks: Blocks, found: dict[int, Array]) -> bool:
    """Whether each cohort with such ranks keeps enough calm ones, and at least one of all ranks is left."""
    _, cohort, often = np.unique(blocks.cohort, return_inverse=True, return_counts=True)
    calm = often - np.bincount(cohort[list(found)], minlength=len(often))
    return bool(((calm == often) | (calm >= 1 + (often - 1) // _CALM_SHARE)).all())


def _owned(late: Floats, found: dict[int, Array], size: float, settings: Settings) -> bool:
    """Whether these have nearly all stalls of the job, each by far more than the rest, as chance would not have it."""
    rest = np.setdiff1d(np.arange(len(late)), list(found))
    usual = np.percentile(late[rest], 25, axis=1, keepdims=True)  # who is late throughout stalls no more than others
    others = _count_stalls(late[rest] - usual >= size / 2)
    own = np.array([_count_stalls(mask[None])[0] for mask in found.values()])
    total, count = int(own.sum() + others.sum()), len(found)
    alone = own.sum() >= settings.min_stall_share * total
    return alone and not by_chance(int(own.sum()), total, count / len(late), comb(len(late), count))


def _grows(blocks: Blocks, row: int, found: dict[int, Array], sizes: dict[int, float]) -> bool:
    """Whether steps in which a rank stalls are longer than steps without any stall, or a part of its own work is."""
    mask, least = found[row], _GROWS * sizes[row]
    calm = ~np.logical_or.reduce(list(found.values()))
    if _longer(blocks.period, mask, calm) >= least:
        return True
    return any(_longer(part[row], mask, ~mask) >= least for part in blocks.parts.values())


def _longer(values: Floats, inside: Array, outside: Array) -> float:
    """By how much what is measured inside is longer; nothing where that is too little."""
    during, else_ = (values[mask][~np.isnan(values[mask])] for mask in (inside, outside))
    if min(len(during), len(else_)) < _ENOUGH:
        return 0.0
    return float(median(during) - median(else_))


def _count_stalls(stalled: Array) -> Ints:
    """Stalls apart in time in each row of [R, S]: steps in a row are one."""
    return np.asarray(np.sum(stalled[:, 1:] & ~stalled[:, :-1], axis=1) + stalled[:, 0])


#: A stall stands apart from normal steps: at most this many steps for each stall lie between a third and two thirds of
#: it.
_BETWEEN = 0.2


def _stands_apart(late: Floats, size: float, often: int) -> bool:
    """Whether steps [S] are on time or late by ``size``, ``often`` at least each: what scatters is between."""
    between = np.sum((late > size / 3) & (late < size * 2 / 3))
    return bool(between <= _BETWEEN * often)


#: Share of jobs with random stalls in which one rank may seem to have them: one in 500.
_CHANCE = 0.002


def by_chance(stalls: int, total: int, fair: float, ways: int) -> bool:
    """Whether one of so many may have so many of all stalls, though its ``fair`` share is that."""
    return fair >= 1 or stalls <= fair * total or ways * tail(stalls, total, fair) > _CHANCE
