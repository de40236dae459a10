"""Hosts that persistently work longer in a phase than their cohort: tested on work, never on who waits for whom."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindmost_judge.graph.cohorts import paces
from hindmost_judge.stats import segmentation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hindmost_judge.types import Floats, Lanes

#: A level is real from so many standard errors on: of some hundred ranks, phases and segments one in a thousand jobs
#: has such a one by chance.
_SURE = 4.5
#: A segment whose level is at least this share of the one next to it is part of the same delay.
_SAME = 0.5
#: Steps that a delay lasts at least, and the least share of all unless it is large: hosts wander for tens of steps.
_SHORTEST, _LASTING = 10, 0.125
#: A host that is ahead of its GPU in more steps than this waits, and no less than this share of the time.
_AHEAD, _LITTLE = 0.5, 0.05
#: With fewer steps than this only what is large is known from what hosts wander.
_FEW = 40


class Delay(NamedTuple):
    """A host that takes ``level`` ns a step longer in ``phase`` than its cohort in steps [first, stop) by index.

    ``z`` is the level in standard errors."""

    row: int
    phase: int
    first: int
    stop: int
    level: float
    z: float


def find(lanes: Lanes, least: float, large: float) -> list[Delay]:
    """Delays of at least so many ns a step, largest first; from what is ``large`` on a few steps are enough."""
    found: list[Delay] = []
    least = max(least, large) if lanes.host.shape[2] < _FEW else least
    for phase, own in enumerate(lanes.host):
        beyond, doubt = own - paces(own, lanes.cohort)[0], np.zeros(len(own))
        if lanes.wait is not None and lanes.wait.phase == phase:
            beyond, doubt = (beyond - own + lanes.least[phase] if lanes.wait.lag == 0 else beyond), lanes.doubt
        enough = np.hypot(least, doubt)  # by chance both are as large only together
        for row in np.flatnonzero(_levels(beyond).max(axis=1) >= enough).tolist():
            found += _of_rank(beyond[row], row, phase, float(enough[row]), large)
    found = [one for one in found if not _waits(lanes, one)]
    return _without_traces(sorted(found, key=lambda one: -one.level * (one.stop - one.first)))


def _waits(lanes: Lanes, one: Delay) -> bool:
    """Whether a delay, but for its input, may be a wait: the host is ahead, so that it waits, and else for nothing."""
    steps = slice(one.first, one.stop)
    took = lanes.most[:, one.row, steps].sum()
    waited = took - lanes.host[:, one.row, steps].sum()
    return bool(one.phase > 0 and lanes.ahead[one.row, steps].mean() > _AHEAD and waited < _LITTLE * took)


def _without_traces(found: list[Delay]) -> list[Delay]:
    """The delays, with those of a host that works far longer in another phase in these steps added there: it is slow
    once."""
    kept: list[Delay] = []
    for one in found:
        same = [at for at, other in enumerate(kept) if other.row == one.row and one.level < _SAME * other.level]
        shared = {at: min(kept[at].stop, one.stop) - max(kept[at].first, one.first) for at in same}
        most = max(same, key=shared.__getitem__, default=-1)
        if most < 0 or shared[most] <= 0:
            kept.append(one)
            continue
        larger = kept[most]
        kept[most] = larger._replace(level=larger.level + one.level * shared[most] / (larger.stop - larger.first))
    return kept


def _levels(beyond: Floats) -> Floats:
    """[R, B] means of parts of the run: whether a rank may be late at all."""
    starts = np.arange(0, max(beyond.shape[1] - _SHORTEST // 2, 1), _SHORTEST)
    return np.asarray(np.add.reduceat(beyond, starts, axis=1) / np.diff(np.append(starts, beyond.shape[1])))


def _of_rank(beyond: Floats, row: int, phase: int, least: float, large: float) -> Iterator[Delay]:
    """The delays of one rank in one phase."""
    series = segmentation.clipped(beyond)
    sigma = max(segmentation.noise(series), 1.0)
    bounds = _joined(series, segmentation.segments(series, sigma))
    for first, stop in itertools.pairwise(bounds):
        level = float(series[first:stop].mean())
        z = level * float(np.sqrt(stop - first)) / sigma
        shortest = _SHORTEST if level >= large else max(_SHORTEST, _LASTING * len(series))
        if level >= least and z >= _SURE and stop - first >= shortest:
            yield Delay(row, phase, first, stop, level, z)


def _joined(series: Floats, bounds: list[int]) -> list[int]:
    """The bounds without those between segments of one delay that is now larger and now smaller."""
    kept = bounds[:1]
    for at in range(1, len(bounds) - 1):
        before, after = (float(series[a:b].mean()) for a, b in ((kept[-1], bounds[at]), (bounds[at], bounds[at + 1])))
        if min(before, after) < _SAME * max(before, after):
            kept.append(bounds[at])
    return [*kept, bounds[-1]]
