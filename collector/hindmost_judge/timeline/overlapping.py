"""Whether collectives overlap with a step's computing, so that one delay shows in all that follow in it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import median, peers_median
from hindmost_judge.timeline import launches
from hindmost_judge.timeline.join import QUEUED_NS

if TYPE_CHECKING:
    from hindmost_judge.timeline.join import Grid
    from hindmost_judge.types import Floats, Ints


def find(joined: Grid, own: Floats, step_of: Ints, starts: Ints, work: Floats | None) -> bool:
    """Whether collectives overlap with computing, so that one delay shows in all that follow in its step.

    Gradients of one group of ranks are reduced during backward. Gathered parameters may block or be prefetched: if
    they overlap, a rank that is late for one collective is as late for the next, otherwise the delay starts anew. A
    rank with more ``work`` [R, S] in a step is late for all of its collectives either way.
    """
    if not joined.gpu_time or joined.group.shape[1] > 1 or len(np.unique(joined.group)) > 1:
        return False
    if launches.waits_for_each(joined):
        return False
    if joined.gathers.sum() < len(starts) or joined.columns < 2 or np.isnan(joined.start).all():
        return True
    late = peers_median(joined.duration) - joined.duration
    position = np.arange(joined.columns) - starts[step_of]
    more = work - peers_median(work) if work is not None else None
    for place in np.unique(position):
        held = position == place
        late[:, held] = _changes(late[:, held])
        if more is not None:
            late[:, held] = _without(late[:, held], _changes(more[:, step_of[held]]))
        late[:, held] -= median(late[:, held], axis=0)  # whom all are compared with had more to do, or less
    if _carried(late, own, position, starts) or _queue_where_one_computes(own, position, starts):
        return True
    if _computed_meanwhile(joined, position, more[:, step_of] if more is not None else np.zeros(late.shape)):
        return True
    pair = np.flatnonzero(np.diff(step_of) == 0)
    now, then = np.nan_to_num(late[:, pair]).ravel(), np.nan_to_num(late[:, pair + 1]).ravel()
    return bool(now.any() and np.dot(now, then) / np.dot(now, now) > 0.5)


#: Share of a rank's remaining delay that must go on to the next place. Delays that start anew at each place correlate
#: below zero, since each is part of what was subtracted: -0.1 to -0.2 in simulated jobs, 0.26 in one of 183.
_GOES_ON = 0.3
#: Least places in a step with a delay: with fewer, subtracting what they share leaves nothing of each.
_PLACES = 5


def _carried(late: Floats, own: Floats, position: Ints, starts: Ints) -> bool:
    """Whether the ``late`` [R, K] of a collective goes on to the next, beyond what a step has in common at all places.

    A prefetched gather begins when the reduction before it ends and shows no rank's delay: it is skipped. Typical ranks
    decide, by their noise: a rank with stalls is late at all places of those steps.
    """
    gaps = np.nan_to_num(median(own, axis=0), nan=np.inf)
    counts = np.diff(np.append(starts, len(position)))
    size = int(median(counts.astype(np.float64)))
    seen = np.array([place for place in range(size) if median(gaps[position == place]) > QUEUED_NS], np.int64)
    if len(seen) < _PLACES:
        return False
    block = np.nan_to_num(late[:, starts[counts == size][:, None] + seen])  # [R, S, P]
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
#: At one place a rank may do what no other does, such as logging; at this many places it is the job's computing.
_SEVERAL = 3
#: Consecutive steps that show it.
_ON_END = 20


def _queue_where_one_computes(own: Floats, position: Ints, starts: Ints) -> bool:
    """Whether at several places of a step most ranks' collectives follow one another while some rank computes there.

    For some consecutive steps: the latest rank may change. Computing that is due between two collectives is due on
    all ranks: a rank without any there overlaps it with them.
    """
    firsts = starts[::_ON_END][: max(len(starts) // _ON_END, 1)]  # the few that are left belong to those before
    bounds = np.append(firsts, len(position)).tolist()
    return any(_in_these(own[:, one:end], position[one:end]) for one, end in itertools.pairwise(bounds))


def _in_these(own: Floats, position: Ints) -> bool:
    places = np.unique(position)[1:]
    if not len(places):
        return False
    each = np.stack([median(own[:, position == place], axis=1) for place in places], axis=1)
    queue = median(each, axis=0) <= QUEUED_NS
    computes = np.fmax.reduce(each, axis=0) > _COMPUTES * QUEUED_NS
    return bool(np.sum(queue & computes) >= _SEVERAL)


#: Of the extra wait at a place, this share must be missing from the computing after it: 0.27 to 0.97 in 17 recordings
#: of FSDP on H200s. Where collectives block it is 0.08 at most, and 0.22 where sequences are gathered for a layer.
_MEANWHILE = 0.25
#: A single wait is capped at this many typical ones, so that a stall decides nothing.
_AT_MOST = 10.0
#: A kernel launched this long (ns) before it began did not wait for its host: GPU clocks are up to 3 ms off.
_LONG_BEFORE = 4e6
#: Ranks sampled: enough to know what the job does, whatever its size.
_SAMPLE = 64


def _computed_meanwhile(joined: Grid, position: Ints, more: Floats) -> bool:
    """Whether ranks that wait longer than usual in a collective have the less to compute before the next one.

    Known where there is computing between two, and the second had been launched before the first was over: a host's
    catching up meanwhile is no computing. A rank with ``more`` [R, K] ns of work in a step waits less in it and
    computes longer, whether collectives block or not: that is taken out.
    """
    rows = slice(None, None, max(len(joined.start) // _SAMPLE, 1))
    start, stop = joined.start[rows], (joined.start + joined.duration)[rows]
    waited = (joined.duration - np.fmin.reduce(joined.duration, axis=0))[rows][:, :-1]
    gap = start[:, 1:] - stop[:, :-1]
    known = (np.diff(position) > 0) & (start[:, 1:] - joined.enqueue[rows][:, 1:] > _LONG_BEFORE)
    longer, less = np.full(gap.shape, np.nan), np.full(gap.shape, np.nan)
    for place in np.unique(position):
        held = np.flatnonzero(position[:-1] == place)
        one, then = (np.where(known[:, held], block[:, held], np.nan) for block in (waited, gap))
        usual = median(then, axis=1)[:, None]
        one = np.where(usual > _COMPUTES * QUEUED_NS, one - median(one, axis=1)[:, None], np.nan)
        beyond = more[rows][:, held] - median(more[rows][:, held], axis=1)[:, None]
        longer[:, held], less[:, held] = _without(one, beyond), _without(usual - then, beyond)
    both = ~np.isnan(longer) & ~np.isnan(less)
    if not both.any():
        return False
    x, y = longer[both], less[both]
    most = _AT_MOST * float(np.median(np.abs(x)))
    x, y = np.clip(x, -most, most), np.clip(y, -most, most)
    return bool(x.any() and np.dot(x, y) > _MEANWHILE * np.dot(x, x))


def _changes(values: Floats) -> Floats:
    """[R, S] from one step to the next: a persistent slowdown, or one since some step, shows at every place."""
    return np.diff(values, axis=1, prepend=values[:, :1])


def _without(values: Floats, of: Floats) -> Floats:
    """What is left of values once a line through ``of`` is taken out."""
    x, y = np.nan_to_num(of), np.nan_to_num(values)
    return np.asarray(values - float(np.sum(x * y)) / max(float(np.sum(x * x)), 1e-30) * x)
