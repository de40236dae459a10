"""Steps of a job that marks none: the pattern of its collectives repeats, and one repetition is a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.robust import median

if TYPE_CHECKING:
    from hindmost_collector.align import Floats, Ints
    from hindmost_collector.settings import Settings

#: Share of tokens that must equal those one period later; the rest may be checkpoints or evaluations.
_ALIKE = 0.95
_LONGEST_PERIOD = 4096


def period(tokens: Ints) -> int | None:
    """Shortest length after which the sequence of (communicator, operation, bytes) repeats; ``None``: it does not.

    Judged on the last three quarters, since starting up broadcasts and gathers what steps do not.
    """
    tail = tokens[len(tokens) // 4 :]
    for length in range(1, min(len(tail) // 2, _LONGEST_PERIOD) + 1):
        if np.mean(tail[:-length] == tail[length:]) >= _ALIKE:
            return length
    return None


def infer(tokens: Ints, gap: Floats) -> Ints:
    """Step number of every collective [K], from 0; -1 for what belongs to none (start-up, checkpoint, evaluation).

    ``gap`` [K] is the typical own time before each collective: a step begins at the longest one of the pattern, since
    that is where the computing is.
    """
    length = period(tokens)
    if length is None:
        return np.full(len(tokens), -1, np.int64)
    if length == 1:
        usual = tokens == np.bincount(tokens[len(tokens) // 4 :]).argmax()
        return np.where(usual, np.cumsum(usual) - 1, -1)
    pattern = _pattern(tokens, gap, length)
    begins = _matches(tokens, pattern)
    steps = np.full(len(tokens), -1, np.int64)
    for number, begin in enumerate(begins):
        steps[begin : begin + length] = number
    return steps


def _pattern(tokens: Ints, gap: Floats, length: int) -> Ints:
    """One period of tokens, rotated to begin with its longest gap."""
    first = len(tokens) // 4
    count = (len(tokens) - first) // length
    gaps = gap[first : first + count * length].reshape(count, length)
    begin = first + int(np.argmax(np.nan_to_num(median(gaps, axis=0))))
    windows = [tokens[begin + i * length : begin + (i + 1) * length] for i in range(count - 1)] or [
        tokens[begin : begin + length]
    ]
    found, votes = np.unique(np.stack(windows), axis=0, return_counts=True)
    return np.asarray(found[np.argmax(votes)])


def _matches(tokens: Ints, pattern: Ints) -> list[int]:
    """Where the pattern occurs, without overlap, in order."""
    length = len(pattern)
    equal = np.ones(max(len(tokens) - length + 1, 0), bool)
    for offset, token in enumerate(pattern):
        equal &= tokens[offset : offset + len(equal)] == token
    found, next_free = [], 0
    for begin in np.flatnonzero(equal).tolist():
        if begin >= next_free:
            found.append(begin)
            next_free = begin + length
    return found


def warmup(durations: Floats, settings: Settings) -> int:
    """How many leading steps to leave out: the first, which follows no other, and on until three in a row are usual."""
    if len(durations) < 5:
        return 0
    typical = median(durations)
    most = max(1, int(len(durations) * settings.max_warmup))
    slow = np.nan_to_num(durations[: most + 3], nan=np.inf) > settings.warmup_ratio * typical
    calm = [first for first in range(1, most + 1) if not slow[first : first + 3].any()]
    return calm[0] if calm else most
