"""What each rank of a pipeline does in a step: sends, receives and collectives in order, alike in every step.

Only each rank's own clock is read. Steps in which any rank did something else than usual are left out.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.dictionary_encoding import codes
from hindmost_judge.model import ERROR, NONBLOCKING, UNMEASURED, Run, Table, rows
from hindmost_judge.timeline.join import QUEUED_NS

if TYPE_CHECKING:
    from hindmost_judge.timeline.join import Grid
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
    the peer's row of a send or receive and the group of a collective; ``beside`` [N] whether computing is known not to
    wait for it. ``start`` and ``end`` [N, G] are ns of the rank's clock, ``begin`` [N, G] when its step before ended
    (NaN: unknown). ``steps`` [G] are indices of the steps. ``exact``: a receive's end is its own, also in a kernel
    shared with a send. ``enqueue`` [N, G] is when the host launched each (its own clock; NaN, or ``None``: unknown).
    """

    row: Ints
    place: Ints
    kind: Ints
    with_whom: Ints
    beside: Array
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


def build(run: Run, grid: Grid, starts: Ints, beside: Array, before: Floats) -> Schedule | None:
    """The schedule of a run whose collectives are this grid; ``None`` where no rank sends to another, or in no order.

    ``starts`` [S] are the first columns of the steps, ``beside`` [K] which columns computing does not wait for and
    ``before`` [R] when each rank's last step before these ended.
    """
    sent = transfers(run, grid.ranks)
    if sent is None or np.isnan(grid.start).all():
        return None
    ends = _ends(grid, starts, before)
    found = _concatenated(_of_columns(grid, starts, beside), _of_transfers(sent, ends))
    return _in_order(run, found, ends, found["start"], int(grid.group.max()))


def of_transfers(run: Run, ranks: Ints, steps: Ints) -> Schedule | None:
    """The schedule of a run in whose ``steps`` [S] the ``ranks`` [R] do nothing together but send to each other.

    The step in which hosts made each call tells which it is of. ``None`` where there is none, or no order, and where
    ranks meet in collectives in the steps.
    """
    sent = transfers(run, ranks)
    if sent is None or np.isin(steps, run.collectives["step"][run.collectives["peer"] < 0]).mean() > 1 - _ALIKE:
        return None
    place = np.minimum(np.searchsorted(steps, sent["number"]), len(steps) - 1)
    held = steps[place] == sent["number"]
    found = {name: column[held] for name, column in sent.items()} | {"step": place[held]}
    if not held.any():
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
    order = _by_call(found, called)
    kept = _alike({name: column[order] for name, column in found.items()}, ends, groups)
    exact = any(each in (run.job.source or "") for each in _EXACT)
    return replace(kept, exact=exact) if kept is not None else None


#: Operations of a rank that begin within this time (ns) of each other belong to one group call and have no order in
#: time.
_AT_ONCE = 2_000.0


def _by_call(found: Table, called: Floats) -> Ints:
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
    held = np.flatnonzero(chosen & ((table["flags"] & (NONBLOCKING | ERROR)) == 0))
    peer = job_ranks(run, table["comm"][held], table["peer"][held])
    row, whom = (np.searchsorted(ranks, one) for one in (table["rank"][held], peer))
    last = len(ranks) - 1
    known = (ranks[np.minimum(row, last)] == table["rank"][held]) & (ranks[np.minimum(whom, last)] == peer)
    if not known.any():
        return None
    held, row, whom = held[known], row[known], whom[known]
    start = table["start_ns"][held].astype(np.float64)
    duration = table["duration_ns"][held].astype(np.float64)
    enqueue = table["enqueue_ns"][held].astype(np.float64) if "enqueue_ns" in table else np.full(len(held), np.nan)
    return {
        "row": row,
        "whom": whom,
        "kind": kinds[held],
        "number": table["step"][held],
        "start": start,
        "end": start + duration,
        "enqueue": np.where(enqueue >= 0, enqueue, np.nan),
        "beside": np.zeros(len(held), bool),
    }


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


def _ends(grid: Grid, starts: Ints, before: Floats) -> Floats:
    """[R, S + 1] when each rank's step before the first ended, and every step's last collective."""
    end = grid.start + grid.duration
    of_step = np.fmax.reduceat(end, starts, axis=1)
    return np.concatenate([before[:, None], of_step], axis=1)


def _of_columns(grid: Grid, starts: Ints, beside: Array) -> Table:
    row, column = np.nonzero(~np.isnan(grid.start))
    klass = grid.klass[column]
    start = grid.start[row, column]
    return {
        "row": row,
        "step": np.searchsorted(starts, column, side="right") - 1,
        "kind": COLLECTIVE + klass,
        "whom": grid.group[row, klass],
        "start": start,
        "end": start + grid.duration[row, column],
        "enqueue": grid.enqueue[row, column],
        "beside": beside[column],
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
    held = (step >= 0) & (step < ends.shape[1] - 1)
    return {name: column[held] for name, column in (sent | {"step": step}).items()}


def _concatenated(one: Table, other: Table) -> Table:
    return {name: np.concatenate([one[name], other[name]]) for name in one}


def _alike(found: Table, ends: Floats, groups: int) -> Schedule | None:
    """The one order of operations that all ranks keep in nearly all steps; ``None`` where they do not."""
    ranks, steps = len(ends), ends.shape[1] - 1
    cell = found["row"] * steps + found["step"]
    count = np.bincount(cell, minlength=ranks * steps)
    first = np.cumsum(count) - count
    place = np.arange(len(cell)) - first[cell]
    word = (found["kind"] + 1) * (ranks + groups + 2) + found["whom"]
    factor = np.random.default_rng(7).integers(1, 2**31, int(place.max()) + 1)
    told = np.bincount(cell, weights=(word * factor[place]) % 1_000_003, minlength=ranks * steps)
    told = (told + 1e9 * count).reshape(ranks, steps)
    usual = np.array([_commonest(row) for row in told])
    good = (told == usual[:, None]).all(axis=0)
    if good.mean() < _ALIKE or len(cell) > _MOST:
        return None
    held = np.flatnonzero(good[found["step"]])
    held = held[np.lexsort((found["step"][held], place[held], found["row"][held]))]
    each = int(good.sum())
    one = held[::each]
    return Schedule(
        row=found["row"][one],
        place=place[one],
        kind=found["kind"][one],
        with_whom=found["whom"][one],
        beside=found["beside"][one],
        start=found["start"][held].reshape(-1, each),
        end=found["end"][held].reshape(-1, each),
        begin=ends[:, :-1][:, good][found["row"][one]],
        steps=np.flatnonzero(good),
        enqueue=found["enqueue"][held].reshape(-1, each),
    )


def _commonest(values: Array) -> float:
    names, counts = np.unique(values, return_counts=True)
    return float(names[int(np.argmax(counts))])
