"""Transient slowdowns of one rank for a few steps: too short to change any median, and without equal in the job.

Eight steps nearly all late by a good part of a step may be chance where that happens to several ranks. It is not
chance where it happens to one rank only, a few times, and no other eight steps of any rank are late by a third as
much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.settings import DEFAULT
from hindmost_judge.stats.robust import median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Array, Floats

#: No other eight steps of any rank may be later by this share, or the burst may be chance (of the burst).
_BURST_ALIKE = 1 / 3

#: Shortest burst, in steps, and how many of its steps may be on time.
_SHORTEST, _DIPS = 8, 1
#: Most ranks that are examined, latest first.
_MOST = 8


def find(
    excess: Floats, least: float, reported: Sequence[tuple[int, int, int]] = (), settings: Settings = DEFAULT
) -> list[tuple[int, int, int]]:
    """Row, first and stop (indices of steps) of each burst that is later than ``least`` ns and has no equal elsewhere.

    A rank may have several bursts. Segments already ``reported`` are neither bursts nor equals of one.
    """
    if excess.shape[1] < 3 * _SHORTEST:
        return []
    found = []
    for row, at in _latest(excess, least, reported):
        bursts = _of_row(excess[row], at, least, [span for one, *span in reported if one == row], settings.max_segments)
        lowest = _BURST_ALIKE * min((level for _, _, level in bursts), default=np.inf)
        own = [(row, first, stop) for first, stop, _ in bursts]
        if bursts and not _have_their_like(excess, [*own, *reported], lowest):
            found += own
    return found


def _of_row(series: Floats, at: int, least: float, spans: list[list[int]], most: int) -> list[tuple[int, int, float]]:
    """First, stop and level of the bursts of one rank, of which the latest is around the step ``at``."""
    series = np.nan_to_num(series)
    for first, stop in spans:
        series[first:stop] = 0.0
    found: list[tuple[int, int, float]] = []
    while len(found) < most:
        level = float(median(series[at : at + _SHORTEST]))
        first, stop = _around(series >= level / 2, at)
        level = float(median(series[first:stop]))
        if level >= least:
            found.append((first, stop, level))
        series[first:stop] = 0.0
        late = _sums(series[None] >= least)[0] >= _SHORTEST - _DIPS
        if not late.any():
            break
        at = int(np.argmax(np.where(late, _sums(series[None])[0], -np.inf)))
    return found


def _sums(series: Array) -> Array:
    """[R, S - 7] sums of the eight steps from each on; of what is held [R, S], how many of these are."""
    kind = np.int32 if series.dtype == bool else series.dtype
    sums = np.concatenate([np.zeros((len(series), 1), kind), np.cumsum(series, axis=1, dtype=kind)], axis=1)
    return np.asarray(sums[:, _SHORTEST:] - sums[:, :-_SHORTEST])


def _late(excess: Floats, level: float, left_out: Sequence[tuple[int, int, int]]) -> Array:
    """[R, S] which ranks are later than this in which steps, outside these segments."""
    late = excess >= level
    for row, first, stop in left_out:
        late[row, first:stop] = False
    return np.asarray(late)


def _latest(excess: Floats, least: float, reported: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Rows that are late for eight steps on end, the latest first, and where each is latest."""
    late = _late(excess, least, reported)
    rows = np.flatnonzero(np.count_nonzero(late, axis=1) >= _SHORTEST - _DIPS)  # of a large job a few
    late = _sums(late[rows]) >= _SHORTEST - _DIPS
    rows, late = rows[late.any(axis=1)], late[late.any(axis=1)]
    height = np.where(late, _sums(np.nan_to_num(excess[rows])), -np.inf)
    order = np.argsort(-height.max(axis=1, initial=-np.inf), kind="stable")[:_MOST]
    return [(int(rows[one]), int(np.argmax(height[one]))) for one in order]


def _around(high: Array, at: int) -> tuple[int, int]:
    """The steps around ``at`` that are nearly all high."""
    first, stop = at, at + _SHORTEST
    while first > 0 and (high[first - 1] or (first > 1 and high[first - 2])):
        first -= 1
    while stop < len(high) and (high[stop] or (stop + 1 < len(high) and high[stop + 1])):
        stop += 1
    held = np.flatnonzero(high[first:stop])
    return first + int(held[0]), first + int(held[-1]) + 1


def _have_their_like(excess: Floats, left_out: Sequence[tuple[int, int, int]], level: float) -> bool:
    """Whether other steps of any rank, as many as the shortest burst, are mostly later than this."""
    late = _late(excess, level, left_out)
    often = np.count_nonzero(late, axis=1) > _SHORTEST / 2
    return bool((_sums(late[often]) > _SHORTEST / 2).any())
