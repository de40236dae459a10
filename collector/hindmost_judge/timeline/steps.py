"""Steps of a job that marks none: the pattern of its collectives repeats, and one repetition is a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindmost_judge.stats.robust import median
from hindmost_judge.timeline import repeated_calls

if TYPE_CHECKING:
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Array, Floats, Ints

#: Share of operations that must equal those one period later; the rest may be checkpoints or evaluations.
_ALIKE = 0.95
#: Most collectives of one step: longer patterns repeat too rarely in a window to be found.
_LONGEST_PERIOD = 4096
#: Most repetitions of a step: layers beyond that are reduced in one bucket.
_MOST = 512
#: … and where no step is marked, so that the computing before the first must show it.
_LAYERS = 128
#: Least gap before a step's first collective, against the usual one there; six times as much, against gaps inside the
#: step.
_LARGE = 0.5
#: Within a segment, the time between two steps stays below this many times the usual.
_STRETCH = 8.0
#: A step is long from this many times the typical one on. If this many long steps make up this share of the time, parts
#: of steps were taken for steps; steps that wait for each worker of a loader in turn make up less.
_LONG, _LONG_ONES, _LONG_SHARE = 3.0, 10, 0.67
#: Steps by which inferred and marked numbers are matched.
_EARLIEST = 20


def period(tokens: Ints) -> int | None:
    """Shortest length after which the sequence of (communicator, operation, bytes) repeats; ``None``: it does not.

    Judged on the last three quarters, since starting up broadcasts and gathers what steps do not.
    """
    tail = tokens[len(tokens) // 4 :]
    for length in range(1, min(len(tail) // 2, _LONGEST_PERIOD) + 1):
        if np.mean(tail[:-length] == tail[length:]) >= _ALIKE:
            return length
    return None


class Marks(NamedTuple):
    """Steps as hosts marked them: ``number`` and ``start`` [S], in order; ``at`` [K] when each collective started.

    All in ns of about one clock. Hosts run some steps ahead of their GPUs, so that ``at`` says no more than about when.
    """

    number: Ints
    start: Floats
    at: Floats


def infer(tokens: Ints, gap: Floats, marks: Marks | None = None, *, apart: bool = False) -> Ints:
    """Step number of every collective [K]; -1 for what belongs to none (start-up, checkpoint, evaluation).

    ``gap`` [K] is the typical self time before each collective. A step begins at the pattern's longest gap, where the
    computing is. Numbers count from 0, or as ``marks`` do. With marks a step may be several repetitions: in a deep
    model the layers repeat. ``apart``: no collective overlaps with computing; without marks, equal ones in a row then
    form one step by the computing before the first.
    """
    length = period(tokens)
    if length is None:
        return np.full(len(tokens), -1, np.int64)
    if apart and length == 1 and marks is None:
        together = repeated_calls.steps(tokens == np.bincount(tokens[len(tokens) // 4 :]).argmax(), gap)
        if together is not None:
            return together
    if apart and length > 1 and marks is None:
        times = _after_computing(tokens, gap, length)
    else:
        times = _repetitions_a_step(tokens, gap, length, marks)
    if length == 1 and times == 1:
        usual = tokens == np.bincount(tokens[len(tokens) // 4 :]).argmax()
        found = np.where(usual, np.cumsum(usual) - 1, -1)
    else:
        pattern = _pattern(tokens, gap, length * times, marks)
        least = _LARGE * _longest_gap(tokens, gap, length * times) if times > 1 else 0.0
        begins = _matches(tokens, pattern, np.nan_to_num(gap) >= least)
        found = np.full(len(tokens), -1, np.int64)
        for number, begin in enumerate(begins):
            found[begin : begin + len(pattern)] = number
    return _numbered(found, marks)


def _repetitions_a_step(tokens: Ints, gap: Floats, length: int, marks: Marks | None) -> int:
    """How many repetitions make a step: about as many as the marks say, and as many as the longest gaps are apart."""
    if marks is None or len(marks.number) < 2:
        return 1
    inside = np.isfinite(marks.at)
    if not inside.any():
        return 1
    first, last = np.nanmin(marks.at), np.nanmax(marks.at)
    marked = int(np.sum((marks.start >= first) & (marks.start <= last)))
    ratio = len(tokens) / length / max(marked, 1)
    near = [times for times in range(2, _MOST) if 0.75 * ratio <= times <= 1.33 * ratio]
    gaps = {times: _longest_gap(tokens, gap, length * times) for times in near if length * times < len(tokens) // 3}
    best = max(gaps, key=lambda times: gaps[times], default=1)
    return best if best > 1 and gaps[best] > _LARGE * 6 * _longest_gap(tokens, gap, length) else 1


def _after_computing(tokens: Ints, gap: Floats, length: int) -> int:
    """How many repetitions make a step, by the computing before the first: layers' gradients are reduced in a row.

    Computing inside repetitions is set against it too: what is not far longer than all of that tells no step.
    """
    first = len(tokens) // 4
    count = (len(tokens) - first) // length
    computed = np.nan_to_num(gap[first : first + count * length])
    longest = np.argsort(computed)[-max(count // _LAYERS, 1) :]
    place = first + int(np.bincount(longest % length).argmax())
    begins = _matches(tokens, tokens[place : place + length], np.ones(len(tokens), bool))
    return repeated_calls.count(np.array([np.nansum(gap[begin : begin + length]) for begin in begins]), _LAYERS)


def _longest_gap(tokens: Ints, gap: Floats, length: int) -> float:
    """The gap at the place in the pattern where it typically is longest."""
    count = (len(tokens) - len(tokens) // 4) // length
    gaps = np.nan_to_num(gap[len(gap) - count * length :]).reshape(count, length)
    return float(median(gaps, axis=0).max())


def _numbered(found: Ints, marks: Marks | None) -> Ints:
    """Steps found [K], counted from 0, with the marks' numbers: in each segment that of the last marked by then.

    The lowest offset of a segment's earliest steps counts: hosts get ahead of their GPUs, never behind. A segment
    ends where much more time passes than a step takes: something was left out there, or the job did something else.
    """
    inside = np.flatnonzero(found >= 0)
    if marks is None or not len(marks.number) or not len(inside):
        return found
    numbers, first, which = np.unique(found[inside], return_index=True, return_inverse=True)
    at = marks.at[inside[first]]
    stretch = (
        np.cumsum(np.append(False, np.diff(at) > _STRETCH * float(median(np.diff(at))))) if len(at) > 2 else 0 * first
    )
    out = numbers.copy()
    for one in np.unique(stretch):
        mine = np.flatnonzero(stretch == one)
        shift = _shift(numbers[mine], at[mine], marks)
        floor = out[mine[0] - 1] + 1 - numbers[mine[0]] if mine[0] else int(marks.number[0])
        out[mine] = numbers[mine] + max(shift, floor)
    numbered = found.copy()
    numbered[inside] = out[which]
    return np.asarray(numbered)


def _shift(numbers: Ints, at: Floats, marks: Marks) -> int:
    """What to add to these numbers."""
    known = np.flatnonzero(np.isfinite(at))[:_EARLIEST]
    place = np.searchsorted(marks.start, at[known], side="right") - 1
    if (
        not len(known)
        or (place < 0).all()
        or (at[known] > marks.start[-1] + 2 * (marks.start[-1] - marks.start[0])).all()
    ):
        return int(marks.number[0])  # another clock altogether
    return int((marks.number[np.maximum(place, 0)] - numbers[known]).min())


def _pattern(tokens: Ints, gap: Floats, length: int, marks: Marks | None) -> Ints:
    """One period of tokens, rotated to begin with its longest gap, or with one about as long that has the marks."""
    first = len(tokens) // 4
    count = (len(tokens) - first) // length
    gaps = np.nan_to_num(median(gap[first : first + count * length].reshape(count, length), axis=0))
    begin = first + _marked_place(marks, first, gaps, count)
    windows = [tokens[begin + i * length : begin + (i + 1) * length] for i in range(count - 1)] or [
        tokens[begin : begin + length]
    ]
    found, votes = np.unique(np.stack(windows), axis=0, return_counts=True)
    return np.asarray(found[np.argmax(votes)])


#: A step may begin at gaps from this share of the longest on, if this share of the marks lies there: each of several
#: sharded layers has one, as long as the others but for noise.
_ABOUT, _MOST_MARKS = 0.4, 0.9


def _marked_place(marks: Marks | None, first: int, gaps: Floats, count: int) -> int:
    """The place in the pattern, which repeats so often from ``first`` on with these ``gaps`` [L], where steps begin."""
    longest, length = int(np.argmax(gaps)), len(gaps)
    stop = first + count * length
    if marks is None or not np.isfinite(marks.at[first:stop]).all():
        return longest
    at = np.searchsorted(np.maximum.accumulate(marks.at[first:stop]), marks.start)
    votes = np.bincount(at[(at > 0) & (at < stop - first)] % length, minlength=length)
    place = int(np.argmax(votes))
    clear = votes[place] >= _MOST_MARKS * votes.sum() > 0
    return place if clear and gaps[place] >= _ABOUT * gaps[longest] else longest


def _matches(tokens: Ints, pattern: Ints, may_begin: Array) -> list[int]:
    """Where the pattern occurs, without overlap, in order, beginning at one of the places ``may_begin`` [K]; and right
    before and after those, unless one that may begin lies within: for a part of the job a step may begin sooner.
    """
    length = len(pattern)
    equal = np.ones(max(len(tokens) - length + 1, 0), bool)
    for offset, token in enumerate(pattern):
        equal &= tokens[offset : offset + len(equal)] == token
    found: list[int] = []
    next_free = 0
    for begin in np.flatnonzero(equal & may_begin[: len(equal)]).tolist():
        if begin < next_free:
            continue
        while found and next_free + length <= begin and equal[next_free]:
            found.append(next_free)
            next_free += length
        before: list[int] = []
        while begin - (len(before) + 1) * length >= next_free and equal[begin - (len(before) + 1) * length]:
            before.append(begin - (len(before) + 1) * length)
        found += [*reversed(before), begin]
        next_free = begin + length
    while found and next_free < len(equal) and equal[next_free]:
        found.append(next_free)
        next_free += length
    return found


def are_parts(lengths: Floats) -> bool:
    """Whether what was found to repeat is less than a step: again and again one is far longer than most, by what all of
    a step computes. ``lengths`` [S] ns. What is typical of such parts is true of no step.
    """
    known = lengths[~np.isnan(lengths)]
    long = known[known > _LONG * median(known)] if len(known) else known
    return len(long) >= _LONG_ONES and float(long.sum()) >= _LONG_SHARE * float(known.sum())


def warmup(durations: Floats, settings: Settings) -> int:
    """How many leading steps to leave out: the first, which follows no other, and on until three in a row are usual."""
    if len(durations) < 5:
        return 0
    typical = median(durations)
    most = max(1, int(len(durations) * settings.max_warmup))
    slow = np.nan_to_num(durations[: most + 3], nan=np.inf) > settings.warmup_ratio * typical
    calm = [first for first in range(1, most + 1) if not slow[first : first + 3].any()]
    return calm[0] if calm else most
