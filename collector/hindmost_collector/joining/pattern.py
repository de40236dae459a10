"""Steps of operations from a log with gaps: the pattern of the operations that it has, placed by their numbers.

A log that polls for the last ended operation misses some, often on all ranks alike. The operations left, one after
the other, do not repeat.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from hindmost_judge.model import UNMEASURED, rows

from hindmost_collector.formats.columns import select

if TYPE_CHECKING:
    from hindmost_judge.model import Run, Table

    Numbers = np.ndarray[Any, np.dtype[np.int64]]
    Floats = np.ndarray[Any, np.dtype[np.float64]]

#: Share of the operations that must equal those one period later; the rest may be checkpoints or evaluations.
_ALIKE = 0.95
#: Collectives of one step, at most.
_LONGEST = 4096
#: Share of the numbers of which some rank must have the operation; longer runs without any are windows of time that
#: were not read, and count for nothing.
_SEEN, _NOT_READ = 0.7, 1000
#: Share of the collectives that are in the one communicator whose pattern is looked for: another's have their own.
_IN_ONE = 0.95
_UNKNOWN = -1


def with_steps(run: Run) -> Run:
    """The run with the step of each operation, where no rank marks any and some operations are missing."""
    table = run.collectives
    if rows(run.steps) or not rows(table) or (table["step"] >= 0).any():
        return run
    held = np.flatnonzero((table["peer"] < 0) & (table["seq"] >= 0) & (table["duration_ns"] >= 0))
    comms, count = np.unique(table["comm"][held], return_counts=True)
    if not len(comms) or count.max() < _IN_ONE * len(held):
        return run
    held = held[table["comm"][held] == comms[np.argmax(count)]]
    found = _steps(select(table, held))
    if found is None:
        return run
    step = np.full(rows(table), UNMEASURED, np.int64)
    step[held] = found
    return replace(run, collectives={**table, "step": step})


def _steps(table: Table) -> Numbers | None:
    """The step of each row, -1 for none; ``None`` where no number is missing, or what is there does not repeat."""
    number = table["seq"] - table["seq"].min()
    count = int(number.max()) + 1
    if count >= 4 * len(number):
        return None
    tokens = _tokens(table, number, count)
    length = _period(tokens) if _SEEN <= _seen(tokens) < 1 else None
    if length is None:
        return None
    of_number = _repetitions(tokens, length, _before(table, number, count))
    return np.asarray(of_number[number])


def _seen(tokens: Numbers) -> float:
    """Share of the numbers that were recorded, of those in windows that were read."""
    known = np.flatnonzero(tokens != _UNKNOWN)
    apart = np.diff(known) - 1
    return float(len(known) / (len(known) + apart[apart < _NOT_READ].sum()))


def _tokens(table: Table, number: Numbers, count: int) -> Numbers:
    """What ran at each number, as a number itself."""
    _, kind = np.unique(table["op"], return_inverse=True)
    _, token = np.unique(table["bytes"] * (int(kind.max()) + 1) + kind, return_inverse=True)
    tokens = np.full(count, _UNKNOWN, np.int64)
    tokens[number] = token
    return tokens


def _period(tokens: Numbers) -> int | None:
    """Shortest length after which what is known repeats, in the last three quarters: starting up does other things."""
    tail = tokens[len(tokens) // 4 :]
    for length in range(1, min(len(tail) // 2, _LONGEST) + 1):
        known = (tail[:-length] != _UNKNOWN) & (tail[length:] != _UNKNOWN)
        if known.any() and np.mean((tail[:-length] == tail[length:])[known]) >= _ALIKE:
            return length
    return None


def _before(table: Table, number: Numbers, count: int) -> Floats:
    """How long ranks computed before each number, or, where no start is known, how far apart they came; or NaN."""
    ranks, row = np.unique(table["rank"], return_inverse=True)
    start, took = (np.full((len(ranks), count), np.nan) for _ in range(2))
    took[row, number] = table["duration_ns"]
    start[row, number] = np.where(table["start_ns"] >= 0, table["start_ns"], np.nan)
    if np.isnan(start).all():
        return np.asarray(np.fmax.reduce(took) - np.fmin.reduce(took))
    between = start[:, 1:] - (start + took)[:, :-1]
    return np.append(np.nan, np.fmin.reduce(between))


def _repetitions(tokens: Numbers, length: int, before: Floats) -> Numbers:
    """Which repetition of the pattern each number is in, -1 for none: starting up, a checkpoint, an evaluation.

    A step begins where most time passes before an operation, or ranks come furthest apart: after the computing.
    """
    first = len(tokens) // 4
    count = (len(tokens) - first) // length
    places = [slice(first + place, first + count * length, length) for place in range(length)]
    pattern = np.array([_most(tokens[place]) for place in places])
    begin = int(np.argmax([_mean(before[place]) for place in places]))
    pattern = np.roll(pattern, -begin)
    known = np.flatnonzero(tokens != _UNKNOWN)
    found = np.full(len(tokens), UNMEASURED, np.int64)
    at = step = 0
    while at + length <= len(tokens):
        if tokens[at] == _UNKNOWN and known[np.searchsorted(known, at)] >= at + length:
            at = int(known[np.searchsorted(known, at)]) - length + 1
        elif _fits(tokens[at : at + length], pattern):
            found[at : at + length] = step
            at, step = at + length, step + 1
        else:
            at += 1
    return found


def _most(tokens: Numbers) -> int:
    known = tokens[tokens != _UNKNOWN]
    return int(np.bincount(known).argmax()) if len(known) else _UNKNOWN


def _mean(values: Floats) -> float:
    """Not the median: who is late in a part of the run only would show nowhere."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else 0.0


def _fits(tokens: Numbers, pattern: Numbers) -> bool:
    known = tokens != _UNKNOWN
    return bool(2 * np.count_nonzero(known) >= len(tokens) and (tokens == pattern)[known].all())
