"""Launch-bound ranks: which GPU waits for its host to launch work, and how late that makes its rank.

If a recording has the time at which a collective was enqueued, it shows how long its kernel waited on the GPU. Near
zero, the GPU had caught up with its host: events around forward then time the launching, not the computing.

Without enqueue times, host phases show it. A GPU is launch-bound if it had finished the step before when its host had
the next batch. It is, too, if it runs a step's first collective as soon as its host has launched forward. A GPU still
busy when all of forward was launched had work throughout: the time between the two steps' collectives is its own.

Launch-bound ranks are late at most by what their hosts are slower than the others'. The slowest host sets the pace, and
its GPU idles for the time that the others are ahead: that is their lead, not what fixing it would save. Between any two
marks that all hosts make, a slow one takes longer. Another waits there, also for its own GPU, whose queue is full.

Where no host marked its steps, its operations show the same: how long it took from one to the next. The others' hosts,
ahead of it, may wait for their GPUs meanwhile; their fastest steps show how long they need. A host that needs about as
long is not slow. One within the usual differences of launching is neither named nor cleared.

Where all ranks meet at once, hosts are lanes (:mod:`hindmost_judge.graph.host_paced`). How late hosts make their
ranks is found here for those that pass on micro-batches, or wait in several places.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hindmost_judge.blocks import Blocks
from hindmost_judge.model import Run, Table, has_launches
from hindmost_judge.stats import segmentation
from hindmost_judge.stats.robust import (
    SAMPLE,
    average,
    median,
    median_error,
    or_zero,
    peers_median,
    percentile,
    spread,
    sums_by_step,
    with_peers,
)
from hindmost_judge.timeline import cohorts
from hindmost_judge.timeline.overlap import waits_for_each
from hindmost_judge.types import Array, Floats, Ints

#: Most work queued at a step's end on a launch-bound GPU; a busy GPU has 0.5 or more (of the step).
HOST_BOUND_QUEUED = 0.25
#: Share of the step in which the host launches; with less, it waits for something (of the step).
HOST_BOUND_LAUNCHING = 0.8
#: The host's forward takes at least this share of its GPU's, which follows kernel by kernel (of the GPU's forward).
HOST_BOUND_IN_STEP = 0.85

#: A GPU has caught up with its host if a kernel waits at most this share of a step longer than the shortest wait.
_CAUGHT_UP = 0.05
#: GPU clocks were 0.5 to 3 ms off their host's: a kernel that seems to wait longer than this (ns) did wait.
CLOCKS_NS = 4e6
#: Share of the marks that may be off; and a kernel that began later than this share of a step did not begin at once.
_OFF, _AT_ONCE = 0.05, 0.125
#: Other traffic on a link makes copies longer by less than this factor.
_NO_COPY = 10.0


def launch_bound_steps(blocks: Blocks, rows: slice = slice(None)) -> Array | None:
    """[R, S] in which steps a GPU of these ranks ran its forward as its host launched it; ``None``: nothing tells."""
    grid, gpu = blocks.joined, blocks.parts.get("gpu_forward")
    if grid is None or not grid.gpu_time or gpu is None or blocks.ended is None or blocks.took is None:
        return None
    enqueue, start = grid.enqueue[rows], grid.start[rows]
    if np.isnan(start).all():
        return None
    if np.isnan(enqueue).all():
        marks = _marks(blocks, rows)
        if marks is None:
            return None
        optimizer = blocks.parts.get("gpu_optimizer", np.zeros_like(gpu))[rows]
        fed = _followed(marks.lag, blocks) | (marks.done + optimizer < marks.ready)
        return np.asarray(fed & (blocks.parts["forward"][rows] >= HOST_BOUND_IN_STEP * gpu[rows]))
    enqueue, start = enqueue[:, blocks.starts], start[:, blocks.starts]
    began = blocks.ended[rows] - blocks.took[rows]
    if "input" in blocks.parts:
        began = began + or_zero(blocks.parts["input"][rows])
    host = enqueue - began
    known = caught_up(start - enqueue, blocks)  # the GPU's clock less the host's included
    return np.asarray(known & (host >= HOST_BOUND_IN_STEP * gpu[rows]))


def caught_up(waited: Floats, blocks: Blocks) -> Array:
    """[R, K] where what waited [R, K] ns on its GPU, its clock less the host's included, ran as it was launched."""
    least = np.fmin.reduce(waited, axis=1)[:, None]  # clocks differ by the same all along
    return np.asarray((waited - least <= _CAUGHT_UP * blocks.step_ns) & (least <= CLOCKS_NS))


def _followed(lag: Floats, blocks: Blocks) -> Array:
    """[R, S] the same by marks, of which a few are off: in how long hosts take to launch their GPUs caught up."""
    shortest = np.sort(lag, axis=1)[:, int(_OFF * lag.shape[1])][:, None]
    most = min(CLOCKS_NS, _AT_ONCE * blocks.step_ns)
    return np.asarray((lag - shortest <= _CAUGHT_UP * blocks.step_ns) & (lag <= most))


class _Marks(NamedTuple):
    """[R, S] ns of a step's marks on GPU and host.

    When the GPU was ``done`` with the step before (its last collective); when the host was ``ready`` to launch
    forward; how long after all of that was launched the step's first collective began (``lag``); and how long that
    was after the step before (``span``). Host work in no phase may be before forward or after the optimizer:
    ``unnamed`` is by how much later the host may have been ready, and have launched.
    """

    done: Floats
    ready: Floats
    forward: Floats
    lag: Floats
    span: Floats
    unnamed: Floats


def _marks(blocks: Blocks, rows: slice | Array) -> _Marks | None:
    """How far hosts and GPUs of these ranks had come; ``None`` if forward is unmarked or collectives are untimed."""
    grid, forward = blocks.joined, blocks.parts.get("forward")
    if grid is None or forward is None or blocks.ended is None or blocks.took is None or len(blocks.steps) < 2:
        return None
    start, stop = grid.start[rows], (grid.start[rows] + grid.duration[rows])
    first, last = start[:, blocks.starts], stop[:, np.append(blocks.starts[1:], grid.columns) - 1]
    done = np.full(first.shape, np.nan)
    done[:, 1:] = np.where(np.diff(blocks.steps) == 1, last[:, :-1], np.nan)
    ready = blocks.ended[rows] - blocks.took[rows]
    for name in ("input", "h2d"):
        if name in blocks.parts:
            ready = ready + or_zero(blocks.parts[name][rows])
    lag = first - ready - forward[rows]
    after = sum(or_zero(blocks.parts[name][rows]) for name in ("backward", "optimizer") if name in blocks.parts)
    unnamed = np.maximum(blocks.ended[rows] - after - forward[rows] - ready, 0.0)
    return _Marks(done, ready, forward[rows], lag, first - done, unnamed)


def timed(blocks: Blocks, row: int, columns: Array) -> Blocks:
    """The blocks with the GPU's forward times filled in for those of the steps ``columns`` (indices) without any event.

    Only where none was timed on this rank and its GPU had work throughout. Besides forward, the time between two
    steps' collectives holds what surrounds it: as much as in other steps of the rank. Its growth counts as forward,
    but for copies. Where these were not timed either, it is forward if copies would have to be many times as long as
    ever; more copies would be more to compute.
    """
    gpu = blocks.parts.get("gpu_forward")
    if gpu is None or not np.isnan(gpu[row, columns]).all():
        return blocks
    rows, marks = with_peers(row, len(blocks.ranks), SAMPLE), _marks_with_peers(blocks, row)
    if marks is None:
        return blocks
    own, copies = np.where(_busy(marks), marks.span, np.nan), blocks.parts.get("h2d")
    if copies is not None:
        copied = copies[rows]
        own = own - or_zero(np.where(np.isnan(copied), median(copied, axis=1)[:, None], copied))
    forward = (own - median(own - gpu[rows], axis=1)[:, None])[:, columns]
    unknown = copies is not None and bool(np.isnan(copies[row, columns]).any())
    if unknown and not average(_beyond_peers(forward)) > _NO_COPY * float(np.nanmax(copied, initial=0.0)):
        return blocks
    filled = gpu.copy()
    where = np.ix_(rows, columns)
    filled[where] = np.where(np.isnan(gpu[where]), forward, gpu[where])
    return replace(blocks, parts=blocks.parts | {"gpu_forward": filled})


#: Phases on the GPU that hold what it idled.
_TIMED = ("gpu_forward", "gpu_backward", "gpu_optimizer")


def apart(blocks: Blocks, row: int, columns: Array) -> tuple[float, Blocks | None]:
    """Ns a step, over the steps ``columns`` (indices), by which a rank's GPU takes longer as its host launches,
    and the blocks without that: ``None`` where that is most of the steps that were timed.
    """
    forward = blocks.parts.get("gpu_forward")
    known = columns[~np.isnan(forward[row, columns])] if forward is not None else columns
    if not len(known):
        return idled(blocks, row, columns), blocks
    starvation = launch_bound_steps(blocks, slice(row, row + 1))
    if forward is None or starvation is None or not starvation[0, columns].any():
        return 0.0, blocks
    fed = columns[starvation[0, columns]]
    others = np.delete(np.arange(len(blocks.ranks)), row)
    longer = float(np.nansum(forward[row, fed] - median(forward[np.ix_(others, fed)], axis=0))) / len(known)
    if 2 * len(fed) > len(known):
        return max(longer, idled(blocks, row, columns)), None
    parts = dict(blocks.parts)
    for name in (name for name in _TIMED if name in parts):
        parts[name] = parts[name].copy()
        parts[name][row, fed] = median(parts[name][np.ix_(others, fed)], axis=0)
    return longer, replace(blocks, parts=parts)


def idled(blocks: Blocks, row: int, columns: Array) -> float:
    """Ns a step, over the steps ``columns`` (indices), for which a rank's GPU idled before the first collective beyond
    its typical peer's; 0 where nothing tells.

    Where it had caught up with its host by then, it idled for all that it came later by: what it had to do was done.
    Elsewhere it idled at least from the end of the step before until its host could launch more, but for the optimizer.
    """
    marks = _marks_with_peers(blocks, row)
    if marks is None:
        return 0.0
    caught_up = _followed(marks.lag[:1], blocks)[0, columns]
    later = _beyond_peers(marks.span[:, columns])
    waited = _beyond_peers(np.maximum(marks.ready - marks.done, 0.0)[:, columns])
    return float(np.mean(or_zero(np.where(caught_up, np.fmax(later, waited), waited))))


def _beyond_peers(times: Floats) -> Floats:
    return np.asarray(times[0] - median(times[1:], axis=0))


def _marks_with_peers(blocks: Blocks, row: int) -> _Marks | None:
    """The marks of a rank, first, and of its peers, of many a sample."""
    if blocks.joined is None or not blocks.joined.gpu_time:
        return None
    return _marks(blocks, with_peers(row, len(blocks.ranks), SAMPLE))


def _busy(marks: _Marks) -> Array:
    """[R, S] in which steps a GPU surely had work from the last collective of the step before to the first of this one.

    It was still busy when its host could launch more, and when that launch was complete. If its queue was full and its
    host had to wait, it had more work left by then than a usual step has; a GPU that had run out has less.
    """
    launched = marks.ready + marks.unnamed + marks.forward
    left = marks.lag - marks.unnamed > float(median(marks.span)) + CLOCKS_NS
    more = marks.done > launched + CLOCKS_NS
    return np.asarray((marks.done > marks.ready + marks.unnamed + CLOCKS_NS) & (more | left))


def queued_share(blocks: Blocks) -> Floats:
    """[R, S] share of the step for which a GPU still ran the step's collectives when its host had ended the step."""
    assert blocks.joined is not None  # noqa: S101 - find() has looked
    assert blocks.ended is not None  # noqa: S101
    stop = blocks.joined.start + blocks.joined.duration
    last = np.append(blocks.starts[1:], blocks.joined.columns) - 1
    return np.asarray((stop[:, last] - blocks.ended) / blocks.step_ns)


def launching_share(blocks: Blocks) -> Floats:
    """[R, S] share of the step that a host spent in it and not in its input; of its own where that took longer than
    the job's, for hosts are steps ahead of their GPUs."""
    assert blocks.took is not None  # noqa: S101 - it comes with ``ended``
    launching = blocks.took - np.nan_to_num(blocks.parts.get("input", 0.0))
    return np.asarray(launching / np.fmax(blocks.period, blocks.took))


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
#: Gathers of parameters that sharded training has on the way at most, unless it is set to have more.
_GATHERS = 2
#: Hosts compared with: enough for a typical value, whatever the size of the job.
_HOSTS_SAMPLE = 16


def late_by_hosts(blocks: Blocks, run: Run) -> Blocks:
    """The blocks with ranks whose GPUs wait for their hosts as late as these are slow, where launches tell that."""
    fed = waits_for_host(blocks)
    if fed is None or not has_launches(run.collectives):
        return _late_by_phases(blocks)
    if blocks.joined is not None and waits_for_each(blocks.joined):
        return blocks  # no host is ahead
    fed = _with_blind(fed, blocks)
    if not _marked(blocks):
        return _late_by_unmarked_hosts(blocks, run.collectives, fed)
    without = _without_marks(blocks)
    if without.any():
        blocks = _late_by_unmarked_hosts(blocks, run.collectives, fed & without)
    late = fed & ~without & (or_zero(blocks.delay) > 0)
    share = np.ones(blocks.delay.shape)
    rows = np.flatnonzero(late.sum(axis=1) >= _ENOUGH).tolist()
    if not rows:
        return blocks
    hosts = LaunchingHosts(run.collectives, blocks, fed)
    # Hosts that are held up before each gather launch as late as their GPUs compute: that none is slower tells nothing.
    held_up = blocks.joined is not None and waits_for_each(blocks.joined, gathers=_GATHERS)
    computed = np.where(_blind(blocks)[:, None], 0.0, computed_delay(blocks))
    for row in rows:
        windows = alike_steps(np.flatnonzero(late[row]), blocks.delay[row])
        found = [(columns, hosts.slower(row, columns)) for columns in windows]
        known = [(at, max(ns, float(median(computed[row, at])))) for at, ns in found if ns is not None]
        if held_up:
            known = [(columns, slower) for columns, slower in known if slower > 0]
        if held_up and 2 * len(known) < len(windows):
            continue
        for columns, slower in known:
            if slower < (delay := float(blocks.delay[row, columns].mean())):
                share[row, columns] = slower / delay
    if (share == 1.0).all():
        return blocks
    taken = np.where(_blind(blocks)[:, None], or_zero(blocks.delay) * (1.0 - share), 0.0)
    return _reduced(blocks, share, taken.mean(axis=1))


def _reduced(blocks: Blocks, share: Floats, unsure: Floats) -> Blocks:
    """The blocks with this ``share`` [R, S] of each delay, and ``unsure`` [R] ns a step more that is unsure."""
    return replace(
        blocks,
        delay=blocks.delay * share,
        intervals=blocks.intervals * share[:, blocks.interval_step],
        caused=blocks.caused * share,
        unsure=unsure + (blocks.unsure if blocks.unsure is not None else 0.0),
    )


#: Host phases whose own times are compared, the rest of the step besides.
_HOST_PHASES = ("input", "device_copy", "forward", "backward", "optimizer")
#: A GPU runs as its host launches if their forwards differ by the same in each step: typically by this share of what
#: its host's forward varies by. So many timed forwards tell.
_THE_SAME, _TIMED_FORWARDS = 0.3, 4


def _late_by_phases(blocks: Blocks) -> Blocks:
    """The blocks with ranks whose GPUs run as launched as late as their hosts' phases are longer than their peers'.

    Such a GPU comes a whole step late where the others' hosts are a step ahead: it costs what its host works longer. No
    launch was recorded, and clocks of host and GPU differ by as much as a short step: only durations tell. A rank of
    which they tell nothing is in ``unsure``.
    """
    gpu, host = (blocks.parts.get(name) for name in ("gpu_forward", "forward"))
    if gpu is None or host is None or blocks.took is None or not blocks.overlapped:
        return blocks
    late = or_zero(blocks.delay) > _LEAST * blocks.step_ns
    known = late & ~np.isnan(gpu) & ~np.isnan(host)
    rows = [row for row, each in enumerate(known) if _as_launched(host[row, each], gpu[row, each])]
    if not rows:
        return blocks
    phases = [or_zero(blocks.parts[name]) for name in _HOST_PHASES if name in blocks.parts]
    phases.append(or_zero(blocks.took) - sum(phases))
    usual = [_least_waiting(phase[:: -(-len(late) // _HOSTS_SAMPLE)]) for phase in phases]
    share, unsure = np.ones(late.shape), np.zeros(len(late))
    for row in rows:
        longer = sum(
            np.maximum(segmentation.levels(phase[row]) - least, 0.0) for phase, least in zip(phases, usual, strict=True)
        )
        longer = np.where(longer >= _UNMARKED_LEAST * blocks.step_ns, longer, 0.0)
        share[row, late[row]] = np.minimum(longer[late[row]] / blocks.delay[row, late[row]], 1.0)
        if not share[row, late[row]].any():
            unsure[row] = np.mean(or_zero(blocks.delay[row]) * (1.0 - share[row]))
    idle = {name: blocks.parts[name] for name in _TIMED if name in blocks.parts}  # much of these is idle time
    parts = blocks.parts | {name: np.where(share < 1.0, np.nan, part) for name, part in idle.items()}
    return _reduced(replace(blocks, parts=parts), share, unsure)


def _as_launched(took: Floats, ran: Floats) -> bool:
    """Whether a GPU's forwards ``ran`` [N] ns, step by step, as long as its host ``took`` for them."""
    if len(took) < _TIMED_FORWARDS:
        return False
    return spread(ran - took) < _THE_SAME * spread(took)


def _least_waiting(phase: Floats) -> float:
    """Ns that a phase takes, from [R, S]: hosts that are ahead wait in it, so early ones of a few hosts tell, at
    times at which they wait least."""
    early = np.sort([segmentation.levels(row) for row in phase], axis=0)[(len(phase) - 1) // 4]
    return percentile(early, 100 * _FASTEST)


def computed_delay(blocks: Blocks) -> Floats:
    """[R, S] ns that a stage's GPU takes longer with work queued than those of its replicas: late for that, whatever
    else it waits for its host; 0 where nothing tells."""
    if blocks.starvation is None:
        return np.zeros(blocks.delay.shape)
    return or_zero(cohorts.beyond_peers(blocks.self_time - blocks.starvation, blocks.cohort))


def alike_steps(steps: Ints, late: Floats) -> list[Ints]:
    """Steps (indices), in which a rank is ``late`` [S], as they are judged: those in a row together, stalls apart.

    What takes a host longer in one step of eight is nothing that it typically does.
    """
    by_size = steps[np.argsort(late[steps])]
    sums = np.cumsum(late[by_size])
    typical = late[by_size[np.searchsorted(sums, sums[-1] / 2)]]  # half of all delay is in steps as late as that
    large = late[steps] > typical / 2
    if large.sum() < _ENOUGH or typical <= _STALL * median(late[steps]):
        large[:] = False
    groups = [np.array_split(size, max(len(size) // _WINDOW, 1)) for size in (steps[~large], steps[large])]
    return [window for group in groups for window in group if len(window)]


def waits_for_host(blocks: Blocks, rows: slice = slice(None)) -> Array | None:
    """[R, S] in which steps GPUs of these ranks ran most as their hosts launched it; ``None`` where nothing tells."""
    grid = blocks.joined
    if grid is None or not grid.gpu_time or np.isnan(grid.enqueue).all() or np.isnan(grid.start).all():
        return None
    waited = grid.start[rows] - grid.enqueue[rows]
    at_once = caught_up(waited, blocks)
    if not _marked(blocks):  # nothing runs before its launch, and such a host's launch times are unknown
        at_once &= (np.fmin.reduce(waited, axis=1) >= -CLOCKS_NS)[:, None]
    counts = np.diff(np.append(blocks.starts, grid.columns))
    fed = 2 * np.add.reduceat(at_once, blocks.starts, axis=1, dtype=np.int64) > counts
    if blocks.overlapped:  # a step's first collective may begin as launched, and its last one in a queue
        late = np.maximum(or_zero(peers_median(grid.duration) - grid.duration)[rows], 0.0)
        begins = 2 * sums_by_step(np.where(at_once, late, 0.0), blocks.starts) > sums_by_step(late, blocks.starts)
        if not grid.gathers.any():  # where hosts say what they did, that tells; else a host that mostly sets the pace
            unlogged = _without_marks(blocks)[rows] if _marked(blocks) else True
            begins &= unlogged & (2 * begins.sum(axis=1) > begins.shape[1])[:, None]
        fed |= begins
    return np.asarray(fed)


def _marked(blocks: Blocks) -> bool:
    """Whether hosts say when each step began, when it had its input, and when it ended."""
    return blocks.ended is not None and blocks.took is not None and "input" in blocks.parts


def _without_marks(blocks: Blocks) -> Array:
    """[R, S] where a rank's step has no known end, or no peer's has.

    Its log is missing, or comes later: what its host needs is known by its operations only."""
    assert blocks.ended is not None  # noqa: S101 - _marked() has looked
    without = np.asarray(np.isnan(blocks.ended))
    if not without.any():
        return without
    logged = np.zeros((blocks.cohort.max() + 1, without.shape[1]), np.int64)
    np.add.at(logged, blocks.cohort, ~without)
    alone = (logged[blocks.cohort] == 1) & (np.bincount(blocks.cohort)[blocks.cohort] > 1)[:, None]
    return np.asarray((without | alone) & ~_blind(blocks)[:, None])


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


class Hosts:
    """When hosts enqueued what all of them do in each step."""

    def __init__(self, collectives: Table, blocks: Blocks) -> None:
        known = np.flatnonzero(collectives["enqueue_ns"] >= 0)
        order = known[np.lexsort((collectives["enqueue_ns"][known], collectives["rank"][known]))]
        times, ranks = collectives["enqueue_ns"][order].astype(np.float64), collectives["rank"][order]
        bounds = (np.searchsorted(ranks, blocks.ranks, side).tolist() for side in ("left", "right"))
        calls = [slice(begin, end) for begin, end in zip(*bounds, strict=True)]
        self.blocks, self._enqueued = blocks, [times[mine] for mine in calls]
        self._operations = [collectives["op"][order[mine]] for mine in calls]
        self._known: dict[int, tuple[Floats, tuple[str, ...]]] = {}

    def gaps(self, row: int) -> tuple[Floats, tuple[str, ...]]:
        """[S, M] ns from each mark of a step to the next, NaN of unusual steps; and which operations it enqueues."""
        if row not in self._known:
            self._known[row] = self._measured(row)
        return self._known[row]

    def others(self, row: int) -> Ints:
        """Rows of the hosts that one is compared with."""
        others = np.flatnonzero(self.blocks.cohort == self.blocks.cohort[row])
        others = others[others != row]
        return np.asarray(others[:: -(-len(others) // _HOSTS_SAMPLE) or 1])

    def _measured(self, row: int) -> tuple[Floats, tuple[str, ...]]:
        """From each operation of a step to the next, the first since the step before."""
        assert self.blocks.joined is not None  # noqa: S101 - known GPU waits imply it
        times, ended = self._enqueued[row], np.fmax.reduceat(self.blocks.joined.enqueue[row], self.blocks.starts)
        bounds = np.searchsorted(times, ended, side="right")
        counts = np.diff(bounds)
        if not (counts > 0).any():
            return np.full((len(ended), 1), np.nan), ()
        usual = int(np.bincount(counts[counts > 0]).argmax())
        steps = np.flatnonzero(counts == usual) + 1
        took = np.full((len(ended), usual), np.nan)
        took[steps] = np.diff(times[bounds[steps - 1][:, None] + np.arange(-1, usual)], axis=1)
        first = bounds[steps[0] - 1]
        return took, tuple(self._operations[row][first : first + usual].tolist())


class LaunchingHosts(Hosts):
    """The same of hosts that mark their steps: when each begins, has its input, and ends."""

    def __init__(self, collectives: Table, blocks: Blocks, fed: Array) -> None:
        super().__init__(collectives, blocks)
        self._fed = fed

    def slower(self, row: int, steps: Ints) -> float | None:
        """Ns a step by which a host is slower than its typical peer in these steps (indices); ``None``: unknown."""
        between, does = self.gaps(row)
        others = self.others(row)
        asked = [self.gaps(one) for one in others.tolist()]
        if does:
            ahead = 2 * self._fed[np.ix_(others, steps)].sum(axis=1) < len(steps)
            known = [(gaps, one) for (gaps, operations), one in zip(asked, ahead, strict=True) if operations == does]
            little = _HELD_LEAST * self.blocks.step_ns
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
        return float(longer[slow & (longer > _LEAST * self.blocks.step_ns)].sum())

    def _measured(self, row: int) -> tuple[Floats, tuple[str, ...]]:
        """From each mark to the next, the last one the next step's first."""
        blocks, times = self.blocks, self._enqueued[row]
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


#: Steps with a delay beyond this many times the rank's usual one are judged apart: they are stalls.
_UNMARKED_STALL = 2.0
#: A host's fastest intervals: this share of the steps in which its GPU waited for it.
_FASTEST = 0.1
#: A host is slow if these take this share more than the typical peer's fastest, and more by this share of a step.
#: Without a fault, hosts differ by up to two thirds for tens of steps, and by 1.4 % of a step.
_UNMARKED_SLOWER, _UNMARKED_LEAST = 1.0, 0.02
#: … and by this share from one step to the next, which covers enough of a step to even out differences: up to a fifth
#: in jobs without a fault, two thirds and more with slow input.
_SLOWER_BETWEEN = 0.5
#: … which applies to intervals with this share of a step's launching. Where parameters are gathered throughout, or in
#: steps of several rounds, the time before the first operation is one launch among many.
_MUCH = 0.25


def _late_by_unmarked_hosts(blocks: Blocks, collectives: Table, fed: Array) -> Blocks:
    """The blocks with ranks as late as their hosts are slow in the steps in which their GPUs waited for these, ``fed``
    [R, S]; what else they seemed to be late by there is in ``unsure``."""
    delay = or_zero(blocks.delay)
    late = fed & (delay > 0)
    share, unsure = np.ones(blocks.delay.shape), np.zeros(len(blocks.ranks))
    hosts = Hosts(collectives, blocks)
    for row in np.flatnonzero(late.any(axis=1)).tolist():
        stalls = late[row] & (delay[row] > _UNMARKED_STALL * median(delay[row, late[row]]))
        for steps in (late[row] & ~stalls, stalls):
            if not steps.any():
                continue
            mean = float(delay[row, steps].mean())
            slower = min(slower_in_fastest(hosts, row, steps) or 0.0, mean)
            share[row, steps] = slower / mean
            unsure[row] += (mean - slower) * float(steps.mean())
    return _reduced(blocks, share, unsure)


def slower_in_fastest(hosts: Hosts, row: int, steps: Array) -> float | None:
    """Ns a step by which a host is slower than its typical peer can be in these steps [S]; ``None``: unknown."""
    took, does = hosts.gaps(row)
    known = steps & ~np.isnan(took).any(axis=1)
    asked = [hosts.gaps(one) for one in hosts.others(row).tolist()]
    peers = [np.fmin.reduce(intervals, axis=0) for intervals, operations in asked if operations == does and does]
    if not peers or not known.any():
        return None
    own, theirs = np.quantile(took[known], _FASTEST, axis=0), median(np.array(peers), axis=0)
    longer = own - theirs
    most = _UNMARKED_SLOWER * theirs
    if theirs[0] >= _MUCH * theirs.sum():
        most[0] = _SLOWER_BETWEEN * theirs[0]
    return float(longer[(longer > most) & (longer > _UNMARKED_LEAST * hosts.blocks.step_ns)].sum())
