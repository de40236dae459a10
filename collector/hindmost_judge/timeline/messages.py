"""What each rank of a pipeline does in a step: sends, receives and collectives in order, alike in every step.

Only each rank's own clock is read. Steps in which any rank did something else than usual are left out.

- A receive that shares a kernel with a send has the send's end: NCCL takes a kernel's times from its first thread. The
  other side shows when the message was there, since its send ends when it has been taken.
- Messages of all ranks to one rank that it then broadcasts (mpi4py's ``allreduce`` of an object) are one call: no rank
  leaves such a broadcast before all have come. Where ranks compute on the way to the root, as a pipeline's stages do,
  they wait for each other by design, and those calls stay as they are.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np

from hindmost_judge import encoding
from hindmost_judge.encoding import codes
from hindmost_judge.model import ERROR, GPU_TIME, NONBLOCKING, UNMEASURED, Run, Table, rows
from hindmost_judge.stats.robust import median
from hindmost_judge.timeline.collective_calls import OWN, is_synchronising, sums
from hindmost_judge.timeline.matching import QUEUED_NS, Grid
from hindmost_judge.types import Array, Floats, Ints

#: Share of the steps in which all ranks must have done the same for that to be the job's schedule.
_ALIKE = 0.8
#: Most times examined (operations of a step on all ranks, times steps): a replay of more would take too long.
_MOST = 20_000_000
#: Sources that time kernels and groups as a whole, by a part of their names: NCCL itself tells the first thread's time.
_EXACT = ("Kineto", "Flight Recorder")
#: Kinds of operations; a collective's kind is this plus its class of communicators.
SEND, RECEIVE, COLLECTIVE = 0, 1, 2


@dataclass(frozen=True)
class Schedule:
    """Operations of one step, rank by rank and in the order in which each rank entered them: N of them in G steps.

    ``row`` [N] is the rank, ``place`` [N] the operation's ordinal on it, ``kind`` [N] what it is. ``with_whom`` [N] is
    the peer's row of a send or receive and the group of a collective; ``overlapping`` [N] whether computing is known
    not to wait for it. ``start`` and ``end`` [N, G] are ns of the rank's clock, ``begin`` [N, G] when its step before
    ended (NaN: unknown). ``steps`` [G] are indices of the steps. ``exact``: a receive's end is its own, also in a
    kernel shared with a send. ``enqueue`` [N, G] is when the host launched each (its own clock; NaN, or ``None``:
    unknown).
    """

    row: Ints
    place: Ints
    kind: Ints
    with_whom: Ints
    overlapping: Array
    start: Floats
    end: Floats
    begin: Floats
    steps: Ints
    exact: bool = False
    enqueue: Floats | None = None

    def stages(self, ranks: int) -> Ints | None:
        """[R] place of each rank in its pipeline: the first sends before it receives; ``None`` where it is no chain."""
        stage = np.full(ranks, -1, np.int64)
        transfer = self.kind < COLLECTIVE
        who, first = np.unique(self.row[transfer], return_index=True)
        if len(who) < ranks:
            return None
        kind, whom = self.kind[transfer][first], self.with_whom[transfer][first]
        stage[kind == SEND] = 0
        for _ in range(ranks):
            before = np.where(kind == RECEIVE, stage[whom], -1)
            reached = (stage < 0) & (before >= 0)
            if not reached.any():
                break
            stage[reached] = before[reached] + 1
        return None if (stage < 0).any() or stage.max() == 0 else stage


def schedule_of(run: Run, grid: Grid, starts: Ints, overlapping: Array, before: Floats) -> Schedule | None:
    """The schedule of a run whose collectives are this grid; ``None`` where no rank sends to another, or in no order.

    ``starts`` [S] are the first columns of the steps, ``overlapping`` [K] which columns computing does not wait for and
    ``before`` [R] when each rank's last step before these ended.
    """
    sent = transfers(run, grid.ranks)
    if sent is None or np.isnan(grid.start).all():
        return None
    ends = np.concatenate([before[:, None], np.fmax.reduceat(grid.start + grid.duration, starts, axis=1)], axis=1)
    of_columns, of_transfers = _of_columns(grid, starts, overlapping), _of_transfers(sent, ends)
    found = {name: np.concatenate([column, of_transfers[name]]) for name, column in of_columns.items()}
    return _in_order(run, found, ends, found["start"], int(grid.group.max()))


def schedule_of_transfers(run: Run, ranks: Ints, steps: Ints) -> Schedule | None:
    """The schedule of a run in whose ``steps`` [S] the ``ranks`` [R] do nothing together but send to each other.

    The step in which hosts made each call tells which it is of. ``None`` where there is none, or no order, and where
    ranks meet in collectives in the steps.
    """
    sent = transfers(run, ranks)
    if sent is None or np.isin(steps, run.collectives["step"][run.collectives["peer"] < 0]).mean() > 1 - _ALIKE:
        return None
    place = np.minimum(np.searchsorted(steps, sent["number"]), len(steps) - 1)
    mask = steps[place] == sent["number"]
    found = {name: column[mask] for name, column in sent.items()} | {"step": place[mask]}
    if not mask.any():
        return None
    ends = np.full((len(ranks), len(steps) + 1), -np.inf)
    np.maximum.at(ends, (found["row"], found["step"] + 1), found["end"])
    ends[np.isinf(ends)] = np.nan
    called = np.where(np.isnan(found["enqueue"]), found["start"], found["enqueue"])  # kernels that wait start together
    order = _in_order(run, found, ends, called, 0)
    return _together(order) if order is not None else None


def _together(order: Schedule) -> Schedule:
    """With kernels that waited for the same work as begun together, which are some 10 us apart in any order."""
    start = order.start.copy()
    for place in range(1, int(order.place.max()) + 1):
        one = np.flatnonzero(order.place == place)
        ahead = start[one - 1] - start[one]
        start[one] += np.where((ahead > 0) & (ahead <= QUEUED_NS), ahead, 0.0)
    return replace(order, start=start, end=np.maximum(order.end, start))


def _in_order(run: Run, found: Table, ends: Floats, called: Floats, groups: int) -> Schedule | None:
    order = order_of_calls(found, called)
    ordered = _alike({name: column[order] for name, column in found.items()}, ends, groups)
    exact = any(each in (run.job.source or "") for each in _EXACT)
    return replace(ordered, exact=exact) if ordered is not None else None


#: Operations of a rank that begin within this time (ns) of each other belong to one group call and have no order in
#: time.
_AT_ONCE = 2_000.0


def order_of_calls(found: Table, called: Floats) -> Ints:
    """Operations by rank, step and time; sends and receives of one call by kind and peer, alike in every step."""
    order = np.lexsort((found["kind"], called, found["step"], found["row"]))
    before, after = order[:-1], order[1:]
    one = (found["row"][before] == found["row"][after]) & (found["step"][before] == found["step"][after])
    one &= np.maximum(found["kind"][before], found["kind"][after]) < COLLECTIVE
    one &= called[after] - called[before] <= _AT_ONCE
    call = np.cumsum(np.append(True, ~one))
    return np.asarray(order[np.lexsort((found["whom"][order], found["kind"][order], call))])


def transfers(run: Run, ranks: Ints) -> Table | None:
    """Finished sends and receives among these ranks, both as rows of them; ``None`` where there are none."""
    table = run.collectives
    if not rows(table) or not (table["peer"] >= 0).any():
        return None
    code, names = codes(table["op"])
    kinds = np.array([{"send": SEND, "recv": RECEIVE}.get(name.lower(), -1) for name in names])[code]
    chosen = (kinds >= 0) & (table["peer"] >= 0) & (table["duration_ns"] != UNMEASURED)
    indices = np.flatnonzero(chosen & ((table["flags"] & (NONBLOCKING | ERROR)) == 0))
    peer = job_ranks(run, table["comm"][indices], table["peer"][indices])
    row, whom = (np.searchsorted(ranks, one) for one in (table["rank"][indices], peer))
    last = len(ranks) - 1
    known = (ranks[np.minimum(row, last)] == table["rank"][indices]) & (ranks[np.minimum(whom, last)] == peer)
    if not known.any():
        return None
    indices, row, whom = indices[known], row[known], whom[known]
    start = table["start_ns"][indices].astype(np.float64)
    duration = table["duration_ns"][indices].astype(np.float64)
    enqueue = (
        table["enqueue_ns"][indices].astype(np.float64) if "enqueue_ns" in table else np.full(len(indices), np.nan)
    )
    return {
        "row": row,
        "whom": whom,
        "kind": kinds[indices],
        "number": table["step"][indices],
        "start": start,
        "end": start + duration,
        "enqueue": np.where(enqueue >= 0, enqueue, np.nan),
        "overlapping": np.zeros(len(indices), bool),
    }


def messages_a_step(run: Run, steps: Ints) -> float:
    """How many sends and receives a rank has in each of its ``steps`` [N], those of an unknown step among them."""
    of_these = np.isin(run.collectives["step"], np.append(steps, UNMEASURED))
    return int(np.sum(of_these & (run.collectives["peer"] >= 0))) / max(len(steps), 1)


def job_ranks(run: Run, comm: Array, peer: Array) -> Ints:
    """[N] ranks in the job of peers that are numbered within their communicator, where its members are known."""
    found: Ints = peer.astype(np.int64)
    known = run.communicators
    for one in np.unique(comm) if rows(known) else ():
        members = known["comm"] == one
        if not members.any():
            continue
        size = max(int(known["rank_in"][members].max()), int(peer[comm == one].max())) + 1
        of_member = np.full(size, -1, np.int64)
        of_member[known["rank_in"][members]] = known["rank"][members]
        found[comm == one] = of_member[peer[comm == one]]
    return found


def neighbours(run: Run, row: Ints) -> Ints:
    """[R] with how many peers each rank exchanges messages, at least 1; ``row`` [N] is the rank of each call."""
    table, count = run.collectives, int(row.max(initial=-1)) + 1
    named = table["peer"] >= 0
    peer = job_ranks(run, table["comm"][named], table["peer"][named])
    size = int(peer.max(initial=0)) + 1
    pairs = np.unique((row[named] * size + peer)[peer >= 0])
    return np.maximum(np.bincount(pairs // size, minlength=count), 1)


def _of_columns(grid: Grid, starts: Ints, overlapping: Array) -> Table:
    row, column = np.nonzero(~np.isnan(grid.start))
    comm_class = grid.comm_class[column]
    start = grid.start[row, column]
    return {
        "row": row,
        "step": np.searchsorted(starts, column, side="right") - 1,
        "kind": COLLECTIVE + comm_class,
        "whom": grid.group[row, comm_class],
        "start": start,
        "end": start + grid.duration[row, column],
        "enqueue": grid.enqueue[row, column],
        "overlapping": overlapping[column],
    }


def _of_transfers(sent: Table, ends: Floats) -> Table:
    """With the step that each belongs to: between the ``ends`` [R, S + 1] of two, on the rank's own clock."""
    ends = ends.copy()
    ends[:, 0] = np.nan_to_num(ends[:, 0], nan=-np.inf)
    step = np.full(len(sent["row"]), -1, np.int64)
    order = np.argsort(sent["row"], kind="stable")
    bounds = np.searchsorted(sent["row"][order], np.arange(len(ends) + 1)).tolist()
    for row, (first, stop) in enumerate(itertools.pairwise(bounds)):
        mine = order[first:stop]
        step[mine] = np.searchsorted(np.nan_to_num(ends[row], nan=np.inf), sent["start"][mine]) - 1
    mask = (step >= 0) & (step < ends.shape[1] - 1)
    return {name: column[mask] for name, column in (sent | {"step": step}).items()}


def _alike(found: Table, ends: Floats, groups: int) -> Schedule | None:
    """The one order of operations that all ranks keep in nearly all steps; ``None`` where they do not."""
    ranks, steps = len(ends), ends.shape[1] - 1
    cell = found["row"] * steps + found["step"]
    count = np.bincount(cell, minlength=ranks * steps)
    place = encoding.ordinals(cell)
    word = (found["kind"] + 1) * (ranks + groups + 2) + found["whom"]
    shape = (_digest(cell, place, word, ranks * steps) + 1e9 * count).reshape(ranks, steps)
    counted = [np.unique(row, return_counts=True) for row in shape]
    usual = np.array([names[int(np.argmax(often))] for names, often in counted])
    good = (shape == usual[:, None]).all(axis=0)
    if good.mean() < _ALIKE or len(cell) > _MOST:
        return None
    indices = np.flatnonzero(good[found["step"]])
    indices = indices[np.lexsort((found["step"][indices], place[indices], found["row"][indices]))]
    each = int(good.sum())
    one = indices[::each]
    return Schedule(
        row=found["row"][one],
        place=place[one],
        kind=found["kind"][one],
        with_whom=found["whom"][one],
        overlapping=found["overlapping"][one],
        start=found["start"][indices].reshape(-1, each),
        end=found["end"][indices].reshape(-1, each),
        begin=ends[:, :-1][:, good][found["row"][one]],
        steps=np.flatnonzero(good),
        enqueue=found["enqueue"][indices].reshape(-1, each),
    )


def _digest(cell: Ints, place: Ints, word: Ints, count: int) -> Array:
    """[count] what the words [N] of each cell are, and in which place each is, in one number: alike where they are."""
    factor = np.random.default_rng(7).integers(1, 2**31, int(place.max()) + 1)
    return np.bincount(cell, weights=(word * factor[place]) % 1_000_003, minlength=count)


#: What calls do: a message to or from another rank, all to a root, a root to all, all to all.
SENDS, RECEIVES, GATHERS, SPREADS, MEETS, ELSE = range(6)
_KINDS = {"send": SENDS, "recv": RECEIVES, "reduce": GATHERS, "gather": GATHERS, "broadcast": SPREADS}
#: Most self time that a rank may spend after its first call towards the next meeting, as a share of the time between
#: two meetings.
_ON_THE_WAY = 0.1
#: Different ways of gathering that are examined, the commonest first.
_SHAPES = 8


def have_peers(table: Table) -> bool:
    """Whether calls that were timed on the host say with whom: messages, and what has a root."""
    return rows(table) > 0 and bool(((table["peer"] >= 0) & ((table["flags"] & GPU_TIME) == 0)).any())


def with_gathers_joined(run: Run) -> Run:
    """The run with each broadcast that ends a gathering as an ``all_reduce``, which has its messages' time as well."""
    table = run.collectives
    if not have_peers(table):
        return run  # nearly all jobs on GPUs: their names are not looked at
    code, names = encoding.codes(table["op"])
    kind = np.array([_KINDS.get(name, MEETS if is_synchronising(name) else ELSE) for name in names])[code]
    if not (kind == SPREADS).any() or not ((kind == RECEIVES) | (kind == GATHERS)).any():
        return run
    usable = (table["flags"] & (NONBLOCKING | ERROR | GPU_TIME)) == 0
    indices = np.flatnonzero(usable & (kind != ELSE) & (table["duration_ns"] >= 0) & (table["start_ns"] >= 0))
    indices = indices[np.lexsort((table["start_ns"][indices], table["rank"][indices]))]
    calls = _Calls(run, indices, kind[indices])
    ends = calls.closing()
    if not ends.any():
        return run
    return replace(run, collectives=calls.merged(ends))


@dataclass
class _Calls:
    """Calls ``indices`` [N] (rows of the table), rank by rank and in order, and what ``kind`` [N] they are."""

    run: Run
    indices: Ints
    kind: Ints

    def __post_init__(self) -> None:
        table = self.run.collectives
        self.rank = table["rank"][self.indices].astype(np.int64)
        self.comm = encoding.factorize(table["comm"][self.indices])[0].astype(np.int64)
        self.peer = job_ranks(self.run, table["comm"][self.indices], table["peer"][self.indices])
        self.self_ns = table["self_ns"][self.indices].astype(np.int64)

    def intervals(self, ends: Array) -> Ints:
        """[N] which of the calls that ``ends`` [N] each leads to, or is; one more than there are where to none."""
        last = np.flatnonzero(ends)
        found = np.asarray(np.cumsum(ends) - ends, np.int64)
        of_end = self.rank[last[np.minimum(found, len(last) - 1)]]
        return np.where((found < len(last)) & (self.rank == of_end), found, len(last))

    def closing(self) -> Array:
        """[N] which broadcasts end a gathering: their root knows by then that all of their communicator have come."""
        ends, found = self.kind >= SPREADS, np.zeros(len(self.indices), bool)
        last, interval = np.flatnonzero(ends), self.intervals(ends)
        if len(last) == 0:
            return found
        spreads = self.kind[last] == SPREADS
        instance = encoding.factorize((self.comm[last] << 40) + self.run.collectives["seq"][self.indices[last]])[0]
        calls_before = self._digests(interval, len(last)) * (1 + self.rank[last] % 8191)
        shape = np.bincount(instance[spreads], calls_before[spreads], minlength=instance.max() + 1)
        order = np.argsort(interval, kind="stable")
        bounds = np.searchsorted(interval[order], np.arange(len(last) + 1))
        for comm in np.unique(self.comm[last[spreads]]).tolist():
            mine = np.flatnonzero(spreads & (self.comm[last] == comm))
            size = int(np.bincount(instance[mine]).max())
            shapes, count = np.unique(shape[instance[mine]], return_counts=True)
            for one in shapes[np.argsort(-count)][:_SHAPES].tolist():
                alike = mine[shape[instance[mine]] == one]
                sample = alike[instance[alike] == instance[alike[0]]]
                calls = {int(self.rank[last[e]]): order[bounds[e] : bounds[e + 1]] for e in sample.tolist()}
                if len(calls) == size > 1 and self._all_known(calls) and self._straight(last[alike], interval, alike):
                    found[last[alike]] = True
        return found

    def _digests(self, interval: Ints, count: int) -> Array:
        """[E] what the calls up to each of the ends are, in one number: alike where they are."""
        place = encoding.ordinals(interval)
        word = (self.kind + 1) * (int(self.peer.max()) + 2) + self.peer + 1
        return _digest(interval, place, word, count + 1)[:-1]

    def _all_known(self, calls: dict[int, Ints]) -> bool:
        """Whether a broadcast's root has heard of all ranks by then, of some by others, from ``calls`` up to it."""
        heard = {rank: {rank} for rank in calls}
        sent: dict[tuple[int, int, int], list[set[int]]] = {}
        todo = {rank: self._steps(rank, mine.tolist(), list(calls)) for rank, mine in calls.items()}
        moved = True
        while moved:
            moved = False
            for rank, left in todo.items():
                while left and (left[0][0] == SENDS or sent.get((left[0][2], rank, left[0][1]))):
                    what, tag, whom = left.pop(0)
                    if what == SENDS:
                        sent.setdefault((rank, whom, tag), []).append(set(heard[rank]))
                    else:
                        heard[rank] |= sent[whom, rank, tag].pop(0)
                    moved = True
        end = next(iter(calls.values()))[-1]
        root = int(self.peer[end])
        return root in heard and not todo[root] and len(heard[root]) == len(calls)

    def _steps(self, rank: int, mine: list[int], members: list[int]) -> list[tuple[int, int, int]]:
        """What a rank does before its broadcast: whether it sends or receives, as what, and to or from whom."""
        found = []
        for call in mine[:-1]:
            what, whom = int(self.kind[call]), int(self.peer[call])
            if what != GATHERS:
                found.append((what, SENDS, whom))
            elif whom != rank:
                found.append((SENDS, GATHERS, whom))
            else:
                found += [(RECEIVES, GATHERS, member) for member in members if member != rank]
        return found

    def _straight(self, last: Ints, interval: Ints, number: Ints) -> bool:
        """Whether ranks do next to nothing of their own between their first call towards these and these."""
        mine = np.isin(interval, number)
        first = np.unique(interval[mine], return_index=True)[1]
        before = self.self_ns[mine][first]
        collective = mine & (self.kind >= GATHERS)
        if (self.self_ns[collective] == UNMEASURED).any() or (before == UNMEASURED).any():
            return False
        total = np.bincount(interval[collective], self.self_ns[collective], minlength=int(interval.max()) + 1)[number]
        return all(
            float(median(total[of_rank] - before[of_rank])) <= _ON_THE_WAY * float(median(total[of_rank]))
            for of_rank in (self.rank[last] == one for one in np.unique(self.rank[last]))
        )

    def merged(self, closing: Array) -> Table:
        """The table with these broadcasts as all-reduces, less the calls that lead to them."""
        table = self.run.collectives
        ends = closing | (self.kind == MEETS)
        last, interval = np.flatnonzero(ends), self.intervals(ends)
        of_closing = np.append(closing[last], False)[interval]
        into = self.indices[last[closing[last]]]
        number = (np.cumsum(np.append(closing[last], False)) - 1)[interval]
        took = np.bincount(number[of_closing], table["duration_ns"][self.indices[of_closing]]).astype(np.int64)
        changed = {name: np.array(table[name]) for name in ("op", "start_ns", "duration_ns")}
        end = table["start_ns"][into] + table["duration_ns"][into]
        changed["op"] = changed["op"].astype(object)
        changed["op"][into] = "all_reduce"
        changed["start_ns"][into], changed["duration_ns"][into] = end - took, took
        collective = of_closing & (self.kind >= GATHERS)
        for name in OWN:
            changed[name] = sums(table, name, self.indices[collective], number[collective], into)
        left = np.ones(rows(table), bool)
        left[self.indices[of_closing]] = False
        left[into] = True
        return encoding.chosen(table | changed, left)


#: Messages of one kernel are reported within this time (ns) of each other, each by its own channels.
_ONE_KERNEL = 20_000.0
#: Share of the steps in which they must be.
_ALWAYS = 0.95
#: Most messages of one group call between two of them.
_NEAR = 8
#: In this percentage of steps, those in which a message is received soonest, it was waited for: send and receive end
#: together.
_SOONEST = 10


def fused_receives_in_full(schedule: Schedule, source: Ints, unit: Ints) -> Schedule:
    """The schedule with the ends of such receives as their peers saw them.

    ``source`` [N] is the send that each receive gets (-1: it is none), ``unit`` [N] which operations of all ranks end
    together. Where the clocks of two ranks have no common point, their receives keep their recorded ends.
    """
    receives = np.flatnonzero((source >= 0) & _fused_with_send(schedule))
    if len(receives) == 0:
        return schedule
    alone = (source >= 0) & ~np.isin(np.arange(len(source)), receives)
    end = schedule.end.copy()
    row, whom = schedule.row[receives], schedule.row[source[receives]]
    for mine, theirs in sorted(set(zip(row.tolist(), whom.tolist(), strict=True))):
        ahead = _ahead(schedule, source, unit, alone, mine, theirs)
        if ahead is not None:
            theirs_only = receives[(row == mine) & (whom == theirs)]
            end[theirs_only] = np.fmax(end[theirs_only], schedule.end[source[theirs_only]] + ahead)
    return replace(schedule, end=end)


def _fused_with_send(schedule: Schedule) -> Array:
    """[N] which operations begin and end with a send of the same rank, in nearly all steps."""
    found = np.zeros(len(schedule.row), bool)
    pairs: list[tuple[Ints, Ints]] = []
    for away in range(1, min(_NEAR + 1, len(found))):
        one, other = np.arange(len(found) - away), np.arange(away, len(found))
        pairs += [(one, other), (other, one)]
    for each, other in pairs:
        near = (schedule.row[each] == schedule.row[other]) & (schedule.kind[other] == SEND)
        this, send = each[near], other[near]
        apart = np.maximum(
            np.abs(schedule.start[this] - schedule.start[send]), np.abs(schedule.end[this] - schedule.end[send])
        )
        found[this] |= (apart <= _ONE_KERNEL).mean(axis=1) >= _ALWAYS
    return found & (schedule.kind < COLLECTIVE)


def _ahead(schedule: Schedule, source: Ints, unit: Ints, alone: Array, mine: int, theirs: int) -> Floats | None:
    """[G] ns by which one rank's clock is ahead of another's; ``None`` where they share nothing that ends at once."""
    end = schedule.end
    meets = schedule.kind >= COLLECTIVE
    one, other = (np.flatnonzero(meets & (schedule.row == row)) for row in (mine, theirs))
    _, here, there = np.intersect1d(unit[one], unit[other], return_indices=True)
    if len(here):
        return _drifting(median(end[one[here]] - end[other[there]], axis=0))
    taken, sent = (
        np.flatnonzero(alone & (schedule.row == to) & (schedule.row[source] == by))
        for to, by in ((mine, theirs), (theirs, mine))
    )
    most = _soonest(end[taken] - end[source[taken]])
    least = _soonest(end[sent] - end[source[sent]])
    if most is None or least is None:
        return most if least is None else -least
    return (most - least) / 2


def _soonest(late: Floats) -> Floats | None:
    """[G] how long after its send a message is taken that was waited for, of messages [M, G]; ``None`` of none."""
    if len(late) == 0:
        return None
    message = int(np.argmin(np.percentile(late, _SOONEST, axis=1)))
    return _drifting(late[message])


def _drifting(values: Floats) -> Floats:
    """[G] a line through values that scatter: clocks drift steadily. Through the medians of the two halves."""
    middle = len(values) // 2
    if middle < 2:
        return np.full(len(values), float(median(values)))
    first, second = float(median(values[:middle])), float(median(values[middle:]))
    place = (np.arange(len(values)) - (middle - 1) / 2) / (len(values) / 2)
    return np.asarray(first + (second - first) * place)
