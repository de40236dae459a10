"""Delay of launch-bound ranks: at most what their hosts are slower than the others'.

A job whose hosts launch throughout each step moves at the pace of the slowest host. That host's GPU idles for the
time that the others are ahead: the idle time is their lead, not what fixing it would save. Once the lead is used up,
their own hosts set the pace. These take nearly as long between any two marks that all hosts make in a step: it
begins, it has its input, each operation is enqueued, it ends. Where one host takes longer there, it is slow; where
another does, that one waits, also for its own GPU, whose queue is full once it is steps behind. What a host needs
shows before that.

Where all ranks meet at once, hosts are lanes (:mod:`hindmost_judge.timeline.host_lanes`). This stays for those that
gather parameters, pass on micro-batches, or wait in several places.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes import launching, unmarked_steps
from hindmost_judge.model import has_launches
from hindmost_judge.stats.robust import median, median_error, peers_median, sums_by_step
from hindmost_judge.timeline import cohorts, launches

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.model import Run, Table
    from hindmost_judge.types import Array, Floats, Ints

#: Steps in which a host's pace is taken as constant, and the fewest that show it.
_WINDOW, _ENOUGH = 20, 5
#: Steps with a delay beyond this many times the rank's usual one are judged apart: they are stalls.
_STALL = 4.0
#: A host is slow between two marks if it takes this share more than its typical peer, and more by this share of a step.
#: Without a fault, hosts of one job differ by up to a half in launching the same work, for tens of steps.
_SLOWER, _LEAST = 1.0, 0.01
#: … and by this many standard errors.
_SURELY = 3.0
#: A host ahead of its GPU is held up if it typically takes this many times its minimum, and more than that by this
#: share of a step; with less, launching may have become slower.
_HELD, _HELD_LEAST = 2.0, 0.1
#: If GPUs wait for their hosts in this share of the steps, so does a GPU whose launch times are unknown.
_OFTEN = 0.1
#: Hosts compared with: enough for a typical value, whatever the size of the job.
_SAMPLE = 16


def late_by_hosts(blocks: Blocks, run: Run) -> Blocks:
    """The blocks with ranks whose GPUs wait for their hosts as late as these are slow, where launches tell that."""
    fed = waits_for_host(blocks)
    if fed is None or not has_launches(run.collectives):
        return blocks
    if blocks.joined is not None and launches.waits_for_each(blocks.joined):
        return blocks  # no host is ahead
    fed = _with_blind(fed, blocks)
    if not _marked(blocks):
        return unmarked_steps.late_by_hosts(blocks, run.collectives, fed)
    without = _without_marks(blocks)[:, None]
    if without.any():
        blocks = unmarked_steps.late_by_hosts(blocks, run.collectives, fed & without)
    late = fed & ~without & (np.nan_to_num(blocks.excess) > 0)
    share = np.ones(blocks.excess.shape)
    rows = np.flatnonzero(late.sum(axis=1) >= _ENOUGH).tolist()
    if not rows:
        return blocks
    hosts = _Hosts(run.collectives, blocks, fed)
    computed = np.where(_blind(blocks)[:, None], 0.0, _computed(blocks))
    for row in rows:
        for few in _alike(np.flatnonzero(late[row]), blocks.excess[row]):
            slower, excess = hosts.slower(row, few), float(blocks.excess[row, few].mean())
            if slower is not None:
                slower = max(slower, float(median(computed[row, few])))
            if slower is not None and slower < excess:
                share[row, few] = slower / excess
    if (share == 1.0).all():
        return blocks
    taken = np.where(_blind(blocks)[:, None], np.nan_to_num(blocks.excess) * (1.0 - share), 0.0)
    return replace(
        blocks,
        excess=blocks.excess * share,
        segments=blocks.segments * share[:, blocks.segment_step],
        caused=blocks.caused * share,
        unsure=taken.mean(axis=1) + (blocks.unsure if blocks.unsure is not None else 0.0),
    )


def _computed(blocks: Blocks) -> Floats:
    """[R, S] ns that a stage's GPU takes longer with work queued than those of its replicas: late for that, whatever
    else it waits for its host; 0 where nothing tells."""
    if blocks.starved is None:
        return np.zeros(blocks.excess.shape)
    return np.nan_to_num(cohorts.beyond_peers(blocks.own - blocks.starved, blocks.role))


def _alike(steps: Ints, late: Floats) -> list[Ints]:
    """Steps (indices), in which a rank is ``late`` [S], as they are judged: those in a row together, stalls apart.

    What takes a host longer in one step of eight is nothing that it typically does.
    """
    by_size = steps[np.argsort(late[steps])]
    sums = np.cumsum(late[by_size])
    typical = late[by_size[np.searchsorted(sums, sums[-1] / 2)]]  # half of all delay is in steps as late as that
    large = late[steps] > typical / 2
    if large.sum() < _ENOUGH or typical <= _STALL * median(late[steps]):
        large[:] = False
    groups = [np.array_split(some, max(len(some) // _WINDOW, 1)) for some in (steps[~large], steps[large])]
    return [few for group in groups for few in group if len(few)]


def waits_for_host(blocks: Blocks, rows: slice = slice(None)) -> Array | None:
    """[R, S] in which steps GPUs of these ranks ran most as their hosts launched it; ``None`` where nothing tells."""
    grid = blocks.joined
    if grid is None or not grid.gpu_time or np.isnan(grid.enqueue).all() or np.isnan(grid.start).all():
        return None
    waited = grid.start[rows] - grid.enqueue[rows]
    at_once = launching.caught_up(waited, blocks)
    if not _marked(blocks):  # nothing runs before its launch, and such a host's launch times are unknown
        at_once &= (np.fmin.reduce(waited, axis=1) >= -launching.CLOCKS_NS)[:, None]
    counts = np.diff(np.append(blocks.starts, grid.columns))
    fed = 2 * np.add.reduceat(at_once, blocks.starts, axis=1, dtype=np.int64) > counts
    if blocks.overlapped and grid.gathers.any():  # these begin as launched, in a step that may end in a queue
        late = np.maximum(np.nan_to_num(peers_median(grid.duration) - grid.duration)[rows], 0.0)
        fed |= 2 * sums_by_step(np.where(at_once, late, 0.0), blocks.starts) > sums_by_step(late, blocks.starts)
    return np.asarray(fed)


def _marked(blocks: Blocks) -> bool:
    """Whether hosts say when each step began, when it had its input, and when it ended."""
    return blocks.ended is not None and blocks.took is not None and "input" in blocks.parts


def _without_marks(blocks: Blocks) -> Array:
    """[R] ranks whose steps have no known ends, while others' have, or all of whose peers lack them.

    A log is missing, and their hosts' needs are known by their operations only."""
    assert blocks.ended is not None  # noqa: S101 - _marked() has looked
    without = np.asarray(np.isnan(blocks.ended).all(axis=1))
    if not without.any():
        return without
    peers, logged = (np.bincount(blocks.role, count)[blocks.role] for count in (None, ~without))
    return np.asarray((without | ((logged == 1) & (peers > 1))) & ~_blind(blocks))


def _blind(blocks: Blocks) -> Array:
    """[R] ranks of which no operation says when it was enqueued."""
    assert blocks.joined is not None  # noqa: S101 - waits_for_host() has looked
    return np.asarray(~(blocks.joined.enqueue > 0).any(axis=1))


def _with_blind(fed: Array, blocks: Blocks) -> Array:
    """With ranks of unknown launch times, where hosts set the pace: in steps where no other host does."""
    found, each = fed.copy(), fed.sum(axis=0)
    for row in np.flatnonzero(_blind(blocks)).tolist():
        others = each > fed[row]
        if others.mean() >= _OFTEN:
            found[row] = ~others
    return np.asarray(found)


class _Hosts:
    """When hosts did what all of them do in each step."""

    def __init__(self, collectives: Table, blocks: Blocks, fed: Array) -> None:
        self._blocks, self._fed = blocks, fed
        known = (collectives["enqueue_ns"] > 0) & np.isin(collectives["rank"], blocks.ranks)
        rank, enqueued = collectives["rank"][known], collectives["enqueue_ns"][known]
        order = np.lexsort((enqueued, rank))
        bounds = np.searchsorted(rank[order], np.append(blocks.ranks, blocks.ranks[-1] + 1))
        self._enqueued = [enqueued[order[one:end]] for one, end in itertools.pairwise(bounds)]
        operations = collectives["op"][known][order]
        self._operations = [operations[one:end] for one, end in itertools.pairwise(bounds)]
        self._gaps: dict[int, tuple[Floats, tuple[str, ...]]] = {}

    def slower(self, row: int, steps: Ints) -> float | None:
        """Ns a step by which a host is slower than its typical peer in these steps (indices); ``None``: unknown."""
        between, does = self._between(row)
        others = np.flatnonzero(self._blocks.role == self._blocks.role[row])
        others = others[others != row]
        others = others[:: -(-len(others) // _SAMPLE) or 1]
        asked = [self._between(one) for one in others.tolist()]
        if does:
            ahead = 2 * self._fed[np.ix_(others, steps)].sum(axis=1) < len(steps)
            known = [(gaps, one) for (gaps, operations), one in zip(asked, ahead, strict=True) if operations == does]
            little = _HELD_LEAST * self._blocks.step_ns
            peers = [_needed(gaps, steps, little) if one else gaps[steps] for gaps, one in known]
        else:  # between the marks that are left: its input, launching, and what is between two steps
            peers = [_together(gaps[steps]) for gaps, _ in asked]
        if not peers:
            return None
        theirs = median(np.array(peers), axis=0)
        more = between[steps] - theirs
        longer, error = median(more, axis=0), median_error(more.T)
        if np.isnan(longer).all():
            return None
        slow = (longer > _SURELY * error) & (longer > _SLOWER * median(theirs, axis=0))
        return float(longer[slow & (longer > _LEAST * self._blocks.step_ns)].sum())

    def _between(self, row: int) -> tuple[Floats, tuple[str, ...]]:
        """[S, M] ns from each mark of a step to the next, the last one the next step's first, NaN of unusual steps;
        and which operations it enqueues."""
        if row not in self._gaps:
            self._gaps[row] = self._measured(row)
        return self._gaps[row]

    def _measured(self, row: int) -> tuple[Floats, tuple[str, ...]]:
        blocks, times = self._blocks, self._enqueued[row]
        assert blocks.ended is not None  # noqa: S101 - _marked() has looked
        assert blocks.took is not None  # noqa: S101 - it comes with ``ended``
        ended, began = blocks.ended[row], blocks.ended[row] - blocks.took[row]
        bounds = np.searchsorted(times, np.append(began, ended[-1]))
        counts = np.diff(bounds)
        usual = int(np.bincount(counts[counts >= 0], minlength=1).argmax())
        marks = np.full((len(began), usual + 4), np.nan)
        steps = np.flatnonzero(counts == usual)
        marks[steps, 2:-2] = times[bounds[steps][:, None] + np.arange(usual)]
        marks[steps, 0], marks[steps, 1] = began[steps], (began + blocks.parts["input"][row])[steps]
        marks[steps, -2], marks[steps, -1] = ended[steps], np.append(began[1:], np.nan)[steps]
        first = bounds[steps[0]] if len(steps) else 0
        return np.diff(marks, axis=1), tuple(self._operations[row][first : first + usual].tolist())


def _needed(gaps: Floats, steps: Ints, little: float) -> Floats:
    """[N, M] of [S, M] ns that a host ahead of its GPU needs in these steps: where that holds it up, the least."""
    taken, least = gaps[steps], np.fmin.reduce(gaps, axis=0)
    usual = median(taken, axis=0)
    return np.where((usual > _HELD * least) & (usual - least > little), least, taken)


def _together(gaps: Floats) -> Floats:
    """[S, 3] ns for input, for all launching of the step, and to the next one, of [S, M]."""
    return np.stack([gaps[:, 0], gaps[:, 1:-1].sum(axis=1), gaps[:, -1]], axis=1)
