"""Load imbalance: ranks are late in turn, each when its own batch is longer, and none is slow.

The work is the count of samples or tokens where steps have it, else forward on the GPU, which grows with the work as
all else does.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hindmost_judge.blocks import Blocks, Slowdown
from hindmost_judge.causes import launch_bound
from hindmost_judge.detect import Case
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import MAD_TO_SIGMA, alike, median, median_error, or_zero, peers_median, standard_error
from hindmost_judge.timeline.cohorts import beyond_peers
from hindmost_judge.types import Floats, Ints
from hindmost_judge.verdict.schema import Verdict
from hindmost_judge.verdict.whole_job import of_uneven
from hindmost_judge.whatif import hidden_delay, savings
from hindmost_judge.whatif.savings import imbalance_cost, step_delay

#: Share of the delays that the work must explain; with less, most of the delay has another cause (of the variance).
_MIN_UNEVEN_EXPLAINED = 0.5

#: A rank's work is persistently larger if it is larger by this many standard errors; 4 would meet one of 1,024 ranks by
#: chance.
_USUAL = 5.0


def verdicts(case: Case) -> list[Verdict]:
    """The verdict on work whose size differs from rank to rank, in turn."""
    return find(case.blocks, case.settings)


def find(blocks: Blocks, settings: Settings) -> list[Verdict]:
    """The verdict on uneven work; none where it costs little, or explains little of who is late."""
    if len(blocks.ranks) < 2 or len(blocks.steps) < 2 * settings.min_steps or not _loses(blocks, settings):
        return []
    for counted, work in ((True, blocks.work), (False, _timed(blocks))):
        if work is None or np.isnan(work).all():
            continue
        if found := _by(blocks, work, counted, settings):
            return found
    return []


#: If GPUs run forward as it is launched in this share of the steps, the hosts decide how long it takes.
_LAUNCHED = 0.3


def _timed(blocks: Blocks) -> Floats | None:
    """[R, S] how long GPUs took over forward, as far as that is computing."""
    launched = launch_bound.launch_bound_steps(blocks)
    if launched is not None and np.mean(launched) > _LAUNCHED:
        return None
    return blocks.parts.get("gpu_forward")


def _by(blocks: Blocks, work: Floats, counted: bool, settings: Settings) -> list[Verdict]:
    more = more_work(work, _roles(blocks))
    swing = _swing(more, counted=counted)
    if swing < settings.min_uneven or _is_ones_own(more):
        return []
    share = explained(blocks.delay, more)
    if share < _MIN_UNEVEN_EXPLAINED:
        return []
    if counted:  # samples and tokens are as many for one stage as for another
        due = _expected(blocks, more, more_work(work))
    else:
        due = _expected(blocks, more) * (1 - savings.own_part(blocks))
    level = blocks.intervals - due
    cost = float((step_delay(blocks, blocks.intervals) - step_delay(blocks, level)).mean())
    if cost < settings.min_effect * blocks.step_ns:
        return []
    return of_uneven(blocks, cost, share, swing, counted=counted)


def _swing(more: Floats, *, counted: bool) -> float:
    """Standard deviation of ``more`` work, as a share of a usual step's.

    The GPU's time stands for work where it changes from one step to the next, as batches do. A GPU that is slow from
    some step on also moves the baseline of its peers: in a small cohort most seem to have more since, or less.
    """
    varies = more if counted else np.diff(more, axis=1) / np.sqrt(2)
    return float(MAD_TO_SIGMA * np.median(np.abs(varies))) if varies.size else 0.0


def _is_ones_own(more: Floats) -> bool:
    """Whether one rank has most of the variation: then its computing varies, and not the job's work."""
    scatter = np.abs(more).sum(axis=1)
    return len(scatter) > 2 and float(scatter.max()) > 0.5 * float(scatter.sum())


def explained(delay: Floats, more: Floats) -> float:
    """Share of the variance of the delays that more work accounts for; 0 where more work delays no rank.

    Long stalls are clipped: a few would be most of the variance, and say nothing of the other steps.
    """
    late = or_zero(delay - median(delay, axis=1)[:, None])
    most = hidden_delay.STALL * MAD_TO_SIGMA * float(median(np.abs(late)))
    late = np.clip(late, -most, most)
    both = float(np.sum(late * more))
    return both**2 / float(np.sum(late**2) * np.sum(more**2)) if both > 0 else 0.0


#: Share of steps with a known GPU time for it to stand for uncounted work.
_KNOWN = 0.9


def in_full(blocks: Blocks, settings: Settings) -> Blocks:
    """The same, replayed with the full delay due to work, where collectives show a part of it.

    The GPU's time in forward stands for uncounted work. It serves to cost what a fix leaves, not to name a rank.
    """
    work, counted = blocks.work, True
    if work is None or not np.any(work > 0):
        work, counted = _timed(blocks), False
        if work is None or np.mean(~np.isnan(work)) < _KNOWN:
            return blocks
    if not blocks.overlapped:
        return blocks
    more = more_work(work)
    if _swing(more, counted=counted) < settings.min_uneven or _is_ones_own(more):
        return blocks
    known = work[work > 0]
    typical = median(work, axis=0) / median(known) - 1 if len(known) else np.zeros(work.shape[1])
    due = hidden_delay.work_delay_of(blocks, more, or_zero(typical), settings)
    if due is None:
        return blocks
    late = blocks.intervals + (1 - due.seen) * due.ns
    return replace(blocks, intervals=late, work_delay=replace(due, counted=counted))


def levelled(blocks: Blocks, settings: Settings, timed: Floats | None) -> Blocks:
    """The same without the delay that work explains, so that a slow rank shows among uneven ones.

    ``timed`` is what :func:`uncounted` found. GPU time cannot separate a rank that is slow, or becomes so, from one
    that gets more work. Where work was not counted, only its changes from step to step are therefore taken as work.
    Counted work that is no more uneven than usual explains no delay: a rank that gets more from some step on is late
    for that.
    """
    if blocks.work is None:
        return blocks if timed is None else _without(blocks, timed - _around(timed), settings)
    return _without(blocks, more_work(blocks.work, _roles(blocks)), settings) if _loses(blocks, settings) else blocks


def no_batches(slowdowns: list[Slowdown], timed: Floats, settings: Settings) -> list[Slowdown]:
    """Those found with uncounted work in whose steps the GPU surely takes longer.

    With random batch sizes, some consecutive steps have longer ones by chance: what remains of them is not
    persistent.
    """
    computed = [(slowdown, timed[slowdown.row, slowdown.steps()]) for slowdown in slowdowns]
    return [one for one, more in computed if float(median(more)) >= settings.min_z * standard_error(more)]


def _loses(blocks: Blocks, settings: Settings) -> bool:
    return imbalance_cost(blocks) >= settings.min_uneven * blocks.step_ns


def uncounted(blocks: Blocks, settings: Settings) -> tuple[Floats, Blocks] | None:
    """[R, S] how much longer a rank's GPU takes than the typical peer's, as a share of a usual step, if work is uneven;
    and the blocks without all that this explains: a rank that is still late there is late because of its host, which
    shows sooner without the batches' differences.

    ``None``: unknown, or the work was counted, or it is not most of why ranks are late."""
    work = _timed(blocks) if blocks.work is None and _loses(blocks, settings) else None
    if work is None or np.mean(~np.isnan(work)) < _KNOWN:
        return None
    more = _more(work, _roles(blocks))
    if _is_ones_own(more - median(more, axis=1)[:, None]):
        return None
    hosts_alone = _without(blocks, more, settings)
    return (more, hosts_alone) if hosts_alone is not blocks else None


def _without(blocks: Blocks, more: Floats, settings: Settings) -> Blocks:
    """The same without what ``more`` work [R, S] makes ranks late by, where that is most of why they are."""
    swings = _swing(more, counted=False) >= settings.min_uneven
    if not swings or explained(blocks.delay, more - median(more, axis=1)[:, None]) < _MIN_UNEVEN_EXPLAINED:
        return blocks
    by_work = hidden_delay.shown(blocks.delay, more, overlapped=blocks.overlapped) * more
    intervals = blocks.intervals - _expected(blocks, more)
    return replace(blocks, delay=blocks.delay - by_work, intervals=intervals, work_delay=None)


#: Steps on each side that give a rank's usual level at a step; a slowdown this long can be separated from batch sizes.
_AROUND = 12
#: Rows times steps handled at a time: all their windows are in memory at once.
_AT_ONCE = 100_000


def _around(more: Floats) -> Floats:
    """[R, S] median of the steps around each; at the ends, of the first and of the last so many."""
    width = 2 * _AROUND + 1
    if more.shape[1] <= width:
        return np.repeat(median(more, axis=1)[:, None], more.shape[1], axis=1)
    found = np.empty_like(more)
    rows = max(_AT_ONCE // more.shape[1], 1)
    for first in range(0, len(more), rows):
        windows = np.lib.stride_tricks.sliding_window_view(more[first : first + rows], width, axis=1)
        inner = median(windows, axis=2)
        found[first : first + rows] = np.pad(inner, ((0, 0), (_AROUND, _AROUND)), mode="edge")
    return found


def _roles(blocks: Blocks) -> Ints | None:
    """[R] the cohort of each rank in a pipeline, where stages take turns; ``None``: all ranks are one."""
    return blocks.cohort if blocks.pipeline is not None else None


def more_work(work: Floats, cohort: Ints | None = None) -> Floats:
    """[R, S] a rank's extra work against the typical peer (of its ``cohort``, where known), beyond its usual surplus.

    In shares of a usual step's work, not of that step's: time grows by the token, however few a peer had. A rank that
    always has more has a persistent surplus; a surplus by chance over as many steps is not one.
    """
    more = _more(work, cohort)
    slowdown = median(more, axis=1)
    return np.asarray(more - np.where(np.abs(slowdown) > _USUAL * median_error(more), slowdown, 0.0)[:, None])


def _more(work: Floats, cohort: Ints | None) -> Floats:
    """The same with what is usual for each."""
    if alike(work):
        return np.zeros_like(work)
    known = work[work > 0]
    usual = median(known) if len(known) else np.nan
    beyond = work - peers_median(work) if cohort is None else beyond_peers(work, cohort)
    return np.asarray(or_zero(beyond / usual))


def _expected(blocks: Blocks, more: Floats, of: Floats | None = None) -> Floats:
    """[R, K] delay due to ``more`` work, or as much ``of`` other work, by a line through each interval."""
    due: Floats = np.zeros_like(blocks.intervals)
    first = np.searchsorted(blocks.interval_step, np.arange(len(blocks.steps)))
    place = np.arange(len(blocks.interval_step)) - first[blocks.interval_step]
    for spot in np.unique(place):
        columns = np.flatnonzero(place == spot)
        work = more[:, blocks.interval_step[columns]]
        slope = hidden_delay.shown(blocks.intervals[:, columns], work, overlapped=blocks.overlapped)
        due[:, columns] = slope * (work if of is None else of[:, blocks.interval_step[columns]])
    return due
