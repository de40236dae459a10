"""Joins what every rank recorded of one collective, without trusting any clock.

A synchronising collective ends at nearly the same moment on all its members, so its duration is the waiting. The rank
with the shortest duration arrived last, and that duration is about the transfer.

Communicators that do the same for other ranks (the tensor groups of a job, or its data-parallel groups) share columns:
those that look alike (size, spacing of members, operations) and share no rank are one class. Ranks may be laid out with
different spacing of the members of sisters, and a group may log or check what its sisters do not. Such groups are one
class if they are of one size, do about as much, and have every rank between them.

Columns are in one order that keeps the order of every rank, even if ranks are at different places at one time: ranks of
two stages of a pipeline begin a step apart. So the time at which a communicator with ranks of both is called says
little about what each of them ran before.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import numpy as np

from hindmost_judge import encoding
from hindmost_judge.encoding import distinct_integers, numbered
from hindmost_judge.model import ERROR, GPU_TIME, NONBLOCKING, UNMEASURED, Run, Table, rows
from hindmost_judge.stats.robust import median, or_zero
from hindmost_judge.timeline.collective_calls import (
    OWN,
    WAIT,
    awaited_broadcasts,
    is_inside,
    is_rooted,
    is_synchronising,
    messages,
    with_before,
    with_their_waits,
    without_single_members,
)
from hindmost_judge.types import Array, Floats, Ints


@dataclass(frozen=True)
class Grid:
    """Synchronising collectives as blocks: a row a rank, a column an operation that every group of a class ran.

    ``start``, ``enqueue`` (host's clock), ``duration``, ``self_time``, ``cpu`` and ``runqueue`` are [R, K] float ns, or
    NaN: unmeasured; ``start`` is of the rank's own clock; ``peer_wait`` [R, K] what sends and receives took before.
    ``gathers`` [K]: parameters are gathered, or parts of batches exchanged, inside of forward and backward.
    ``group`` [R, C] is the communicator of rank r in class c, -1 where it has none. Columns are in the ranks' order.
    """

    ranks: Ints
    start: Floats
    duration: Floats
    self_time: Floats
    cpu: Floats
    runqueue: Floats
    step: Ints
    seq: Ints
    token: Ints
    comm_class: Ints
    group: Ints
    gpu_time: bool
    gathers: Array
    peer_wait: Floats
    size: Ints
    enqueue: Floats

    @property
    def columns(self) -> int:
        """How many collectives each rank ran."""
        return int(self.duration.shape[1])

    def take(self, columns: Array) -> Grid:
        """The same ranks, only these columns; those that follow one another are not copied."""
        count = len(columns)
        in_a_row = count > 0 and columns[-1] - columns[0] == count - 1 and bool((np.diff(columns) == 1).all())
        chosen = slice(int(columns[0]), int(columns[-1]) + 1) if in_a_row else columns

        def cut(block: Array) -> Array:
            if block.ndim > 1 and not any(block.strides):
                return np.broadcast_to(block[:1, :1], (len(block), count))
            if block.ndim > 1 and block.strides[0] == 0:
                return np.broadcast_to(block[0, chosen], (len(block), count))
            return np.asarray(block[..., chosen])

        by_column: dict[str, Any] = {name: cut(value) for name, value in vars(self).items() if name not in _NO_COLUMNS}
        return replace(self, **by_column)


#: What of a grid has no value for each column.
_NO_COLUMNS = ("ranks", "group", "gpu_time")


def synchronising(collectives: Table, named: tuple[Ints, list[str]]) -> Array:
    """Row mask [N]: finished synchronising operations whose duration is the waiting; ``named`` are the ops' codes."""
    if rows(collectives) == 0:
        return np.zeros(0, bool)
    code, names = named
    wanted = np.array([is_synchronising(name) for name in names])
    usable = (collectives["flags"] & (NONBLOCKING | ERROR)) == 0
    return np.asarray(wanted[code] & usable & (collectives["duration_ns"] >= 0))


def grid(run: Run) -> Grid | None:
    """Join the run's synchronising collectives by communicator, operation and sequence; ``None`` if there are none."""
    code, names = encoding.codes(run.collectives["op"])
    waits = np.array([name == WAIT for name in names], bool)[code]
    meets = np.array([is_synchronising(name) for name in names], bool)[code]
    calls, stays = with_their_waits(run.collectives, waits, meets)
    named = code[stays], names
    table = _of_meetings(calls, named)
    if table is None:
        return None
    joined = _ordered(_in_cells(table))
    return replace(joined, peer_wait=_peer_wait(calls, named, joined))


def _of_meetings(calls: Table, named: tuple[Ints, list[str]]) -> Table | None:
    """The rows whose duration is the waiting, of kernels or else of calls; ``None`` if there are none."""
    code, names = named
    mask = synchronising(calls, named)
    if not mask.any() or (mask & ((calls["flags"] & GPU_TIME) != 0)).any():  # those of hosts count to a meeting
        mask |= awaited_broadcasts(calls, code, np.array([is_rooted(name) for name in names]), mask)
    if not mask.any():
        return None
    table = _with_other_waits(calls, mask, code, names)
    gpu = (table["flags"] & GPU_TIME) != 0
    if gpu.any() and not gpu.all():  # kernels say more than the calls that enqueued them
        table = encoding.chosen(table, gpu)
    return without_single_members(encoding.columns_that_fill(table, "seq"))


def _with_other_waits(calls: Table, meets: Array, code: Ints, names: list[str]) -> Table:
    """The rows ``meets`` [N], each with the rank's other collectives since its last one: their self time and waiting.

    A broadcast's root may wait for some of its receivers (DDP's buffers over gloo), and is late for the next meeting by
    what it waited. Its own work, and that of the rank that it waited for, are what they did outside of both calls.
    """
    usable = (calls["flags"] & (NONBLOCKING | ERROR | GPU_TIME)) == 0
    usable &= ~messages(names)[code] & (calls["duration_ns"] >= 0) & (calls["start_ns"] >= 0)
    if not (usable & ~meets).any() or (usable & meets).sum() < meets.sum():
        return encoding.chosen(calls, meets)
    table, stays = encoding.chosen(calls, meets | usable), meets[meets | usable]
    end = table["start_ns"] + table["duration_ns"]
    found = with_before(table | {"duration_ns": _alone(table)}, stays, (*OWN, "duration_ns"))
    return encoding.chosen(found | {"start_ns": end - found["duration_ns"]}, stays)


def _alone(table: Table) -> Ints:
    """[N] ns of each call in which its rank was in none that began before: gloo runs several of one rank at a time."""
    start, took = table["start_ns"], np.array(table["duration_ns"], np.int64)
    order = np.argsort(start, kind="stable")
    for mine in (order[one] for one in encoding.grouped(table["rank"][order])):
        end = start[mine] + took[mine]
        before = np.maximum.accumulate(end)[:-1]
        took[mine[1:]] = np.maximum(end[1:] - np.maximum(start[mine[1:]], before), 0)
    return took


def _in_cells(table: Table) -> Grid:
    """The rows as blocks, columns in the order in which they first come."""
    op, op_names = encoding.codes(table["op"])
    comm, _ = encoding.factorize(table["comm"])
    ranks, row = numbered(table["rank"])
    klass_of_comm, group = communicator_classes(comm, op, row, table["bytes"], len(ranks))
    comm_class = klass_of_comm[comm]
    key = ((comm_class * (op.max() + 1) + op) << 36) + call_numbers(table, comm, op, comm_class)
    column, keys = encoding.factorize(key)
    count = len(keys)
    shape, cell = (len(ranks), count), row * count + column
    first = encoding.first(np.arange(len(column)), column, count)
    size = table["bytes"][first].astype(np.int64)
    known = table["step"] >= 0  # a rank without step marks does not know it
    return Grid(
        ranks=ranks.astype(np.int64),
        start=_fill(table["start_ns"], cell, shape),
        duration=_fill(table["duration_ns"], cell, shape),
        self_time=_fill(table["self_ns"], cell, shape),
        cpu=_fill(table["cpu_ns"], cell, shape),
        runqueue=_fill(table["runqueue_ns"], cell, shape),
        step=encoding.first(table["step"][known], column[known], count, UNMEASURED),
        seq=table["seq"][first].astype(np.int64),
        token=encoding.factorize((keys >> 36) * (1 << 40) + size)[0].astype(np.int64),
        comm_class=comm_class[first],
        group=group,
        gpu_time=bool(table["flags"][0] & GPU_TIME),  # of all rows, or of none
        gathers=np.array([is_inside(name) for name in op_names])[op[first]],
        peer_wait=np.broadcast_to(0.0, shape),
        size=_sizes(table["bytes"], row, column, size, group),
        enqueue=_fill(table["enqueue_ns"], cell, shape) if "enqueue_ns" in table else np.broadcast_to(np.nan, shape),
    )


#: Communicator classes used less often than this share of the most used class are ignored: barriers now and then, or at
#: start-up.
_SELDOM = 0.02


def _mostly_met(grid: Grid) -> Grid:
    """The grid without classes that rarely meet: without clocks, their columns have no place in the order."""
    met = np.bincount(grid.comm_class, minlength=grid.group.shape[1])
    often = np.flatnonzero(met >= _SELDOM * met.max(initial=0))
    if len(often) == grid.group.shape[1]:
        return grid
    often_met = grid.take(np.flatnonzero(np.isin(grid.comm_class, often)))
    return replace(often_met, comm_class=np.searchsorted(often, often_met.comm_class), group=grid.group[:, often])


def _peer_wait(collectives: Table, named: tuple[Ints, list[str]], grid: Grid) -> Floats:
    """[R, K] ns in sends and receives between a rank's previous collective and this one: waiting for a neighbour."""
    waited = grid.peer_wait
    code, names = named
    chosen = messages(names)
    if not chosen.any():
        return waited
    indices = np.flatnonzero(
        chosen[code] & (collectives["duration_ns"] > 0) & ((collectives["flags"] & NONBLOCKING) == 0)
    )
    if len(indices) == 0 or np.isnan(grid.start).all():
        return waited
    waited = np.zeros_like(grid.start)
    indices = indices[np.lexsort((collectives["start_ns"][indices], collectives["rank"][indices]))]
    of_rank = collectives["rank"][indices]
    bounds = [np.searchsorted(of_rank, grid.ranks, side=side).tolist() for side in ("left", "right")]
    for row, (first, stop) in enumerate(zip(*bounds, strict=True)):
        mine = indices[first:stop]
        start = collectives["start_ns"][mine].astype(np.float64)
        end = np.maximum.accumulate(start + collectives["duration_ns"][mine])
        begun = np.concatenate([[-np.inf], end[:-1]])  # a send and a receive may be one kernel, and are one wait
        before = np.concatenate([[0.0], np.cumsum(np.maximum(end - np.maximum(start, begun), 0.0))])
        total = before[np.searchsorted(start, or_zero(grid.start[row]))]
        waited[row, 1:] = np.maximum(np.diff(np.maximum.accumulate(total)), 0.0)
    return waited


def _sizes(values: Array, row: Array, column: Array, first: Ints, group: Ints) -> Ints:
    """[R, K] bytes of each rank's group in each column; of groups that all say the same, ``first`` [K] is enough."""
    ranks = len(group)
    if (group == group[0]).all() or (values == first[column]).all():
        return np.broadcast_to(first, (ranks, len(first)))
    block = np.zeros((ranks, len(first)), np.int64)
    block[row, column] = values
    return block


def _fill(values: Array, cell: Ints, shape: tuple[int, int]) -> Floats:
    """[R, K] block of one column of the table, each row of it in a ``cell`` [N]; -1 becomes NaN.

    A block without any measurement takes the memory of one number.
    """
    if encoding.is_constant(values) and values[0] == UNMEASURED:
        return np.broadcast_to(np.nan, shape)
    block = np.full(shape[0] * shape[1], np.nan)
    unmeasured = values == UNMEASURED
    block[cell] = np.where(unmeasured, np.nan, values) if unmeasured.any() else values
    return block.reshape(shape)


def _ordered(grid: Grid) -> Grid:
    """Columns in the order in which ranks ran them, by each rank's own clock."""
    if np.isnan(grid.start).all():  # only the order within a communicator is known
        grid = _mostly_met(grid)
        return grid.take(np.lexsort((grid.seq, grid.step)))
    origin = np.fmin.reduce(np.where(_shared(grid), grid.start, np.nan), axis=1, keepdims=True)
    origin = np.where(np.isnan(origin), np.fmin.reduce(grid.start, axis=1, keepdims=True), origin)
    about = median(grid.start - origin, axis=0)
    if (grid.group < 0).any():  # what some ranks run only, others' medians put before or behind what these ran
        return grid.take(in_run_order(grid.start, about))
    return grid.take(np.argsort(about, kind="stable"))


def _shared(grid: Grid) -> Array:
    """[K] columns that at least half of the ranks of their class have: each rank's clock begins at such a column.

    A rank whose agent sends old data begins with columns that no other rank has.
    """
    count = np.sum(~np.isnan(grid.start), axis=0)
    most = np.zeros(grid.comm_class.max() + 1, np.int64)
    np.maximum.at(most, grid.comm_class, count)
    return np.asarray(2 * count >= most[grid.comm_class])


def self_time(grid: Grid, overlapping: Array | None = None) -> Floats:
    """[R, K] ns between the end of a rank's previous collective and the start of this one, on its own clock.

    What the probe measured itself (``self_time``) wins; NaN for the first column and after a gap in the recording.
    Collectives that overlap with computing (``overlapping`` [K]) end no interval of it, and have no self time.
    """
    skipped = np.zeros(grid.columns, bool) if overlapping is None else overlapping
    end = np.where(skipped, np.nan, grid.start + grid.duration)
    between = np.full_like(grid.start, np.nan)
    if grid.columns > 1:
        index = np.where(np.isnan(end), 0, np.arange(end.shape[1]))  # no member of a column's group: it skips that
        previous = np.take_along_axis(end, np.maximum.accumulate(index, axis=1), axis=1)[:, :-1]
        between[:, 1:] = np.maximum(grid.start[:, 1:] - previous - grid.peer_wait[:, 1:], 0.0)
    between[_queued(grid, skipped)] = np.nan
    return np.where(skipped, np.nan, np.where(np.isnan(grid.self_time), between, grid.self_time))


#: A collective that starts this soon after the last one was queued behind it; its start is no arrival time. Queued
#: kernels follow within 20 us.
QUEUED_NS = 30_000.0


def _queued(grid: Grid, overlapping: Array) -> Array:
    """[R, K] which collectives began when an ``overlapping`` [K] one of their class ended: since when the rank was
    ready is unknown."""
    queued = np.zeros(grid.start.shape, bool)
    for comm_class in np.unique(grid.comm_class[overlapping]) if overlapping.any() else ():
        columns = np.flatnonzero(grid.comm_class == comm_class)
        before, after = columns[:-1], columns[1:]
        gap = grid.start[:, after] - (grid.start + grid.duration)[:, before]
        queued[:, after] = (gap <= QUEUED_NS) & overlapping[before]
    return queued


def shortest(grid: Grid) -> Floats:
    """[R, K] the shortest duration among the members of the rank's own group in that column: about the transfer."""
    if grid.group.shape == (len(grid.ranks), 1) and len(np.unique(grid.group)) == 1:
        return np.broadcast_to(np.fmin.reduce(grid.duration, axis=0), grid.duration.shape)
    least = np.full_like(grid.duration, np.nan)
    for comm_class in range(grid.group.shape[1]):
        columns = np.flatnonzero(grid.comm_class == comm_class)
        for one in np.unique(grid.group[:, comm_class]):
            if one < 0:
                continue
            members = np.flatnonzero(grid.group[:, comm_class] == one)
            block = np.ix_(members, columns)
            least[block] = np.fmin.reduce(grid.duration[block], axis=0)
    return least


def in_run_order(start: Floats, about: Floats) -> Ints:
    """[K] the columns of ``start`` [R, K] (NaN: the rank did not run it) so that each rank's own come in its order.

    Where that leaves a choice the one comes first that is ``about`` [K] the earliest; so it does where ranks contradict
    each other.
    """
    after, waiting = _followers(start)
    order: list[int] = []
    done = np.zeros(len(about), bool)
    free = [(about[column], column) for column in np.flatnonzero(waiting == 0).tolist()]
    heapq.heapify(free)
    by_time = iter(np.argsort(about, kind="stable").tolist())
    while len(order) < len(about):
        column = heapq.heappop(free)[1] if free else next(by_time)
        if done[column]:
            continue
        done[column] = True
        order.append(column)
        for follower in after[column]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(free, (about[follower], follower))
    return np.array(order, np.int64)


def _followers(start: Floats) -> tuple[list[list[int]], Ints]:
    """For each column those that some rank ran next, and [K] how many columns come right before each."""
    count = start.shape[1]
    order = np.argsort(start, axis=1, kind="stable")  # NaN goes last
    ran = np.sum(~np.isnan(start), axis=1)
    inside = np.arange(1, count) < ran[:, None]
    edges = np.unique((order[:, :-1] * count + order[:, 1:])[inside])
    after: list[list[int]] = [[] for _ in range(count)]
    for edge in edges.tolist():
        after[edge // count].append(edge % count)
    return after, np.bincount(edges % count, minlength=count)


#: Sister communicators make at most this many times as many calls as each other.
_ABOUT = 2.0
#: Most pairs of classes compared to find sisters of different spacing: all pairs of 90.
MOST_PAIRS = 1 << 13


@dataclass(eq=False)
class CommunicatorClass:
    """Communicators ``comms`` that share no rank, of ``size`` members each, and what the first of them does."""

    size: int
    ops: frozenset[int]
    calls: float
    bytes: int
    comms: list[int] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)

    def likeness(self, other: CommunicatorClass) -> float:
        """How much alike these are in what they do; 0 for such as do other things."""
        if self.size != other.size or not self.ops & other.ops:
            return 0.0
        ratio = min(self.calls, other.calls) / max(self.calls, other.calls)
        return ratio + (self.bytes == other.bytes) if ratio * _ABOUT >= 1 else 0.0


def communicator_classes(comm: Ints, op: Ints, row: Ints, size: Array, ranks: int) -> tuple[Ints, Ints]:
    """Class of each communicator, and [R, C] communicator of each rank in each class, -1 where it has none.

    ``comm``, ``op``, ``row`` and ``size`` [N] are whose call each is, of what, by which rank and of how many bytes.
    """
    members = _parts(comm, row, ranks)
    found = _joined_classes(_alike(members, comm, op, size), ranks)
    comm_class = np.zeros(len(members), np.int64)
    group = np.full((ranks, len(found)), -1, np.int64)
    for number, one in enumerate(found):
        for each in one.comms:
            comm_class[each] = number
            group[members[each], number] = each
    return comm_class, group


def _parts(comm: Ints, part: Ints, count: int) -> dict[int, list[int]]:
    """For each communicator the different values of ``part`` [N], which are below ``count``."""
    found: dict[int, list[int]] = {}
    for pair in distinct_integers(comm.astype(np.int64) * count + part).tolist():
        found.setdefault(pair // count, []).append(pair % count)
    return found


def _alike(members: dict[int, list[int]], comm: Ints, op: Ints, size: Array) -> list[CommunicatorClass]:
    """Communicators of one size, spacing and kinds of operations in one class, as far as they share no rank."""
    ops = _parts(comm, op, int(op.max()) + 1)
    calls = np.bincount(comm)
    first = np.unique(comm, return_index=True)[1]
    found: list[CommunicatorClass] = []
    looking_so: dict[tuple[Any, ...], list[CommunicatorClass]] = {}
    for one, who in members.items():
        sisters = looking_so.setdefault((tuple(m - who[0] for m in who), tuple(ops[one])), [])
        its = next((each for each in sisters if each.ranks.isdisjoint(who)), None)
        if its is None:
            its = CommunicatorClass(len(who), frozenset(ops[one]), float(calls[one]) / len(who), int(size[first[one]]))
            sisters.append(its)
            found.append(its)
        its.comms.append(one)
        its.ranks.update(who)
    return found


def _joined_classes(found: list[CommunicatorClass], ranks: int) -> list[CommunicatorClass]:
    """With those in one class that only together have every rank, the most alike first."""
    left, taken = [one for one in found if len(one.ranks) < ranks], set[int]()
    tries = MOST_PAIRS // max(len(left), 1) if len({rank for one in left for rank in one.ranks}) == ranks else 0
    while left and tries:
        tries -= 1
        one = left.pop(0)
        have, sisters = {*one.ranks}, []
        alike = [(likeness, other) for other in left if (likeness := one.likeness(other)) > 0]
        for _, other in sorted(alike, key=itemgetter(0), reverse=True):
            if have.isdisjoint(other.ranks):
                sisters.append(other)
                have |= other.ranks
        for other in sisters if len(have) == ranks else ():
            one.comms += other.comms
            taken.add(id(other))
            left.remove(other)
    return [one for one in found if id(one) not in taken]


def call_numbers(table: Table, comm: Ints, op: Ints, comm_class: Ints) -> Ints:
    """[N] the number by which calls of a class's communicators belong together: their place among those of their kind
    in their step, for these may make different numbers of others. Their sequence number, where steps are unknown.
    """
    seq: Ints = table["seq"].astype(np.int64)
    step = table.get("step")
    if step is None or (step < 0).any() or comm_class.max() == comm.max():  # each communicator is a class of its own
        return seq
    kind = comm.astype(np.int64) * (int(op.max()) + 1) + op
    calls, call = np.unique((kind << 36) + seq, return_inverse=True)
    in_step = np.full(len(calls), step.max(), np.int64)
    np.minimum.at(in_step, call, step)  # hosts may be at different steps
    place = encoding.ordinals((calls >> 36) * (int(step.max()) + 1) + in_step)
    return np.asarray((in_step * (int(place.max()) + 1) + place)[call])
