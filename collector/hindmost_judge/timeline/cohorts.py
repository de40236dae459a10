"""Which ranks may be compared: cohorts, from the communicators themselves.

Ranks that reduce gradients together hold the same layers, and gradients are reduced at the end of a step. So the groups
of the class that runs last in the step are the cohorts. Groups whose fastest members keep the same pace, like the
tensor ranks of one layer, form one cohort, so that small groups have peers to be compared with.

In a small cohort most peers may be late in the same step. Delays are measured against the median of a rank's peers. If
that median is late itself, ranks on time seem ahead, and late ones on time: then the early ranks are the baseline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from hindmost_judge.blocks import Blocks
from hindmost_judge.detect.nested_segments import lowest_level
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import median, of_cohorts, peers_median, sums_by_step
from hindmost_judge.timeline.matching import QUEUED_NS, Grid
from hindmost_judge.types import Floats, Ints

#: Groups do the same work if their fastest members differ by less than this share of their self time.
_SAME_PACE = 0.03


def find(grid: Grid, self_time: Floats, stage: Ints | None = None) -> Ints:
    """[R] cohort of each rank; all zero where nothing separates them. ``self_time`` [R, K] is before each column.

    ``stage`` [R] is the place in the pipeline: ranks of two stages hold other layers, however similar their pace.
    """
    comm_class = _gradient_class(grid)
    if comm_class is None:
        return stage if stage is not None else np.zeros(len(grid.ranks), np.int64)
    cohort = np.zeros(len(grid.ranks), np.int64)
    pace = np.nansum(self_time, axis=1)
    for one in np.unique(stage) if stage is not None else ():
        mask = stage == one
        cohort[mask] = cohort.max() + 1 + _merge(grid.group[mask, comm_class], pace[mask])
    return cohort if stage is not None else _merge(grid.group[:, comm_class], pace)


def _gradient_class(grid: Grid) -> int | None:
    """The class of groups that every rank is in and that runs last in a step; not the one group of the whole job."""
    begins = np.searchsorted(grid.step, grid.step)
    steps = len(np.unique(grid.step))
    best, latest = None, -1.0
    for comm_class in range(grid.group.shape[1]):
        columns = np.flatnonzero(grid.comm_class == comm_class)
        groups = grid.group[:, comm_class]
        if len(columns) < steps or (groups < 0).any() or len(np.unique(groups)) == 1:
            continue
        place = float(np.mean(columns - begins[columns]))
        if place > latest:
            best, latest = comm_class, place
    return best


def that_meet(grid: Grid) -> Ints:
    """[R] number of the set in which ranks meet in most steps, directly or through others; one set in most jobs.

    Process sets that train in parallel each have their own pace.
    """
    steps, found = len(np.unique(grid.step)), np.arange(len(grid.ranks))
    usual = [k for k in range(grid.group.shape[1]) if len(np.unique(grid.step[grid.comm_class == k])) > steps / 2]
    before = None
    while usual and (before is None or (found != before).any()):  # the lowest row of a set spreads through its groups
        before = found.copy()
        for groups in grid.group.T[usual]:
            lowest = np.full(groups.max() + 2, len(found))
            np.minimum.at(lowest, groups, found)
            found = np.where(groups >= 0, lowest[groups], found)
    return found if usual else np.zeros_like(found)


def _merge(groups: Ints, pace: Floats) -> Ints:
    """Groups in order of their fastest member; a gap in pace begins a new cohort."""
    names = np.unique(groups)
    fastest = np.array([pace[groups == name].min() for name in names])
    cohort = np.zeros(len(groups), np.int64)
    current, last = 0, None
    for i in np.argsort(fastest):
        if last is not None and fastest[i] > last * (1 + _SAME_PACE):
            current += 1
        cohort[groups == names[i]] = current
        last = fastest[i]
    return cohort


def beyond_peers(self_time: Floats, cohort: Ints) -> Floats:
    """[R, K] how far each rank is above the median of its peers; 0 for a rank alone in its cohort."""
    return of_cohorts(self_time, cohort, lambda rows: rows - peers_median(rows) if len(rows) > 1 else 0.0)


#: This share of the ranks, or all but one, keep one pace where work is alike; so many at least of those of a kind.
_MOST_ALIKE, _FEWEST_ALIKE = 0.75, 3
#: Steps in which all ranks do less than this share of the usual show no pace.
_LEAST_PACE = 0.1


def of_exchanges(found: Blocks, kind: Ints, cohort: Ints, settings: Settings) -> Blocks:
    """Blocks of ranks that exchange messages, by ``cohort`` [R]; unchanged where all are in one.

    A program may give its ranks work of any size. So ranks are compared where most of them keep one pace: all, if these
    are of more than one ``kind`` [R], else those of a kind, or of a cohort. Any other is compared with what it did
    itself, and so is each where some that do the same do not keep one. What grows on all ranks is no delay.
    """
    least = settings.effect(len(cohort)) * found.step_ns
    found = replace(found, period=_of_last(found))
    common = np.maximum(_pace(found.self_time, median(found.self_time, axis=1), partial(median, axis=0)), _LEAST_PACE)
    own = found.self_time / common
    calmest = [lowest_level(one, least, settings) for one in own]
    usual = np.array([float(median(one)) if level is None else level for one, level in zip(own, calmest, strict=True)])
    if len(cohort) > _PAIR or len(np.unique(cohort)) > 1:
        cohort = _where_most_keep_pace(usual, kind, cohort)
    if (cohort == cohort[0]).all() and cohort[0] >= 0:
        return found
    alone = cohort < 0
    expected = usual[:, None] * _pace(found.self_time, usual, peers_median)
    delay = np.where(alone[:, None], found.self_time - expected, beyond_peers(found.self_time, cohort))
    found = found.by_delay(delay, cohort=cohort, alone=alone, kind=kind)
    return replace(found, intervals=found.intervals + np.where(alone, usual - usual.max(), 0.0)[:, None])


def _pace(self_time: Floats, usual: Floats, typical: Callable[..., Floats]) -> Floats:
    """How much longer than ``usual`` [R] the ``typical`` rank works in each step, of those that show it."""
    works = np.where(usual > _SAME_PACE * usual.max(), usual, np.nan)
    return np.nan_to_num(typical(self_time / works[:, None]), nan=1.0)


def _where_most_keep_pace(usual: Floats, kind: Ints, cohort: Ints) -> Ints:
    """[R] cohort of each rank, -1 of one that is alone; ``usual`` [R] is its self time."""

    def of_one_pace(rows: Ints) -> Ints:
        """The most of these that are as fast as one of them, if these are most of them."""
        near = np.abs(usual[rows] / np.maximum(usual[rows], 1.0)[:, None] - 1) <= _SAME_PACE
        largest = near[int(np.argmax(near.sum(axis=1)))]
        return rows[largest] if largest.sum() >= max(2, min(_MOST_ALIKE * len(rows), len(rows) - 1)) else rows[:0]

    several, together = (cohort != cohort[0]).any(), of_one_pace(np.arange(len(usual)))
    if len(together) and not several and len(np.unique(kind[together])) >= min(len(np.unique(kind)), 2):
        return np.zeros_like(cohort)
    found = np.full_like(cohort, -1)
    for names in (cohort, kind) if several else (kind,):
        groups = [rows for name in np.unique(names) if len(rows := np.flatnonzero(names == name)) >= _FEWEST_ALIKE]
        for rows in groups if all(len(of_one_pace(rows)) for rows in groups) else ():
            found[rows] = rows[0]
    return found


def _of_last(found: Blocks) -> Floats:
    """[S] ns of each step on the rank that takes longest for all: those before a slow stage may be far ahead."""
    assert found.joined is not None  # noqa: S101 - of exchanges
    closing = np.append(found.starts[1:], found.joined.columns) - 1  # the last exchange of each step
    ends = (found.joined.start + found.joined.duration)[:, closing]
    lasted = np.diff(ends, axis=1, prepend=np.nan)
    last = lasted[int(np.argmax(np.nansum(lasted, axis=1)))]
    return np.where(np.isnan(last), found.period, last)


def sole_peers(cohort: Ints) -> Ints:
    """[R] row of each rank's one peer, -1 for who has none or several."""
    _, which, count = np.unique(cohort, return_inverse=True, return_counts=True)
    both = np.bincount(which, np.arange(len(cohort)))  # of a pair, the rows of the two added up
    return np.asarray(np.where(count[which] == _PAIR, both[which] - np.arange(len(cohort)), -1), np.int64)


#: A cohort of two: each rank is the other's sole peer.
_PAIR = 2


def delay(grid: Grid, self_time: Floats, cohort: Ints) -> Floats:
    """[R, K] how far each rank's self time is above the median of its peers; 0 for a rank alone in its cohort.

    Where the typical rank of a GPU job only queues behind its last collective, other groups say nothing about the
    time of computing: there a rank is compared with those it meets in that collective.
    """
    found = beyond_peers(self_time, cohort)
    if not grid.gpu_time or grid.group.shape[1] < 2:
        return found
    queued = np.nan_to_num(median(self_time, axis=0), nan=np.inf) <= QUEUED_NS
    for comm_class in range(grid.group.shape[1]):
        columns = np.flatnonzero(queued & (grid.comm_class == comm_class))
        for name in np.unique(grid.group[:, comm_class]) if len(columns) else ():
            members = np.flatnonzero(grid.group[:, comm_class] == name)
            block = self_time[np.ix_(members, columns)]
            found[np.ix_(members, columns)] = block - peers_median(block) if len(members) > 1 else 0.0
    return found


def victims(grid: Grid, starts: Ints, late: Floats, culprits: list[int], least: float) -> list[int]:
    """Rows that look late only because they share a group with a culprit.

    ``late`` [R, K] is the delay into each collective, ``starts`` [S] the columns at which steps begin. A victim
    meets a culprit in one class of communicators and is late by ``least`` ns a step into those of another class.
    """
    found: set[int] = set()
    for comm_class in range(grid.group.shape[1]):
        elsewhere = grid.comm_class != comm_class
        if not elsewhere.any() or len(np.unique(grid.group[:, comm_class])) < 2:
            continue
        level = median(sums_by_step(np.where(elsewhere, late, 0.0), starts), axis=1)
        for row in culprits:
            members = np.flatnonzero(grid.group[:, comm_class] == grid.group[row, comm_class])
            found |= {int(r) for r in members if r not in culprits and level[r] >= least}
    return sorted(found)


def waits_inside(grid: Grid, starts: Ints, rows: list[int], delay: list[float]) -> set[int]:
    """Which of these rows only look late because they wait for another of them in a group of both.

    ``delay`` is of each row, ns a step. In its group's own collectives a culprit is late and its peers are not. If no
    rank of the group is late for the rest, all are equally late, and all stay.
    """
    found: set[int] = set()
    gradients = _gradient_class(grid)  # its members are peers, not parts of one model: none waits for another's work
    for comm_class in range(grid.group.shape[1]):
        columns = grid.comm_class == comm_class
        if comm_class == gradients:
            continue
        groups = grid.group[:, comm_class]
        for name in np.unique(groups[rows]):
            members = np.flatnonzero(groups == name)
            named = [row for row in rows if groups[row] == name]
            if name < 0 or len(named) < 2 or len(members) == len(groups):
                continue
            durations = np.where(columns, grid.duration[members], 0.0)
            late = median(sums_by_step(peers_median(durations) - durations, starts), axis=1)
            by_row = dict(zip(members.tolist(), late.tolist(), strict=True))
            late_inside = [row for row in named if by_row[row] >= _LATE_INSIDE * delay[rows.index(row)]]
            if late_inside:
                found |= set(named) - set(late_inside)
    return found


#: A culprit has this share of its delay in its own group; the rest arises before collectives of other classes.
_LATE_INSIDE = 0.25


#: One in this many of a cohort's earliest ranks may be ahead by chance: the next one is the baseline.
_EARLY = 4


def behind_early_ranks(delay: Floats, cohort: Ints) -> Floats:
    """[R, K] ns behind an early rank of the same cohort, from how far each is beyond the median of its peers.

    That rank is the earliest of up to four, the second of up to eight, and so on; ranks ahead of it count as 0.
    """

    def behind(apart: Floats) -> Floats:
        if len(apart) % 2 == 0:  # the earlier half are set against a later rank than the others
            apart = np.where(apart > 0, apart, apart - np.sort(apart, axis=0)[len(apart) // 2 - 1])
        return np.asarray(apart - np.sort(apart, axis=0)[(len(apart) - 1) // _EARLY])

    return of_cohorts(delay, cohort, lambda rows: behind(rows) if len(rows) > 1 else 0.0)
