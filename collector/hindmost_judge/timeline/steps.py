"""Which steps a job makes, which step each collective is of, and when each step began and ended.

Collectives of which no host's mark says the step make a pattern that repeats, and one repetition is a step. The same
collective several times in a row is one step by the computing before the first of them.

Numbers of unmarked steps go on from one window of a running job to the next, so that an onset keeps its number. A
profiler slows the steps that it records, begins or writes in: others are judged where there are some.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hindmost_judge.blocks import Blocks
from hindmost_judge.model import PROFILED, Counted, Run, Table, rows
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import median, or_zero
from hindmost_judge.timeline.matching import Grid
from hindmost_judge.types import Array, Floats, Ints

#: Longer steps at the start are warm-up: allocation, autotuning, file caches (times the median step).
_WARMUP_RATIO = 1.5
#: Longest warm-up; slow steps that last longer are how the job runs (of the run).
_MAX_WARMUP = 0.25

#: Share of operations that must equal those one period later; the rest may be checkpoints or evaluations. Where no
#: period has the first, one with the second.
_ALIKE, _MOSTLY_ALIKE = 0.95, 0.9
#: Most collectives of one step: longer patterns repeat too rarely in a window to be found.
_LONGEST_PERIOD = 4096
#: Most repetitions of a step: layers beyond that are reduced in one bucket.
_MOST = 512
#: … and where no step is marked, so that the computing before the first must show it.
_LAYERS = 128
#: So many marks say how many repetitions make a step, if that is a whole number but for this: the ends add one or two.
_ENOUGH_MARKS, _EXACT = 20, 0.05
#: Least gap before a step's first collective, against the usual one there; six times as much, against gaps inside the
#: step.
_LARGE = 0.5
#: Within a segment, the time between two steps stays below this many times the usual.
_GAP = 8.0
#: The first step's collectives begin within this many times a usual step.
_FIRST = 2.0
#: Steps by which inferred and marked numbers are matched.
_EARLIEST = 20
#: A step is long from this many times the typical one on. If this many long steps make up this share of the time, parts
#: of steps were taken for steps; steps that wait for each worker of a loader in turn make up less.
_LONG, _LONG_ONES, _LONG_SHARE = 3.0, 10, 0.67


def period(tokens: Ints) -> int | None:
    """Shortest length after which the sequence of (communicator, operation, bytes) repeats; ``None``: it does not.

    Judged on the last three quarters, since starting up broadcasts and gathers what steps do not.
    """
    tail = tokens[len(tokens) // 4 :]
    mostly = None
    for length in range(1, min(len(tail) // 2, _LONGEST_PERIOD) + 1):
        alike = np.mean(tail[:-length] == tail[length:])
        if alike >= _ALIKE:
            return length
        mostly = length if mostly is None and alike >= _MOSTLY_ALIKE else mostly
    return mostly


class Marks(NamedTuple):
    """Steps as hosts marked them: ``number`` and ``start`` [S], in order; ``at`` [K] when each collective started.

    All in ns of about one clock. Hosts run some steps ahead of their GPUs, so that ``at`` says no more than about when.
    That of the last host is least ahead: ``all_started`` [S] and ``all_at`` [K] are when all ranks had.
    """

    number: Ints
    start: Floats
    at: Floats
    all_started: Floats
    all_at: Floats


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
    if apart and marks is None:
        times = _after_computing(tokens, gap, length)
    else:
        times = _repetitions_a_step(tokens, gap, length, marks)
    if length == 1 and times == 1:
        usual = tokens == np.bincount(tokens[len(tokens) // 4 :]).argmax()
        found = np.where(usual, np.cumsum(usual) - 1, -1)
    else:
        pattern = _pattern(tokens, gap, length * times, marks)
        least = _LARGE * _longest_gap(tokens, gap, length * times) if times > 1 else 0.0
        begins = _matches(tokens, pattern, or_zero(gap) >= least)
        found = np.full(len(tokens), -1, np.int64)
        for number, begin in enumerate(begins):
            found[begin : begin + len(pattern)] = number
    return _numbered(found, marks)


def _repetitions_a_step(tokens: Ints, gap: Floats, length: int, marks: Marks | None) -> int:
    """How many repetitions make a step: as many as the marks say; where they say about how many, as many as the longest
    gaps are apart.
    """
    if marks is None or len(marks.number) < 2:
        return 1
    inside = np.isfinite(marks.at)
    if not inside.any():
        return 1
    first, last = np.nanmin(marks.at), np.nanmax(marks.at)
    marked = int(np.sum((marks.start >= first) & (marks.start <= last)))
    before = int(np.sum(marks.at < marks.start[0]))  # of steps that were not marked yet
    ratio = (len(tokens) - before) / length / max(marked, 1)
    exact = round(ratio)
    if exact > 1 and marked >= _ENOUGH_MARKS and abs(ratio - exact) <= _EXACT:
        return exact
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
    computed = or_zero(gap[first : first + count * length])
    longest = np.argsort(computed)[-max(count // _LAYERS, 1) :]
    place = first + int(np.bincount(longest % length).argmax())
    begins = _matches(tokens, tokens[place : place + length], np.ones(len(tokens), bool))
    return calls_a_step(np.array([np.nansum(gap[begin : begin + length]) for begin in begins]))


def _longest_gap(tokens: Ints, gap: Floats, length: int) -> float:
    """The gap at the place in the pattern where it typically is longest."""
    count = (len(tokens) - len(tokens) // 4) // length
    gaps = or_zero(gap[len(gap) - count * length :]).reshape(count, length)
    return float(median(gaps, axis=0).max())


def _numbered(found: Ints, marks: Marks | None) -> Ints:
    """Steps found [K], counted from 0, with the marks' numbers: in each segment that of the last marked by then.

    The lowest offset of a segment's earliest steps counts: hosts get ahead of their GPUs, never behind. A segment
    ends where much more time passes than a step takes: something was left out there, or the job did something else.
    What begins a step or two after the first mark is of that one, however far hosts are ahead by then.
    """
    inside = np.flatnonzero(found >= 0)
    if marks is None or not len(marks.number) or not len(inside):
        return found
    numbers, first, which = np.unique(found[inside], return_index=True, return_inverse=True)
    at = marks.at[inside[first]]
    usual = float(median(np.diff(at))) if len(at) > 2 else np.inf
    segment = np.cumsum(np.append(False, np.diff(at) > _GAP * usual))
    out = numbers.copy()
    from_start = at[0] < marks.start[0] + _FIRST * usual and not (marks.at[: inside[0]] >= marks.start[0]).any()
    for one in np.unique(segment):
        mine = np.flatnonzero(segment == one)
        floor = out[mine[0] - 1] + 1 - numbers[mine[0]] if mine[0] else int(marks.number[0])
        shift = floor if from_start and not mine[0] else _shift(numbers[mine], at[mine], marks)
        out[mine] = numbers[mine] + max(shift, floor)
    numbered = found.copy()
    numbered[inside] = out[which]
    return np.asarray(numbered)


def _shift(numbers: Ints, at: Floats, marks: Marks) -> int:
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
    gaps = or_zero(median(gap[first : first + count * length].reshape(count, length), axis=0))
    begin = first + _marked_place(marks, first, gaps, count)
    windows = [tokens[begin + i * length : begin + (i + 1) * length] for i in range(count - 1)] or [
        tokens[begin : begin + length]
    ]
    found, votes = np.unique(np.stack(windows), axis=0, return_counts=True)
    pattern = np.asarray(found[np.argmax(votes)])
    if marks is not None:
        return pattern
    begins = np.array(_matches(tokens, pattern, np.arange(len(tokens)) >= first))  # what comes between moves the rest
    gaps = or_zero(median(gap[begins[:, None] + np.arange(length)], axis=0))
    return np.roll(pattern, -int(np.argmax(gaps)))


#: A step may begin at gaps from this share of the longest on, if this share of the marks lies there: each of several
#: sharded layers has one, as long as the others but for noise.
_ABOUT, _MOST_MARKS = 0.4, 0.9


def _marked_place(marks: Marks | None, first: int, gaps: Floats, count: int) -> int:
    """The place in the pattern, which repeats so often from ``first`` on with these ``gaps`` [L], where steps begin."""
    longest, length = int(np.argmax(gaps)), len(gaps)
    stop = first + count * length
    if marks is None or not np.isfinite(marks.all_at[first:stop]).all():
        return longest
    at = np.searchsorted(np.maximum.accumulate(marks.all_at[first:stop]), marks.all_started)
    votes = np.bincount(at[(at > 0) & (at < stop - first)] % length, minlength=length)
    place = int(np.argmax(votes))
    clear = votes[place] >= _MOST_MARKS * votes.sum() > 0
    return place if clear and gaps[place] >= _ABOUT * gaps[longest] else longest


def _matches(tokens: Ints, pattern: Ints, may_begin: Array) -> list[int]:
    """Where the pattern occurs, without overlap, in order, beginning at one of the places ``may_begin`` [K]; and right
    before and after those, unless one that may begin lies within: for a part of the job a step may begin sooner.

    There the same collectives are a step in any order: those of two groups may change places.
    """
    length = len(pattern)
    equal = np.ones(max(len(tokens) - length + 1, 0), bool)
    for offset, token in enumerate(pattern):
        equal &= tokens[offset : offset + len(equal)] == token
    drawn = np.random.default_rng(0).integers(1 << 40, size=int(tokens.max(initial=0)) + 1)
    sums = np.append(0, np.cumsum(drawn[tokens]))  # of random numbers: equal where the same tokens are
    alike = sums[length:] - sums[:-length] == drawn[pattern].sum()
    found: list[int] = []
    next_free = 0
    for begin in [*np.flatnonzero(equal & may_begin[: len(equal)]).tolist(), len(tokens)]:
        while found and next_free + length <= begin and alike[next_free]:
            found.append(next_free)
            next_free += length
        if next_free <= begin < len(tokens):
            first = begin
            while first - length >= next_free and alike[first - length]:
                first -= length
            found += range(first, begin + 1, length)
            next_free = begin + length
    return found


def are_parts(lengths: Floats) -> bool:
    """Whether what was found to repeat is less than a step: again and again one is far longer than most, by what all of
    a step computes. ``lengths`` [S] ns. What is typical of such parts is true of no step.
    """
    known = lengths[~np.isnan(lengths)]
    long = known[known > _LONG * median(known)] if len(known) else known
    return len(long) >= _LONG_ONES and float(long.sum()) >= _LONG_SHARE * float(known.sum())


def warmup(durations: Floats) -> int:
    """How many leading steps to leave out: the first, which follows no other, and on until three in a row are usual."""
    if len(durations) < 5:
        return 0
    typical = median(durations)
    most = max(1, int(len(durations) * _MAX_WARMUP))
    slow = np.nan_to_num(durations[: most + 3], nan=np.inf) > _WARMUP_RATIO * typical
    calm = [first for first in range(1, most + 1) if not slow[first : first + 3].any()]
    return calm[0] if calm else most


#: Most repetitions that make a step where it takes each number of them to see.
_MOST_IN_A_ROW = 16
#: Least ratio of computing before the first of them to computing before all the others together.
_BEYOND = 2.0
#: Share of first collectives that must follow the previous one at the same distance.
_REGULAR = 0.9
#: Steps needed to see that they are regular: no more than there are when a job is first judged.
_LEAST_STEPS = 6


def calls_a_step(self_time: Floats) -> int:
    """How many alike collectives make a step, by the ``self_time`` before each [K].

    As many as most of those are apart that the computing is before: more than before all others that can be of a step
    with them.
    """
    computed = self_time[len(self_time) // 4 :]  # starting up has a pattern of its own
    order, place = np.argsort(-computed, kind="stable"), np.arange(len(computed))
    if len(order) < _LEAST_STEPS:
        return 1
    share = np.cumsum(np.minimum(computed[order], computed[order[_LEAST_STEPS - 1]]))  # a single stall is a long gap
    longest = np.sort(order[: int(np.searchsorted(share, share[-1] * _BEYOND / (1 + _BEYOND))) + 1])
    length = int(np.bincount(np.diff(longest), minlength=1).argmax())
    total = np.append(0.0, np.cumsum(computed))
    after = total[np.minimum(place + length, len(place))] - total[place + 1]
    before = total[place] - total[np.maximum(place - length + 1, 0)]
    begins = (place + length <= len(place)) & (computed > 0) & (computed >= _BEYOND * np.maximum(after, before))
    apart = np.diff(np.flatnonzero(begins))
    regular = len(apart) >= _LEAST_STEPS and np.mean(apart == length) >= _REGULAR
    return length if regular and (len(apart) + 1) * length >= _REGULAR * len(place) else 1  # all of the time


#: Repetitions are parts of a step if what is computed before each differs by less than this share, once each is set
#: against those at its place; the largest of these shares, which stalls decide, is left out. Those that differ by less
#: than the last share of the typical one are judged alike.
_AT_ITS_PLACE, _WITHOUT_STALLS, _UNLIKE = 0.5, 95, 0.2


def cycle(computed: Floats) -> tuple[int, int]:
    """How many repetitions make a step, by what is ``computed`` before each [S], and which is the first of one.

    Where all places but one are alike, that one has a save or a check in addition, unless it has most of the computing.
    """

    def scatter(levels: Floats) -> float:
        apart = np.abs(computed[: len(levels)] - levels)
        return float(np.minimum(apart, np.percentile(apart, _WITHOUT_STALLS)).mean())

    typical = float(median(computed)) if len(computed) else 0.0
    for times in range(2, min(_MOST_IN_A_ROW, len(computed) // _LEAST_STEPS) + 1):
        whole = len(computed) // times * times
        place = median(computed[:whole].reshape(-1, times), axis=0)
        alike, rest = scatter(np.full(whole, typical)), np.sort(place)[:-1]
        added = times > 2 and np.ptp(rest) <= _UNLIKE * typical and place.max() < _BEYOND * rest.sum()
        if alike > _UNLIKE * typical and scatter(np.tile(place, whole // times)) < _AT_ITS_PLACE * alike and not added:
            return times, int(np.argmax(place))
    return 1, 0


#: A job with fewer marked steps has just begun: a pattern that repeats more often than these lies within a step.
_JUST_BEGUN = 10


def steps_of_collectives(grid: Grid, self_time: Floats, table: Table, before: Counted | None = None) -> Ints:
    """Step number of every collective [K]; -1 for what belongs to none. ``self_time`` [R, K] ns is before each.

    ``table`` are the training steps of all ranks; where there are none numbers go on from those of the window before.
    """
    gap, marked = median(self_time, axis=0), len(np.unique(table["step"]))
    apart = not grid.gpu_time or bool(grid.peer_wait.any())  # a pipeline's gradients follow one another after it
    found = infer(grid.token, gap, _marks(grid, table), apart=apart)
    if not marked:
        return numbered_as_before(found, grid, before)
    count = len(np.unique(found[found >= 0]))
    return np.full_like(found, -1) if marked < _JUST_BEGUN and count > 2 * (marked + 1) else found


def _marks(grid: Grid, table: Table) -> Marks | None:
    """The marked steps with the start times of the collectives; ``None`` where none are marked."""
    number, which = np.unique(table["step"], return_inverse=True) if rows(table) else (np.empty(0, np.int64), None)
    if which is None:
        return None
    begins = np.where(table["start_ns"] >= 0, table["start_ns"], np.nan).astype(np.float64)
    start, all_started = np.full((2, len(number)), np.nan)
    np.fmin.at(start, which, begins)
    np.fmax.at(all_started, which, begins)
    known = np.isfinite(start)
    start, all_started = (np.maximum.accumulate(one[known]) for one in (start, all_started))
    return Marks(number[known], start, median(grid.start, axis=0), all_started, np.fmax.reduce(grid.start, axis=0))


#: The newest steps may be incomplete: the step that anchors the count has this many after it.
_AFTER = 3


def numbered_as_before(number: Ints, joined: Grid, before: Counted | None) -> Ints:
    """Step numbers [K] of collectives, -1 for those of none, that go on from those of the window before.

    Where that shares no step with this one so many lie between as have passed at the typical pace.
    """
    inside = np.flatnonzero(number >= 0)
    if before is None or not len(inside):
        return number
    numbers, first = np.unique(number[inside], return_index=True)
    began = _began(joined, inside[first])
    length = float(median(np.diff(began))) if len(began) > 1 else float("nan")
    if not (np.isfinite(began).any() and length > 0):
        return number
    at = int(np.nanargmin(np.abs(began - before.start_ns)))
    since = before.step + round((float(began[at]) - before.start_ns) / length)
    shift = max(since - int(numbers[at]), -int(numbers[0]))
    return np.where(number >= 0, number + shift, number)


def last_counted(run: Run, blocks: Blocks | None, settings: Settings) -> Counted | None:
    """One of the newest steps, as it was counted; ``None`` where steps are marked, nothing tells when they began, or
    they are too few to be sure of: what repeats within one may have been taken for a step."""
    if blocks is None or blocks.joined is None or len(blocks.steps) < settings.min_steps:
        return None
    if rows(run.steps) or (blocks.joined.step >= 0).any():
        return None
    began = _began(blocks.joined, blocks.starts)
    known = np.flatnonzero(np.isfinite(began))[: -_AFTER or None]
    return Counted(int(blocks.steps[known[-1]]), float(began[known[-1]])) if len(known) else None


def _began(joined: Grid, columns: Ints) -> Floats:
    """[S] when the first rank came to each of these collectives, ns; NaN where none was seen to."""
    return np.asarray(np.fmin.reduce(joined.start[:, columns], axis=0), np.float64)


def step_bounds(found: Blocks, start: Floats | None) -> Floats:
    """[S + 1] when each step began on the job clock, and when the last ended; empty where unknown.

    ``start`` [R, S] holds the marked times. A GPU's clock is some ms off the job's, which is nothing at the rate of
    samples.
    """
    if start is None and found.joined is not None:
        start = found.joined.start[:, found.starts]
    if start is None or np.isnan(start).all():
        return np.empty(0)
    begins = without_gaps(median(start, axis=0), found.steps, found.step_ns)
    return np.maximum.accumulate(np.append(begins, begins[-1] + np.nan_to_num(found.step_ns)))


def without_gaps(times: Floats, steps: Ints, usual: float) -> Floats:
    """[..., S] when something happened in each step, where of the same ones nothing is known in all rows: of a job that
    runs, collectives of the newest step are there before its mark. Steps between known ones are as long as each other,
    those beyond as usual."""
    known = ~np.isnan(times.reshape(-1, len(steps))[0])
    if known.all() or not known.any():
        return times
    at, seen = steps[known], times[..., known]
    right = np.minimum(np.searchsorted(at, steps), len(at) - 1)
    left = np.where(at[right] <= steps, right, np.maximum(right - 1, 0))
    share = (steps - at[left]) / np.maximum(at[right] - at[left], 1) * (left < right)
    inside = seen[..., left] + (seen[..., right] - seen[..., left]) * share
    beyond = np.minimum(steps - at[0], 0) + np.maximum(steps - at[-1], 0)
    return np.asarray(inside + beyond * np.nan_to_num(usual))


def step_ends(found: Blocks, start: Floats | None, duration: Floats | None) -> Floats:
    """[R, S] when each rank's steps ended on the job clock, as ``start`` and ``duration`` [R, S] were marked.

    Without columns where that is unknown.
    """
    if start is not None and duration is not None:
        ends = start + duration
    elif found.joined is not None and not found.joined.gpu_time:
        last = np.append(found.starts[1:], found.joined.columns) - 1
        ends = (found.joined.start + found.joined.duration)[:, last]
    else:
        return np.empty((len(found.ranks), 0))
    for row in np.flatnonzero(np.isnan(ends).any(axis=1)):  # mostly some lack the newest step
        ends[row] = without_gaps(ends[row], found.steps, found.step_ns)
    return np.empty((len(found.ranks), 0)) if np.isnan(ends).any() else ends


def not_profiled(table: Table, numbers: Ints, least: int) -> Array:
    """[S] mask of the steps that no rank's profiler disturbed; of all steps where fewer than ``least`` are left."""
    calm = ~np.isin(numbers, table["step"][table["kind"] == PROFILED])
    return calm if calm.sum() >= least else np.ones(len(numbers), bool)


def settings_of_few_profiled(blocks: Blocks, table: Table, settings: Settings) -> Settings:
    """The thresholds for steps that were all profiled and are few: there will be no more of them.

    A rank is named if it is the latest in each of these, by more than any healthy rank is; a running job waits for
    more.
    """
    too_few = settings.min_steps // 2 <= len(blocks.steps) < settings.min_steps
    if not too_few or not rows(table):
        return settings
    theirs = np.isin(table["step"], blocks.steps)
    if not np.isin(blocks.steps, table["step"][theirs]).all() or (table["kind"][theirs] != PROFILED).any():
        return settings
    return replace(
        settings,
        large_effect=min(settings.stall_effect, settings.large_effect),
        min_steps_when_large=len(blocks.steps),
        min_latest=1.0,
        min_consistency=1.0,
    )


def profiler_notes(blocks: Blocks | None, table: Table) -> list[str]:
    """What it means for the report that a profiler was at work."""
    if not rows(table) or blocks is None:
        return []
    steps = np.unique(table["step"][table["kind"] == PROFILED])
    judged = np.isin(blocks.steps, steps)
    if judged.all() and len(judged):
        return ["a profiler recorded all steps and slowed them: times are those of profiled steps"]
    if len(steps) and not judged.any():
        slowed = f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
        return [f"a profiler slowed {slowed}, which are not judged"]
    return []
