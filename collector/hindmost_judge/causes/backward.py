"""How much longer a rank computes between collectives that overlap with its computing: its delay shows only a part.

A rank whose backward is slow comes later for each of a step's collectives than for the one before. From some place on
the other ranks queue there, ready long before, and it is no longer visible since when. How much earlier they were ready
is known up to that place only. From there on, the delay is what this rank takes, less what the others take before
messages of the same size.

The kernel of a collective that waits on a GPU for other ranks occupies some of its processors and polls its peers
without a pause. A rank that is early for a collective computes slower until the last rank has come, and loses a part
of its lead. The others are then early by less than the last rank's extra computing. On H200s the loss was a fifth to a
third of the time that kernels waited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hindmost_judge.blocks import Blocks, Slowdown
from hindmost_judge.causes import launch_bound, table
from hindmost_judge.causes.table import Cause
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import ENOUGH_STEPS, SAMPLE, median, or_zero, peers_median, with_peers
from hindmost_judge.timeline.matching import QUEUED_NS, Grid
from hindmost_judge.types import Array, Floats, Ints
from hindmost_judge.verdict.wording import ms

#: A queued collective starts up to this many ns after the one before, once a kernel of its computing has made room. A
#: rank that was ready starts after this share of the gap that the late rank leaves, and after most of a gap that is no
#: longer.
_QUEUE_LEAVES, _READY, _READY_SOON = 0.2e6, 0.25, 0.75
#: A place is known if it showed in this share of the steps; fewer may be picked by chance or by another delay.
_OFTEN = 0.5
#: The delay from forward and optimizer counts where it exceeds what is known anyway by this share of that.
_SURELY = 0.2


@dataclass(frozen=True)
class Backward:
    """Ns a step by which a rank is late for a step's first collective, and longer from there to its last."""

    late: float = 0.0
    longer: float = 0.0

    def beyond(self, known: float) -> float:
        """Ns by which that is more than is known anyway; 0 where it is about as much."""
        more = self.late + self.longer - known
        return more if self.longer > 0 and more > _SURELY * known else 0.0


def of_slowdown(blocks: Blocks, slowdown: Slowdown, settings: Settings) -> Backward:
    """What collectives show of a slowdown, beyond what it is on top of."""
    columns = table.typical(blocks, slowdown.row, slowdown.steps(), settings)
    waits = launch_bound.waits_for_host(blocks, slice(slowdown.row, slowdown.row + 1))
    if waits is not None and waits[0, columns].mean() > _OFTEN:
        return Backward()  # between collectives its host launches
    found = find(blocks, slowdown.row, columns, healthy_steps(blocks, slowdown)) or Backward()
    if slowdown.outer is None:
        return found
    outer = of_slowdown(blocks, slowdown.outer, settings)
    return replace(found, late=max(found.late - outer.late, 0.0), longer=max(found.longer - outer.longer, 0.0))


def healthy_steps(blocks: Blocks, slowdown: Slowdown) -> Array | None:
    """The steps (indices) before and after in which a rank was not late; ``None`` if too few, or on top of a
    slowdown."""
    others = np.delete(np.arange(len(blocks.steps)), np.s_[slowdown.first : slowdown.stop])
    others = others[or_zero(blocks.delay[slowdown.row, others]) < slowdown.delay / 2]
    return others if slowdown.outer is None and len(others) >= ENOUGH_STEPS else None


def in_full(blocks: Blocks, explained: Sequence[tuple[Slowdown, Cause]]) -> Blocks:
    """The blocks with ranks as late in the replay as they are at the step's end."""
    more = np.zeros_like(blocks.intervals)
    for slowdown, cause in explained:
        more[slowdown.row, (blocks.interval_step >= slowdown.first) & (blocks.interval_step < slowdown.stop)] += (
            cause.hidden
        )
    if not more.any():
        return blocks
    return replace(blocks, intervals=blocks.intervals + more, equalised=blocks.same_work + more)


#: Causes of which queueing ranks may hide a part: work of GPUs, and unknown ones.
COMPUTED = ("compute", "workload", "gpu_throttle", "gpu_contention", "unknown")


def limits_of_evidence(blocks: Blocks, slowdowns: Sequence[Slowdown], cause: Cause) -> list[str]:
    """What of a rank's delay the others' queueing hides, and whether there may be more than is known."""
    found = []
    if cause.hidden > 0:
        found.append(f"{ms(cause.hidden)} of the delay is inside backward, hidden by overlapped communication")
    if cause.cause in COMPUTED and any(_hidden(blocks, slowdown) for slowdown in slowdowns):
        found.append("the cost is a lower bound: the length of its backward is not visible")
    return found


def _hidden(blocks: Blocks, slowdown: Slowdown) -> bool:
    """Whether the peers' time from a step's first collective on is unknown: from steps without the slowdown and from
    hosts.

    If they queue already at the second, or parameters are gathered between, only a part of their computing is
    visible.
    """
    grid = blocks.joined
    if not blocks.overlapped or grid is None or healthy_steps(blocks, slowdown) is not None:
        return False
    if np.isnan(grid.start).all():
        return True
    where = places(blocks, slowdown.steps())
    if where is None:
        return False
    others = np.delete(np.arange(len(grid.ranks)), slowdown.row)[:SAMPLE]
    usual = _usual(*ready_ranks(grid, np.append(slowdown.row, others), where))
    return bool(grid.gathers.any() or np.isnan(median(usual[1:], axis=0)).all())


def find(blocks: Blocks, row: int, columns: Array, healthy: Array | None = None) -> Backward | None:
    """How late a rank was in these steps (indices), in full; ``None`` where collectives do not show it.

    In others, where there are such, it was ``healthy``: that tells what its peers take where they queue.
    """
    where = places(blocks, columns)
    if where is None or blocks.joined is None:
        return None
    grid, lost = blocks.joined, _lost(blocks, row)
    first = grid.duration[:, where[:, 0]]
    late = float(median((peers_median(first) - first)[row]))
    before = places(blocks, healthy) if healthy is not None else None
    alike = before is not None and before.shape[1] == where.shape[1]
    own = _usual(*ready_ranks(grid, np.array([row]), before))[0] if before is not None and alike else None
    return Backward(max(late, 0.0), max(_saved(grid, row, where, own, lost), 0.0))


def _lost(blocks: Blocks, row: int) -> float:
    """Ms by which computing takes longer for each ms of an overlapped collective's waiting, from all of the job's
    steps."""
    where = places(blocks, np.arange(len(blocks.steps)))
    if where is None or blocks.joined is None:
        return 0.0
    grid, where = blocks.joined, where[:: max(len(where) // SAMPLE, 1)]
    rows = with_peers(row, len(grid.ranks), SAMPLE)
    _, free = ready_ranks(grid, rows, where)
    return slower(grid.start[rows][:, where], grid.duration[rows][:, where], free)


def places(blocks: Blocks, columns: Array) -> Ints | None:
    """[N, P] column of each place of those steps that have as many collectives as most.

    Parameters that are gathered ahead queue behind the reduction before: when each reduction began tells what is
    computed between them, and nothing tells it in two parts.
    """
    grid = blocks.joined
    if not blocks.overlapped or grid is None or np.isnan(grid.start).all():
        return None
    counts = np.diff(np.append(blocks.starts, grid.columns))[columns]
    usual = int(np.bincount(counts).argmax())
    steps = columns[counts == usual]
    where = blocks.starts[steps][:, None] + np.arange(usual)
    where = where[:, grid.gathers[where].mean(axis=0) < _OFTEN]
    return where if where.shape[1] > 1 else None


def _saved(grid: Grid, row: int, where: Ints, healthy: Floats | None, lost: float) -> float:
    """Ns by which the last collective of a step would end earlier, were this rank as fast between them as its peers.

    ``lost``: ms by which computing takes longer for each ms of an overlapped collective's waiting.
    """
    rows = with_peers(row, len(grid.ranks), SAMPLE)
    start, free = ready_ranks(grid, rows, where)
    start = taken_off(start, grid.duration[rows][:, where], lost)
    exact, most = _usual(start, free), _at_most(start, free)
    mine = exact[0]
    token, transfer = grid.token[where[0]], median(grid.duration[row][where], axis=0)
    shown = np.mean(~np.isnan(most[1:]), axis=0) >= _OFTEN
    bound = np.where(shown, median(most[1:], axis=0), np.nan)  # one peer alone may be late itself
    known = median(exact[1:], axis=0)
    known = np.where(np.isnan(known), _between(start, free, mine), known)
    if healthy is not None:
        known = np.where(np.isnan(known), healthy, known)
    theirs = _of_alike(mine, known, bound, token[1:])
    less = or_zero(mine - theirs)
    took = or_zero(np.where(np.isnan(mine), most[0], mine))
    return float(_end(took, transfer) - _end(took - less, transfer))


def _at_most(start: Floats, free: Array) -> Floats:
    """[R, P - 1] the same at most: a rank that queues for a collective was ready earlier, at an unknown time."""
    return _often(np.where(free[:, :, :-1], np.diff(start, axis=2), np.nan))


def _usual(start: Floats, free: Array) -> Floats:
    """[R, P - 1] usual ns from being ready for a collective to being ready for the next, where both are known."""
    return _often(np.where(free[:, :, :-1] & free[:, :, 1:], np.diff(start, axis=2), np.nan))


def ready_ranks(grid: Grid, rows: Array, where: Ints) -> tuple[Floats, Array]:
    """[R, N, P] when each rank began each collective, and whether it was ready for it no sooner; the first row's gaps
    tell whether the others queue."""
    start, stop = grid.start[rows][:, where], (grid.start + grid.duration)[rows][:, where]
    gap = start[:, :, 1:] - stop[:, :, :-1]
    own, least = median(gap[0], axis=0), np.full((len(rows), gap.shape[2]), QUEUED_NS)
    least[1:] = np.fmax(least[1:], own * np.where(own < _QUEUE_LEAVES, _READY_SOON, _READY))
    free = np.ones(start.shape, bool)
    free[:, :, 1:] = gap > least[:, None]
    return start, free


def _between(start: Floats, free: Array, mine: Floats) -> Floats:
    """[P - 1] ns that the peers of the first row take, where they queue for some collectives and not for a later one.

    Their time from one collective without a queue to the next such is known, and split in the rank's own ratio.
    """
    found = np.full(len(mine), np.nan)
    places = np.flatnonzero(np.mean(free[1:], axis=(0, 1)) >= _OFTEN)
    for one, other in zip(places[:-1].tolist(), places[1:].tolist(), strict=True):
        both = free[1:, :, [one]] & free[1:, :, [other]]
        took = _often(np.where(both, start[1:, :, [other]] - start[1:, :, [one]], np.nan))
        own = mine[one:other]
        if own.sum() > 0:
            found[one:other] = own * np.minimum(median(took[:, 0]) / own.sum(), 1.0)
    return found


def _often(took: Floats) -> Floats:
    """[R, P] medians over steps, of what is known of most of them."""
    known = np.mean(~np.isnan(took), axis=1)
    return np.where(known >= _OFTEN, median(took, axis=1), np.nan)


def _of_alike(mine: Floats, exact: Floats, most: Floats, token: Ints) -> Floats:
    """[P] what the peers take before each collective: what is known there, or else before messages alike.

    Else they are faster as they are elsewhere, by as much or in the same ratio, whichever is less.
    """
    found, bound = exact.copy(), np.fmin(most, mine)
    for kind in np.unique(token):
        mask = token == kind
        found[mask] = np.where(np.isnan(found[mask]), median(exact[mask]), found[mask])
        bound[mask] = np.fmin(bound[mask], np.fmin.reduce(most[mask]))
    known = exact if not np.isnan(exact - mine).all() else bound
    compared = np.flatnonzero(~np.isnan(known - mine))
    if not len(compared):
        return mine
    mean = np.mean if known is exact else np.max  # what is longer at least is so nowhere too much
    less = max(float(mean(mine[compared] - known[compared])), 0.0)
    ratio = 1 - max(float(mean(1 - known[compared] / mine[compared])), 0.0)
    return np.where(np.isnan(found), np.fmin(bound, np.maximum(mine - less, ratio * mine)), found)


def _end(took: Floats, transfer: Floats) -> float:
    """When the last of these collectives ends, each as soon as the rank is ready and the one before has ended."""
    ready, end = 0.0, float(transfer[0])
    for computed, sent in zip(took.tolist(), transfer[1:].tolist(), strict=True):
        ready += computed
        end = max(ready, end) + sent
    return end


#: Largest loss that counts: NCCL's kernels use a quarter of a GPU's processors at most.
_MOST = 0.5
#: The loss per ms of waiting is known if its standard error is no larger than this, and it is this many times that
#: error.
_SURE, _BEYOND_CHANCE = 0.1, 2.0

#: … and if this many places of a step show it, each in most steps. Where ranks queue at most places, only long
#: computing is visible after a long wait.
_PLACES, _MOSTLY = 5, 0.5


def taken_off(start: Floats, took: Floats, lost: float) -> Floats:
    """[R, N, P] ns: starts of a step's collectives, less what was ``lost`` during the earlier ones that took
    ``took``."""
    fixed: Floats = start.copy()
    fixed[:, :, 1:] -= lost * np.cumsum(or_zero(_waited(took))[:, :, :-1], axis=2)
    return fixed


def slower(start: Floats, took: Floats, free: Array) -> float:
    """Ms by which computing takes longer for each ms that an overlapped collective waits; 0 where that does not show.

    ``start`` and ``took`` [R, N, P] ns are of a step's collectives, which a rank began as soon as it was ready where
    ``free``. A longer time after a longer wait shows the effect, from step to step. A rank that begins a collective
    early waits longer, and for that alone takes longer until the next; so the wait before it is used instead.
    """
    waited = _waited(took)
    shown = free[:, :, 1:-1] & free[:, :, 2:]
    if int(np.sum(shown.mean(axis=(0, 1)) > _MOSTLY)) < _PLACES:
        return 0.0
    alone = np.where(shown, np.diff(start, axis=2)[:, :, 1:], np.nan)
    longer, adjacent, before = (_beyond_usual(values) for values in (alone, waited[:, :, 1:-1], waited[:, :, :-2]))
    known = ~np.isnan(longer + adjacent + before)
    longer, adjacent, before = longer[known], adjacent[known], before[known]
    together = float(before @ adjacent)
    if not together > 0:
        return 0.0
    found = float(before @ longer) / together
    unsure = float(np.sqrt((before**2) @ (longer - found * adjacent) ** 2)) / together
    return min(found, _MOST) if unsure < _SURE and found > _BEYOND_CHANCE * unsure else 0.0


def _waited(took: Floats) -> Floats:
    return np.asarray(took - np.fmin.reduce(took, axis=0))


def _beyond_usual(values: Floats) -> Floats:
    return np.asarray(values - median(values, axis=1)[:, None])
