"""Collectives that overlap with computing, so that one delay of a rank shows in all that follow in its step.

The largest delay counts, at the place in the step where a rank is typically latest. It is not visible where the others
merely queue behind their previous collective, or were held up by another rank before.

A layer's computing hides a delay only up to its own length. A longer one is over when all have met: in the round of the
next micro-batch the others wait anew. A GPU may stall anywhere in backward: its self time from one collective to the
next, against the usual time there, shows it as far as the others waited meanwhile.
"""

from __future__ import annotations

import numpy as np

from hindmost_judge.stats.robust import FEW_RANKS, MAD_TO_SIGMA, median, or_zero, peers_median, quantile, spread
from hindmost_judge.timeline.matching import QUEUED_NS, Grid
from hindmost_judge.types import Array, Floats, Ints

#: A longer collective overlaps with computing if it shortens the gap after it by this share of itself; computing waits
#: for one that does so by less than half of that: 0.27 to 0.97 in 17 recordings of FSDP on H200s. Where collectives
#: block it is 0.08 at most, and 0.22 where sequences are gathered for a layer.
TRADED = 0.5
#: A single wait is capped at this many typical ones, so that a stall decides nothing.
_AT_MOST = 3.0


def traded(waited: Floats, gap: Floats, position: Ints, more: Floats | None = None) -> float:
    """The share of what was ``waited`` [R, N] by which the ``gap`` [R, N] after it shrinks; NaN if nothing varies.

    Waiting in a blocking collective says nothing about the gap after it; overlapped waiting shortens that gap by as
    much. Each is set against what the rank usually has at the same ``position`` [N] of the step. A rank with ``more``
    [R, N] work waits less and computes longer, either way: that is taken out.
    """
    x, y = np.full((2, *waited.shape), np.nan)
    for place in np.unique(position):
        at = position == place
        x[:, at], y[:, at] = _beyond_median(waited[:, at]), _beyond_median(gap[:, at])
        if more is not None:
            beyond = _beyond_median(more[:, at])
            x[:, at], y[:, at] = _without(x[:, at], beyond), _without(y[:, at], beyond)
    limit = _AT_MOST * float(median(np.abs(x))) if x.size else 0.0
    x, y = or_zero(np.clip(x, -limit, limit)), or_zero(np.clip(y, -limit, limit))
    return float(-np.sum(x * y) / np.sum(x * x)) if x.any() else float("nan")


def _beyond_median(values: Floats) -> Floats:
    return np.asarray(values - median(values, axis=1)[:, None])


def overlapping_columns(grid: Grid, position: Ints) -> Array:
    """[K] whether a column's class overlaps with computing: for example, gradients reduced while tensor groups go on.

    ``position`` [K] is each column's place in its step. At some place computing waits for such a class, too: an
    optimizer needs all gradients.
    """
    overlapping = np.zeros(grid.columns, bool)
    if not grid.gpu_time or grid.group.shape[1] < 2 or grid.columns < 2:
        return overlapping
    within = np.append(np.diff(position) > 0, False)  # computing does wait for a step's last
    gap = np.zeros_like(grid.start)
    gap[:, :-1] = grid.start[:, 1:] - (grid.start + grid.duration)[:, :-1]

    def among(columns: Array) -> float:
        return traded(grid.duration[:, columns], gap[:, columns], position[columns])

    for comm_class in range(grid.group.shape[1]):
        columns = within & (grid.comm_class == comm_class)
        for place in np.unique(position[columns]) if among(columns) > TRADED else ():
            at = columns & (position == place)
            seldom = 2 * np.count_nonzero(at) < np.count_nonzero(position == 0)
            overlapping[at] = seldom or not among(at) < TRADED / 2
    return np.zeros(grid.columns, bool) if overlapping.all() else overlapping


def is_overlapped(joined: Grid, self_time: Floats, step_of: Ints, starts: Ints, work: Floats | None) -> bool:
    """Whether collectives overlap with computing, so that one delay shows in all that follow in its step.

    Gradients of one group of ranks are reduced during backward. Gathered parameters may block or be prefetched: if
    they overlap, a rank that is late for one collective is as late for the next, otherwise the delay starts anew. A
    rank with more ``work`` [R, S] in a step is late for all of its collectives either way.
    """
    if not joined.gpu_time or joined.group.shape[1] > 1 or len(np.unique(joined.group)) > 1:
        return False
    position = np.arange(joined.columns) - starts[step_of]
    more = (work - peers_median(work))[:, step_of] if work is not None else np.zeros(self_time.shape)
    if joined.gathers.sum() < len(starts) or joined.columns < 2 or np.isnan(joined.start).all():
        return not _computes_after_each(joined, self_time, position, more)
    if waits_for_each(joined):
        return False
    late = peers_median(joined.duration) - joined.duration
    for place in np.unique(position):
        mask = position == place
        late[:, mask] = _without(_changes(late[:, mask]), _changes(more[:, mask]))
        late[:, mask] -= median(late[:, mask], axis=0)  # whom all are compared with had more to do, or less
    if _carried(late, self_time, position, starts) or _computed_meanwhile(joined, position, more):
        return True
    pair = np.flatnonzero(np.diff(step_of) == 0)
    now, then = or_zero(late[:, pair]), or_zero(late[:, pair + 1])
    carried = np.sum(now * then, axis=1) / np.maximum(np.sum(now**2, axis=1), 1.0)
    return bool(median(carried) > 0.5)  # a rank that is slow at several places is late for each, either way


def _computes_after_each(joined: Grid, self_time: Floats, position: Ints, more: Floats) -> bool:
    """Whether every rank computes between any two collectives of a step, and as long however long it waited before.

    So it is where hosts wait for each collective; that they launch the next one after it was over proves no such wait.
    Otherwise what is due after a collective goes on while a rank waits in it. A rank with ``more`` [R, K] work in a
    step waits less and computes longer, either way. Where steps have one collective, or waits do not vary, launches
    tell.
    """
    within = np.flatnonzero(np.diff(position) > 0)
    waited, gap = joined.duration[:, within], self_time[:, within + 1]
    known = ~np.isnan(gap) & ~np.isnan(joined.start[:, within])
    if not known.any():
        return waits_for_each(joined)
    if np.mean(gap[known] > QUEUED_NS) < _EACH:
        return False
    share = traded(waited, gap, position[within], more[:, within])
    return waits_for_each(joined) if np.isnan(share) else share < TRADED / 2


#: Share of a rank's remaining delay that must go on to the next place. Delays that start anew at each place correlate
#: below zero, since each is part of what was subtracted: -0.1 to -0.2 in simulated jobs, 0.26 in one of 183.
_GOES_ON = 0.3
#: Least places in a step with a delay: with fewer, subtracting what they share leaves nothing of each.
_PLACES = 5


def _carried(late: Floats, self_time: Floats, position: Ints, starts: Ints) -> bool:
    """Whether the ``late`` [R, K] of a collective goes on to the next, beyond what a step has in common at all places.

    A prefetched gather begins when the reduction before it ends and shows no rank's delay: it is skipped. Typical ranks
    decide, by their noise: a rank with stalls is late at all places of those steps.
    """
    gaps = np.nan_to_num(median(self_time, axis=0), nan=np.inf)
    counts = np.diff(np.append(starts, len(position)))
    size = int(median(counts.astype(np.float64)))
    seen = np.array([place for place in range(size) if median(gaps[position == place]) > QUEUED_NS], np.int64)
    if len(seen) < _PLACES:
        return False
    block = or_zero(late[:, starts[counts == size][:, None] + seen])  # [R, S, P]
    for _ in range(2):
        profile = np.sqrt(np.mean(block**2, axis=1, keepdims=True))
        shared = (
            np.sum(block * profile, axis=2, keepdims=True) / np.maximum(np.sum(profile**2, axis=2), 1e-30)[..., None]
        )
        block = block - shared * profile
    now, then = block[:, :, :-1], block[:, :, 1:]
    both, each = np.sum(now * then, axis=(1, 2)), np.sum(now**2, axis=(1, 2)) * np.sum(then**2, axis=(1, 2))
    return bool(median(both / np.sqrt(np.maximum(each, 1e-30))) > _GOES_ON)


#: A gap between two collectives is computing from this many times the gap of a queue on.
_COMPUTES = 5.0
#: A kernel launched this long (ns) before it began did not wait for its host: GPU clocks are up to 3 ms off.
_LONG_BEFORE = 4e6
#: Ranks sampled: enough to know what the job does, whatever its size.
_SAMPLED = 64


def _computed_meanwhile(joined: Grid, position: Ints, more: Floats) -> bool:
    """Whether ranks that wait longer than usual in a collective have the less to compute before the next one.

    Known where there is computing between two, and the second had been launched before the first was over: a host's
    catching up meanwhile is no computing.
    """
    rows = slice(None, None, max(len(joined.start) // _SAMPLED, 1))
    start, stop = joined.start[rows], (joined.start + joined.duration)[rows]
    waited = (joined.duration - np.fmin.reduce(joined.duration, axis=0))[rows][:, :-1]
    gap = start[:, 1:] - stop[:, :-1]
    gap[(np.diff(position) <= 0) | ~(start[:, 1:] - joined.enqueue[rows][:, 1:] > _LONG_BEFORE)] = np.nan
    for place in np.unique(position):
        at = np.flatnonzero(position[:-1] == place)
        gap[:, at] = np.where(median(gap[:, at], axis=1)[:, None] > _COMPUTES * QUEUED_NS, gap[:, at], np.nan)
    waited = np.where(np.isnan(gap), np.nan, waited)
    return traded(waited, gap, position[:-1], more[rows][:, :-1]) > TRADED / 2


def _changes(values: Floats) -> Floats:
    """[R, S] from one step to the next: a persistent slowdown, or one since some step, shows at every place."""
    return np.diff(values, axis=1, prepend=values[:, :1])


def _without(values: Floats, of: Floats) -> Floats:
    """What is left of values once a line through ``of`` is taken out."""
    x, y = or_zero(of), or_zero(values)
    return np.asarray(values - float(np.sum(x * y)) / max(float(np.sum(x * x)), 1e-30) * x)


#: A layer computes this many times as long in backward as in forward; at most, with activations computed again.
_BACKWARD, _RECOMPUTED = 2.0, 4.0


def net_of_prefetch(joined: Grid, self_time: Floats, starts: Ints, late: Floats) -> Floats:
    """``late`` [R, K] less what the others compute while they wait in gathers that were launched ahead.

    They have the less to compute before the next gather, and the last to come all of a layer. How long that takes shows
    between a layer's gather in backward and the reduction of its gradients.
    """
    position = np.arange(joined.columns) - np.repeat(starts, np.diff(np.append(starts, joined.columns)))
    after, before = np.append(False, joined.gathers[:-1]), np.append(joined.gathers[1:], False)
    reduced = ~joined.gathers & after
    layers = [float(median(self_time[:, reduced & (position == place)])) for place in np.unique(position[reduced])]
    layer = float(np.nan_to_num(median(np.array(layers))))
    first, last = np.fmin.reduce(self_time, axis=0), np.fmax.reduce(self_time, axis=0)
    found: Floats = late.copy()
    for place in np.unique(position[joined.gathers & after]):
        columns = np.flatnonzero(position == place)
        left = float(median(first[columns]))
        if left < min(layer / _RECOMPUTED, float(median(last[columns])) - _COMPUTES * QUEUED_NS):
            at = np.concatenate([columns - 1, columns[~before[columns]]])
            found[:, at] = np.minimum(late[:, at], np.maximum(late[:, at] + left - layer / _BACKWARD, 0.0))
    return found


#: Clocks of one host, once set right, are so many ns apart.
_SOON_NS = 1e5
#: Ranks and collectives sampled, whatever the size of the job; of these a few launches may be wrong.
_RANKS, _COLUMNS, _FIRST = 16, 2048, 0.002
#: Share of the collectives that hosts launch after the one before, if they wait for each.
_EACH = 0.95


def waits_for_each(grid: Grid, *, gathers: int = 0) -> bool:
    """Whether hosts wait for each collective before they launch the next: all their work is between two.

    Or for each of so many ``gathers`` on the way before they launch another, as sharding does to bound its memory.
    """
    columns = np.flatnonzero(grid.gathers) if gathers else np.arange(grid.columns)
    apart = gathers or 1
    if np.isnan(grid.enqueue).all() or len(columns) <= apart:
        return False
    sampled = slice(None, None, len(grid.ranks) // _RANKS + 1)
    stop = (grid.start + grid.duration)[sampled] - ahead_of_host(grid, sampled)
    after = grid.enqueue[sampled][:, columns[apart:]] - stop[:, columns[:-apart]]
    known = after[~np.isnan(after)]
    return known.size > 0 and bool(np.mean(known > -_SOON_NS) >= _EACH)


#: A GPU clock that shows the host's time is ahead of it by at most so many ns. One that is ahead by more than a queue
#: of launches lasts counts from another time.
_SAME_TIME_NS, _LONGEST_QUEUE_NS = 4e6, 10e9


def ahead_of_host(grid: Grid, rows: slice = slice(None)) -> Floats:
    """[R, 1] ns by which clocks of these GPUs are ahead of their hosts': none begins what was not yet launched.

    If all of a rank's collectives begin long after their launch, its host is ahead, and not the clock. Where all ranks
    meet they leave at once, which shows by how much their clocks differ. Where clocks of hosts agree, a GPU's clock is
    ahead by no more than another one is, and what the two differ by. So one host that is not ahead tells it for all.
    """
    sampled = slice(None, None, grid.columns // _COLUMNS + 1)
    waited = (grid.start[rows, sampled] - grid.enqueue[rows, sampled]).copy()
    waited[~(grid.enqueue[rows, sampled] > 0)] = np.nan
    seen = ~np.isnan(waited).all(axis=1)
    found = np.full((len(waited), 1), np.nan)
    least = quantile(waited[seen], _FIRST)
    if grid.group.shape[1] == 1 and len(np.unique(grid.group)) == 1 and len(least):
        left = (grid.start + grid.duration)[rows, sampled][seen]
        least = at_most_by_others(least, median(left - left[0], axis=1))
    found[seen, 0] = np.where(least > _LONGEST_QUEUE_NS, least, np.minimum(least, _SAME_TIME_NS))
    return found


def at_most_by_others(least: Floats, behind: Floats) -> Floats:
    """[R] the smallest of ``least`` [R] of any rank and what ``behind`` [R] differs from that rank's."""
    order = np.argsort(behind)
    one, at = least[order], behind[order]
    before, after = np.fmin.accumulate(one - at) + at, np.fmin.accumulate((one + at)[::-1])[::-1] - at
    return np.asarray(np.fmin(one, np.fmin(before, after))[np.argsort(order)])


#: Least collectives of a round: buckets of one size are not rounds.
_FEWEST = 4
#: Above this many micro-batches they are reported as this many.
_MOST_ROUNDS = 64


def delay_by_round(joined: Grid, self_time: Floats, starts: Ints) -> Floats:
    """[R, S] ns that each rank comes late in each step to collectives that overlap with its computing.

    ``self_time`` [R, K] is the time between its collectives, ``starts`` [S] the first of each step.
    """
    late_for = peers_median(joined.duration) - joined.duration
    found = _delay_in_rounds(late_for, joined, self_time, starts)
    begins = _begins(joined, starts)
    if len(begins) == len(starts):
        return found
    more = np.maximum(or_zero(_delay_in_rounds(late_for, joined, self_time, begins)) - _hidden(self_time, begins), 0.0)
    of_step = np.searchsorted(begins, starts)
    return found + np.add.reduceat(more, of_step, axis=1) - np.maximum.reduceat(more, of_step, axis=1)


def _delay_in_rounds(late_for: Floats, joined: Grid, self_time: Floats, begins: Ints) -> Floats:
    """[R, N] ns that each rank comes late in each of the periods that begin at the columns ``begins`` [N].

    ``late_for`` [R, K] is how much later than its peers it came for each collective.
    """
    return overlapped_stalls(late_for, self_time, joined.start, begins, overlapped_delay(late_for, self_time, begins))


def _hidden(self_time: Floats, begins: Ints) -> float:
    """Ns that a layer computes during the collectives of another: the longest time between two that all ranks take."""
    position = np.arange(self_time.shape[1]) - np.repeat(begins, np.diff(np.append(begins, self_time.shape[1])))
    taken = [np.min(or_zero(median(self_time[:, position == place], axis=1))) for place in range(position.max() + 1)]
    return float(max(taken))


def _begins(joined: Grid, starts: Ints) -> Ints:
    """[N] where each round of each step begins; steps that are unlike most are one."""
    counts = np.diff(np.append(starts, joined.columns))
    usual = int(np.bincount(counts).argmax())
    alike = starts[counts == usual]
    first = joined.token[alike[0] : alike[0] + usual]
    gathers = joined.gathers[alike[0] : alike[0] + usual]
    for count in range(min(usual // _FEWEST, _MOST_ROUNDS), 1, -1):
        each = usual // count
        mixed = gathers[:each].any() and not gathers[:each].all()
        if usual % count == 0 and mixed and (first.reshape(count, each) == first[:each]).all():
            same = alike[(joined.token[alike[:, None] + np.arange(usual)] == first).all(axis=1)]
            return np.union1d(starts, (same[:, None] + np.arange(0, usual, each)).ravel())
    return starts


#: Ranks sampled to see whether all queue: enough for a typical value, whatever the size of the job.
_SAMPLED_RANKS = 512
#: A rank is late from this many times the usual difference between ranks on.
_LATE = 4.0
#: A place that a smaller share of the steps has, such as the collective of an evaluation, is not a rank's usual place.
_USUAL = 0.25
#: A rank whose delay nowhere reaches this share of the latest rank's shows only its noise at its own place.
_NOWHERE = 0.25


def overlapped_delay(late: Floats, self_time: Floats, starts: Ints) -> Floats:
    """[R, S] how late each rank was.

    ``late`` [R, K] is how much later than its peers a rank came for each collective, ``self_time`` [R, K] its time
    since the end of the one before; ``starts`` [S] are the first collectives of the steps. Where no rank's self time is
    known, the first place counts that shows half of the largest.
    """
    position = np.arange(late.shape[1]) - np.repeat(starts, np.diff(np.append(starts, late.shape[1])))
    places = [position == place for place in range(position.max() + 1)]
    usual = np.fmin.reduce(late, axis=0) if len(late) < FEW_RANKS else 0.0  # of few ranks the middle one may be late
    level = np.maximum(late - usual, 0.0) if len(places) > 1 else late
    # Means, for a rank that is late in a part of the run only has a median of nothing at every place.
    typical = np.stack([or_zero(level[:, mask]).mean(axis=1) for mask in places], axis=1)
    typical[:, [mask.sum() < _USUAL * len(starts) for mask in places]] = 0.0
    gaps = np.array([float(median(self_time[:, mask])) for mask in places])
    if np.isnan(gaps[1:]).all():
        where = np.argmax(typical >= np.maximum(typical.max(axis=1, keepdims=True), 0.0) / 2, axis=1)
        return _at(late, _of_the_latest(where, typical, _late_anywhere(typical)), starts)
    free = np.nan_to_num(gaps, nan=np.inf) > QUEUED_NS
    who, typical = _late_anywhere(typical), np.where(free, typical, -np.inf)
    where = _of_the_latest(np.argmax(typical, axis=1), typical, who)
    return _visible(late, self_time, _at(late, where, starts), where, who, starts)


def _of_the_latest(where: Ints, typical: Floats, who: Array) -> Ints:
    """[R] the places; where half of the ranks are late, ranks that are late nowhere get the place of the latest rank.

    They are ahead of the median there, and level where no rank is late. Each at a place of its own, healthy ranks would
    seem to differ by that.
    """
    most = typical.max(axis=1)
    nowhere = ~who & (most < _NOWHERE * most.max())
    if 2 * np.sum(~nowhere) < len(typical) - 1:
        return where
    return np.where(nowhere, where[np.argmax(most)], where)


def _at(late: Floats, where: Ints, starts: Ints) -> Floats:
    """[R, S] of [R, K] at one place of the step for each rank, or the step's last."""
    return np.take_along_axis(late, _columns(where, starts, late.shape[1]), axis=1)


def _columns(where: Ints, starts: Ints, count: int) -> Ints:
    return np.asarray(np.minimum(starts[None, :] + where[:, None], np.append(starts[1:], count)[None, :] - 1))


def _late_anywhere(typical: Floats) -> Array:
    """[R] whether a rank is late anywhere in the step by more than ranks differ there."""
    differ = np.array([spread(place) for place in typical.T])
    return np.asarray((typical > median(typical, axis=0) + _LATE * differ).any(axis=1))


def _visible(late: Floats, self_time: Floats, found: Floats, where: Ints, who: Array, starts: Ints) -> Floats:
    """The visible delays; less what the last rank computes faster than usual there.

    For late ranks, in steps in which their own place shows nothing: what the best other place shows, and what they
    usually add from there on.
    """
    gaps = median(self_time[:: max(len(self_time) // _SAMPLED_RANKS, 1)], axis=0)
    free = np.nan_to_num(gaps, nan=np.inf) > QUEUED_NS  # else the typical rank queued behind the one before
    columns = _columns(np.arange(where.max() + 1), starts, len(free))  # [P, S]
    shows = free[columns]
    for place in np.flatnonzero(~shows.all(axis=1)):
        rows, steps = np.flatnonzero(who & (where == place)), np.flatnonzero(~shows[place])
        others, calm = np.flatnonzero(shows[:, steps].all(axis=1)), columns[:, shows[place]]
        if not len(rows) or not calm.size or not len(others):
            continue
        there = np.stack([or_zero(late[np.ix_(rows, columns[one, steps])]).mean(axis=1) for one in others])
        best = others[np.argmax(there, axis=0)]
        latest = {other: np.fmax.reduce(late[:, columns[other, steps]], axis=0) for other in set(best.tolist())}
        for row, other in zip(rows.tolist(), best.tolist(), strict=True):
            usual, before = (float(np.nan_to_num(late[row, calm[one]]).mean()) for one in (place, other))
            between = slice(other + 1, place + 1)
            is_last = late[row, columns[other, steps]] >= latest[other]
            faster = np.where(is_last, _faster(self_time[row], calm[between], columns[between, steps]), 0.0)
            seen = late[row, columns[other, steps]] + np.maximum(usual - before - faster, 0.0)
            found[row, steps] = np.fmax(found[row, steps], seen)
    return found


def _faster(self_time: Floats, calm: Ints, columns: Ints) -> Floats:
    """[N] ns by which a rank takes less at these places [P, N] of a step than it usually does there [P, M]; never more.

    In these steps the reason for its delay in others may be over. A rank that is not last may have computed while it
    waited.
    """
    less = median(self_time[calm], axis=1)[:, None] - self_time[columns]
    return np.asarray(np.maximum(or_zero(less).sum(axis=0), 0.0))


#: An interval is longer than usual if it exceeds the usual by this many standard deviations of its scatter.
_LONGER = 6.0
#: A GPU that is slow throughout shows a third of its delay, its forward, by the first collective, and the cost adds the
#: rest. Beyond this many times the usual place's delay, it stalled elsewhere.
_MORE = 3.0
#: Ranks examined: those that are latest anywhere in a step.
_MOST_PLACES = 16


def overlapped_stalls(late: Floats, self_time: Floats, start: Floats, starts: Ints, found: Floats) -> Floats:
    """[R, S] how late each rank was: as ``found``, and in steps in which it stalled, by all of what it stalled.

    ``late`` [R, K] is how much later than its peers a rank came for each collective, ``self_time`` [R, K] its time
    since the end of the one before, ``start`` [R, K] on its own clock; ``starts`` [S] are the first collectives of the
    steps.
    """
    base = np.maximum(or_zero(found), 0.0)
    scatter = MAD_TO_SIGMA * float(median(np.abs(found - median(found, axis=1)[:, None])))
    rows = np.argsort(-or_zero(np.fmax.reduce(late, axis=1)), kind="stable")[:_MOST_PLACES]
    stalled = _stalled(late[rows], self_time[rows], start[rows], starts)
    out: Floats = found.copy()
    out[rows] = np.where(stalled > _MORE * base[rows] + _LONGER * scatter, stalled, found[rows])
    return out


def _stalled(late: Floats, self_time: Floats, start: Floats, starts: Ints) -> Floats:
    """[N, S] ns by which each of these rows [N, K] was late beyond its own usual in each step.

    Sums all intervals that were longer, as far as the others waited for them. Without start times it is unknown since
    when the others wait at a place: the place with the largest delay counts.
    """
    step = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, late.shape[1])))
    place = np.arange(late.shape[1]) - starts[step]
    if np.isnan(start).all():
        return np.asarray(np.maximum.reduceat(_beyond_usual(late, place, step), starts, axis=1))
    free = or_zero(self_time) > QUEUED_NS
    took = np.full(late.shape, np.nan)
    took[:, 1:] = np.where(free[:, 1:] & free[:, :-1], np.diff(start, axis=1), np.nan)
    # The first follows what all waited for; later ones may follow others' delays.
    took[:, starts] = self_time[:, starts]
    longer = _beyond_usual(took, place, step)
    seen = np.clip(np.fmin(longer, or_zero(late)), 0.0, None)
    return np.asarray(np.add.reduceat(seen, starts, axis=1))


def _beyond_usual(took: Floats, place: Ints, step: Ints) -> Floats:
    """[N, K] ns beyond the row's median at the same place of the step, where that is more than it scatters by."""
    steps = int(step[-1]) + 1
    spot = place * steps + step
    block = np.full((len(took), (int(place.max()) + 1) * steps), np.nan)
    block[:, spot] = took
    of_place = block.reshape(len(took), -1, steps)
    more = of_place - median(of_place, axis=2)[:, :, None]
    scatter = MAD_TO_SIGMA * median(np.abs(more), axis=2)[:, :, None]
    found = np.where(or_zero(more) > _LONGER * scatter, more, 0.0)
    return np.asarray(found.reshape(len(took), -1)[:, spot])
