"""A pipelined job as a graph of operations, replayed: with what was measured, with all alike, with one worker repaired.

After the method of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25): compute keeps
its measured time, communication its transfer part (end minus the latest start in its group), launch delays go; the
ideal takes one mean per kind of computing and one median per kind of transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hindmost_judge.dictionary_encoding import codes

if TYPE_CHECKING:
    from hindmost_judge.model import Table
    from hindmost_judge.types import Array, Floats, Ints

_PAIRED = ("forward-send", "forward-recv", "backward-send", "backward-recv")
_REPLICAS = ("grads-reduce-scatter", "params-all-gather")
_EVERYBODY = "optimizer-clip-main-grad"
_ENDS = "embedding-grads-all-reduce"


@dataclass(frozen=True)
class Graph:
    """Operations sorted by worker and start. ``group`` [N] is -1 for computing; ``after`` [N] lists predecessors.

    ``cost`` [N] ns is what an operation itself took and ``ideal`` [N] what it takes with all alike; ``replica`` and
    ``batch`` [N] are whose micro-batch it belongs to and which.
    """

    step: Ints
    rank: Ints
    stage: Ints
    op: Ints
    names: list[str]
    group: Ints
    after: list[list[int]]
    cost: Floats
    ideal: Floats
    replica: Ints
    batch: Ints

    def replay(self, cost: Floats) -> float:
        """Mean ns of a step when every operation starts as soon as what it needs is there."""
        ready, end = [0.0] * len(cost), [0.0] * len(cost)
        waiting = [len(found) for found in self.after]
        followers: list[list[int]] = [[] for _ in waiting]
        for one, found in enumerate(self.after):
            for before in found:
                followers[before].append(one)
        members = _members(self.group)
        missing = {name: len(held) for name, held in members.items()}
        free = [one for one, count in enumerate(waiting) if count == 0]
        group, costs = self.group.tolist(), cost.tolist()
        while free:
            one = free.pop()
            done = [one]
            if group[one] >= 0:
                missing[group[one]] -= 1
                if missing[group[one]]:
                    continue
                done = members[group[one]]
            begin = max(ready[each] for each in done)
            for each in done:
                end[each] = begin + costs[each]
                for follower in followers[each]:
                    ready[follower] = max(ready[follower], end[each])
                    waiting[follower] -= 1
                    if not waiting[follower]:
                        free.append(follower)
        lengths = np.zeros(int(self.step.max()) + 1)
        np.maximum.at(lengths, self.step, np.array(end))
        return float(lengths.mean())


def build(operations: Table) -> Graph:
    """The graph of a run's operations; steps are numbered anew from 0."""
    order = np.lexsort((operations["start_ns"], operations["rank"], operations["step"]))
    table = {name: column[order] for name, column in operations.items()}
    step = np.unique(table["step"], return_inverse=True)[1]
    op, names = codes(table["op"])
    group = _groups(table, step, op, names)
    start = table["start_ns"].astype(np.float64)
    cost = _cost(start, table["duration_ns"].astype(np.float64), group)
    ideal = cost.copy()
    for one in range(len(names)):
        held = op == one
        ideal[held] = np.median(cost[held]) if (group[held] >= 0).any() else cost[held].mean()
    return Graph(
        step=step,
        rank=table["rank"].astype(np.int64),
        stage=table["stage"].astype(np.int64),
        op=op,
        names=names,
        group=group,
        after=_order(step, table["rank"], [names[one] for one in op], table["seq"].tolist()),
        cost=cost,
        ideal=ideal,
        replica=table["dp"].astype(np.int64),
        batch=(table["micro_batch"] if "micro_batch" in table else table["seq"]).astype(np.int64),
    )


def _members(group: Ints) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for one, name in enumerate(group.tolist()):
        if name >= 0:
            found.setdefault(name, []).append(one)
    return found


def _groups(table: Table, step: Ints, op: Ints, names: list[str]) -> Ints:
    """[N] which operations are one transfer, seen from its several ends; -1 for computing."""
    found: dict[tuple[Any, ...], int] = {}
    group = np.full(len(op), -1, np.int64)
    columns = (step.tolist(), op.tolist(), table["dp"].tolist(), table["stage"].tolist(), table["seq"].tolist())
    for i, (when, kind, dp, stage, seq) in enumerate(zip(*columns, strict=True)):
        key = _key(names[kind], dp, stage, seq)
        if key is not None:
            group[i] = found.setdefault((when, *key), len(found))
    return group


def _key(name: str, dp: int, stage: int, seq: int) -> tuple[Any, ...] | None:
    if name in _PAIRED:  # named by the sending stage
        way, end = name.split("-")
        sender = stage if end == "send" else stage - 1 if way == "forward" else stage + 1
        return way, dp, sender, seq
    if name in _REPLICAS:
        return name, stage, seq
    if name == _ENDS:
        return name, dp, seq
    return (name,) if name == _EVERYBODY else None


def _cost(start: Floats, duration: Floats, group: Ints) -> Floats:
    """[N] duration of computing, and of a transfer what it took after the last of its group had come."""
    cost: Floats = duration.copy()
    held = group >= 0
    if not held.any():
        return cost
    latest = np.full(int(group.max()) + 1, -np.inf)
    np.maximum.at(latest, group[held], start[held])
    cost[held] = np.maximum(start[held] + duration[held] - latest[group[held]], 0.0)
    return cost


#: What follows the pipeline on a worker waits for its sends and receives to be over.
_AFTER_PIPELINE = ("gc", "layernorm-grads-all-reduce", "grads-reduce-scatter")


def _order(step: Ints, rank: Array, names: list[str], seq: list[int]) -> list[list[int]]:
    """[N] what each operation follows on its worker.

    Computing and the operations of all replicas follow one another; each direction of sends and of receives is a
    stream of its own, parallel to computing. A send follows the computing of its micro-batch, and computing its
    receive.
    """
    after: list[list[int]] = []
    edges = np.flatnonzero((np.diff(step) != 0) | (np.diff(rank) != 0)) + 1
    for first, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(step)], strict=True):
        of_worker = {(names[i], seq[i]): i for i in range(first, stop)}
        last: dict[str, int] = {}
        for i in range(first, stop):
            stream, found = _stream(names[i], seq[i], of_worker, last)
            after.append(found)
            last[stream] = i
    return after


def _stream(name: str, seq: int, of_worker: dict[tuple[str, int], int], last: dict[str, int]) -> tuple[str, list[int]]:
    """The stream of an operation and its predecessors."""
    way, _, what = name.partition("-")
    stream = name if name in _PAIRED else ""
    found = [last[stream]] if stream in last else []
    partner = {"send": (f"{way}-compute", seq), "compute": (f"{way}-recv", seq)}.get(what)
    if partner in of_worker:
        found.append(of_worker[partner])
    if name in _AFTER_PIPELINE:
        found += [one for other, one in last.items() if other]
    return stream, found
