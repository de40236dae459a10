"""Ranks whose hosts persistently work longer in a phase than their cohort, in jobs whose hosts set the pace.

The test is on self time, never on who waits for whom: a host that arrives late may have been ahead and waiting itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from hindmost_judge.blocks import Blocks, Slowdown
from hindmost_judge.detect.nested_segments import lasts
from hindmost_judge.detect.straggler import others_as_late
from hindmost_judge.graph.self_time import pace_of_peers
from hindmost_judge.settings import Settings
from hindmost_judge.stats import segmentation
from hindmost_judge.stats.robust import FEW_RANKS, MAD_TO_SIGMA, median, spread
from hindmost_judge.types import Floats, Ints, Lanes

#: Phases that are waiting, whatever is left of it.
_WAITS = ("sync", "device_wait")


def find(blocks: Blocks, settings: Settings) -> list[Slowdown]:
    """Persistent slowdowns of hosts, or of loaders that are waited for in turn, largest first."""
    least, large = (share * blocks.step_ns for share in (settings.effect(len(blocks.ranks)), settings.large_effect))
    if blocks.lanes is None:
        delays = list(_delays(blocks.delay, blocks.cohort, None, least, large, _NEVER, blocks.turn))
    else:
        delays = find_delays(blocks.lanes, least, large)
    last = np.argmax(blocks.caused, axis=0)
    return [
        replace(one, latest=float(np.mean(last[one.first : one.stop] == one.row)))
        for one in delays
        if one.phase not in _WAITS and lasts(blocks.period, one.first, one.stop)
    ]


#: Standard errors of a delay that is real: with a hundred ranks, phases and segments, noise reaches that in one job of
#: a thousand.
_MIN_Z = 4.5
#: Steps that a delay lasts at least, and the share of all steps at least unless the delay is large. Hosts drift by
#: less than that for tens of steps.
_MIN_STEPS, _MIN_SHARE = 10, 0.125
#: Whether a series may drift, and whether what seems a delay that ended may have been drift.
_NEVER, _SLOWLY, _IN_PART = range(3)
#: In runs with fewer steps than this, drift is no smaller than a delay: only large delays count.
_SHORT_RUN = 40
#: Neighbouring segments belong to one delay if the smaller level is at least this share of the larger.
_SAME_DELAY = 0.5
#: A phase's changes go with those of another phase from this share of their variance on; each counts for at most so
#: many standard deviations.
_GOES_WITH, _USUAL = 0.25, 3.0


def find_delays(lanes: Lanes, least: float, large: float) -> list[Slowdown]:
    """Persistent delays of hosts, each the mean in a phase, in order of their total time, largest first.

    ``least`` is the smallest delay that counts, in ns a step. From ``large`` ns a step on, few steps are enough.
    """
    delays: list[Slowdown] = []
    least = max(least, large) if lanes.host.shape[2] < _SHORT_RUN else least
    behind = np.stack([self_time - pace_of_peers(self_time, lanes.cohort) for self_time in lanes.host])
    waits = -1
    if lanes.wait is not None:
        waits = lanes.wait.phase
        behind[waits] -= lanes.host[waits] - lanes.least[waits]  # what may be a wait proves no delay
    steady = [_at_even_speed(behind, phase, waits) if phase != waits else None for phase in range(len(behind))]
    drift = _IN_PART if any(one is not None for one in steady) else _SLOWLY
    for phase, behind_peers, net_of_drift in zip(lanes.phases, behind, steady, strict=True):
        sharp: list[Slowdown] = []
        if net_of_drift is not None:
            # Where a delay is, shows without drift; how large it is, with it: a core slower throughout is no drift.
            seen = _delays(net_of_drift, lanes.cohort, phase, least, large, _NEVER)
            sharp = [replace(one, delay=float(behind_peers[one.row, one.first : one.stop].mean())) for one in seen]
        blurred = _delays(behind_peers, lanes.cohort, phase, least, large, drift)
        delays += [*sharp, *(one for one in blurred if not any(_overlap(one, other) for other in sharp))]
    # A host that takes longer in one phase and is as much faster in the others is not waited for.
    in_step = lanes.host.sum(axis=0) - lanes.peer_pace
    longer = [float(in_step[one.row, one.first : one.stop].mean()) for one in delays]
    pairs = zip(delays, longer, strict=True)
    delays = [replace(one, delay=min(one.delay, most)) for one, most in pairs if most >= least]
    return _one_a_rank(sorted(delays, key=lambda one: -one.delay * (one.stop - one.first)), in_step)


def _at_even_speed(behind: Floats, phase: int, waits: int) -> Floats | None:
    """[R, S] ns behind peers in a phase, less what goes with another phase; ``None`` where none goes with it.

    A core's clock, and what else runs on it, change all that a thread does. A fault in one phase shows only there.
    ``behind`` [P, R, S] is that of all phases.
    """
    changes = np.diff([_block_means(one) for one in behind], axis=-1).reshape(len(behind), -1)
    most = _USUAL * MAD_TO_SIGMA * median(np.abs(changes), axis=1)[:, None]
    changes = np.clip(changes, -most, most)  # a fault that begins in two phases at once is no change of speed
    together = changes @ changes[phase]
    share = together * np.abs(together) / np.maximum((changes**2).sum(axis=1) * together[phase], 1.0)
    share[[phase, waits]] = 0.0
    with_it = np.flatnonzero(share >= _GOES_WITH)
    if not len(with_it):
        return None
    slope = np.linalg.lstsq(changes[with_it].T, changes[phase], rcond=None)[0]
    return np.asarray(behind[phase] - np.tensordot(slope, behind[with_it], axes=1))


def _overlap(one: Slowdown, other: Slowdown) -> bool:
    return one.row == other.row and one.first < other.stop and other.first < one.stop


def _delays(
    behind_peers: Floats, cohort: Ints, phase: str | None, least: float, large: float, drift: int, turn: int = 1
) -> Iterator[Slowdown]:
    """The persistent delays of all ranks in one phase, from those in each step [R, S]; ``least`` ns counts.

    What its peers differ by in the same steps is noise, too: it shows how far hosts drift. So is how late they are at
    other times: what slows half of the ranks at once, as another job on their node does, makes the other half seem
    to agree. Of fewer peers only the rank's own series tells. A change of the level counts as ``drift`` in the test of
    a segment, and not in the search for such changes. What is known of so many steps at once, a ``turn``, is known
    once.
    """
    steps = behind_peers.shape[1]
    shortest = max(_MIN_STEPS, _MIN_SHARE * steps)
    for row in np.flatnonzero(_block_means(behind_peers).max(axis=1) >= least).tolist():
        peers = np.flatnonzero((cohort == cohort[row]) & (np.arange(len(cohort)) != row))
        series, known = segmentation.clipped(behind_peers[row, turn // 2 :: turn]), len(peers) >= FEW_RANKS
        within = series - segmentation.levels(series, drifts=False)
        drifts = drift > _NEVER and not known
        noises = [segmentation.noise(one, drifts=drifts) * float(np.sqrt(turn)) for one in (series, within)]
        sigma, least_noise = max(noises[0], 1.0), max(min(noises), 1.0)
        series = np.repeat(series, turn)[:steps]
        bounds = _without_minor_changes(series, segmentation.segments(series, least_noise), shortest)
        for first, stop in itertools.pairwise(bounds):
            level = float(series[first:stop].mean())
            differ = spread(behind_peers[peers, first:stop].mean(axis=1)) if known else 0.0
            lasts_long = level >= large and stop - first >= shortest  # hosts drift by less, or not for as long
            z = level / float(np.hypot((least_noise if lasts_long else sigma) / np.sqrt(stop - first), differ))
            may_be_drift = drift == _IN_PART and stop < steps
            enough = _MIN_STEPS if level >= large and not may_be_drift else shortest
            if level < least or z < _MIN_Z or stop - first < enough:
                continue
            if not known or not others_as_late(behind_peers[[row, *peers]], 0, first, stop, level):
                yield Slowdown(row, first, stop, level, z, 1.0, z, 0.0, phase=phase)


def _one_a_rank(delays: list[Slowdown], in_step: Floats) -> list[Slowdown]:
    """The delays [largest first], those of one rank in shared steps added to the largest of them, up to what its whole
    step is longer by: ``in_step`` [R, S].

    A slow core makes several phases longer, and so does what a fault displaces: it is one slowdown.
    """
    found: list[Slowdown] = []
    for one in delays:
        at = next((at for at, other in enumerate(found) if _overlap(one, other)), None)
        if at is None:
            found.append(one)
            continue
        main = found[at]
        shared = min(main.stop, one.stop) - max(main.first, one.first)
        delay = main.delay + one.delay * shared / (main.stop - main.first)
        most = float(in_step[main.row, main.first : main.stop].mean())
        found[at] = replace(main, delay=min(delay, most))
    return found


def _block_means(behind_peers: Floats) -> Floats:
    """[R, B] ns: means of the delay in each step [R, S] over blocks of steps.

    Screening: a rank whose block means all stay below the threshold has no delay that lasts, and is not segmented.
    """
    steps = behind_peers.shape[1]
    starts = np.arange(0, max(steps - _MIN_STEPS // 2, 1), _MIN_STEPS)
    return np.asarray(np.add.reduceat(behind_peers, starts, axis=1) / np.diff(np.append(starts, steps)))


def _without_minor_changes(series: Floats, bounds: list[int], shortest: float) -> list[int]:
    """The bounds of a series' segments, less those inside one delay.

    It only becomes somewhat larger or smaller there. Or it pauses or exceeds itself for fewer steps than the
    ``shortest`` delay, which hardly changes its mean. The first few steps of a run show no level.
    """
    bounds = [0, *(bound for bound in bounds[1:] if bound >= _MIN_STEPS)]
    major = bounds[:2]
    for stop in bounds[2:]:
        *_, before, last, level = [-np.inf, *(float(series[a:b].mean()) for a, b in itertools.pairwise([*major, stop]))]
        joined = float(series[major[max(len(major) - 3, 0)] : stop].mean())
        if _one_delay(last, level):
            major[-1] = stop
        elif major[-1] - major[-2] < shortest and _one_delay(before, level) and _one_delay(joined, level):
            major[-2:] = [stop]
        else:
            major.append(stop)
    return major


def _one_delay(level: float, other: float) -> bool:
    return min(level, other) >= _SAME_DELAY * max(level, other)
