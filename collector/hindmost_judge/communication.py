"""What ranks sent each other: calls, bytes, wait, transfer and bandwidth of each operation, size class and group.

Also how long a cycle of Horovod takes, in which ranks negotiate what is ready.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hindmost_judge.encoding import chosen, codes
from hindmost_judge.model import GPU_TIME, NONBLOCKING, Job, Run, Table, rows
from hindmost_judge.overview import Overview
from hindmost_judge.timeline.collective_calls import WAIT, is_synchronising
from hindmost_judge.types import Array, Floats, Ints


class Traffic(NamedTuple):
    """Calls of one operation whose sizes have the same power of two above them, in groups of one size and name.

    ``None`` is unmeasured. ``least`` and ``bytes`` are the smallest and the largest call, ``total`` all bytes that
    ranks contributed, ``calls`` the calls of all ranks. ``took_ms`` is how long the mean call took, ``transfer_ms``
    the shortest of its members, ``wait_ms`` the rest. ``bandwidth`` is contributed bytes a second of a transfer,
    ``bus_bandwidth`` what each link carries meanwhile (as NCCL's tests count it). ``exposed`` is the share of the time
    in which its rank did nothing else.
    """

    operation: str
    least: int | None
    bytes: int | None
    total: int | None
    communicator: str | None
    group: int
    groups: int
    calls: int
    took_ms: float | None
    wait_ms: float | None
    transfer_ms: float | None
    bandwidth: float | None
    bus_bandwidth: float | None
    exposed: float | None


#: Rows beyond these, those that take least time, are left out.
MOST = 200
#: About so many of the newest calls are counted: a recording of days has billions.
CALLS = 2_000_000


def find(run: Run, most: int | None = None) -> list[Traffic]:
    """A row each, those that take most time first. Of messages between two ranks no wait is known.

    Of more calls than ``most`` (:data:`CALLS`) the newest are counted.
    """
    table = _newest(run.collectives, CALLS if most is None else most)
    if not rows(table):
        return []
    op, names = codes(table["op"])
    order = np.lexsort((table["seq"], op, table["comm"]))
    comm, seq, code = table["comm"][order], table["seq"][order], op[order]
    took, size = table["duration_ns"][order].astype(np.float64), table["bytes"][order].astype(np.int64)
    new = np.ones(len(order), bool)
    new[1:] = (comm[1:] != comm[:-1]) | (seq[1:] != seq[:-1]) | (code[1:] != code[:-1])
    starts = np.flatnonzero(new)
    calls = np.diff(np.append(starts, len(order)))
    meets = np.array([is_synchronising(name) for name in names], bool)[code[starts]]
    blocking = np.logical_and.reduceat((table["flags"][order] & NONBLOCKING) == 0, starts)
    on_gpu = np.logical_or.reduceat((table["flags"][order] & GPU_TIME) != 0, starts)
    shortest = np.minimum.reduceat(took, starts)
    known = meets & blocking & (shortest >= 0) & (calls > 1)
    members, named, called = _groups(run, table, comm[starts])
    largest = np.maximum.reduceat(size, starts)
    exponent = np.ceil(np.log2(np.maximum(largest, 1).astype(np.float64))).astype(np.int64)
    size_class = np.where(largest > 0, exponent + 2, np.maximum(largest, -1) + 1)  # -1: not known
    parts = (code[starts].astype(np.int64), size_class, members, named)
    shape = tuple(int(part.max()) + 1 for part in parts)
    kinds, which = np.unique(np.ravel_multi_index(parts, shape), return_inverse=True)
    which, count = which.ravel(), len(kinds)
    number_of, _, group_of, name_of = (one.tolist() for one in np.unravel_index(kinds, shape))
    sums = {
        "calls": calls * known,
        "shortest": shortest * calls * known,
        "whole": np.add.reduceat(np.maximum(took, 0.0), starts) * known,
        "timed": np.add.reduceat((took >= 0).astype(np.float64), starts),
        "took": np.add.reduceat(np.maximum(took, 0.0), starts),
        "sent": np.add.reduceat(np.maximum(size, 0), starts) * known,
        "moved": _on_a_link(run, names, code[starts], members, on_gpu) * largest * calls * known,
    }
    totals = {name: np.bincount(which, values, count) for name, values in sums.items()}
    least, most_ = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(least, which, np.minimum.reduceat(size, starts))
    np.maximum.at(most_, which, largest)
    total = np.zeros(count, np.int64)
    np.add.at(total, which, np.add.reduceat(np.maximum(size, 0), starts))
    every = np.bincount(which, calls, count).astype(np.int64)
    alone = np.bincount(which, calls * (blocking & ~on_gpu), count)
    found = []
    for at in range(count):
        measured, short = float(totals["calls"][at]), float(totals["shortest"][at])
        sized, timed = int(most_[at]) >= 0, measured > 0
        moved = timed and short > 0 and int(most_[at]) > 0
        found.append(
            Traffic(
                operation=names[number_of[at]],
                least=int(least[at]) if sized else None,
                bytes=int(most_[at]) if sized else None,
                total=int(total[at]) if sized else None,
                communicator=called[name_of[at]] or None,
                group=group_of[at],
                groups=len(np.unique(comm[starts][which == at])),
                calls=int(every[at]),
                took_ms=float(totals["took"][at] / totals["timed"][at]) / 1e6 if totals["timed"][at] else None,
                wait_ms=(float(totals["whole"][at]) - short) / measured / 1e6 if timed else None,
                transfer_ms=short / measured / 1e6 if timed else None,
                bandwidth=float(totals["sent"][at]) / short * 1e9 if moved else None,
                bus_bandwidth=float(totals["moved"][at]) / short * 1e9 if moved else None,
                exposed=1.0 if alone[at] == every[at] else None,
            )
        )
    return sorted(found, key=lambda one: -one.calls * (one.took_ms or 0.0))[:MOST]


class OfRank(NamedTuple):
    """What one rank called: all calls, ``sent`` bytes that it contributed (``None``: unknown), and ms of a step that it
    was blocked in collectives and in messages between two ranks (``None``: no steps, or no such calls).
    """

    rank: int
    calls: int
    messages: int
    sent: int | None
    collectives_ms: float | None
    messages_ms: float | None


def by_rank(run: Run, seen: Overview | None) -> list[OfRank]:
    """A row a rank, of all its calls."""
    table = run.collectives
    if not rows(table):
        return []
    known, row = np.unique(table["rank"], return_inverse=True)
    row, count = row.ravel(), len(known)
    op, names = codes(table["op"])
    named = {part: np.array([part in name.lower() for name in names], bool)[op] for part in (WAIT, "recv")}
    message = (table["peer"] != -1) | (named[WAIT] & (table["comm"] == 0))
    blocks = ((table["flags"] & NONBLOCKING) == 0) & (table["duration_ns"] >= 0)
    sized = (table["bytes"] > 0) & ~named["recv"]
    steps = steps_of(run, seen)

    def per_rank(which: Array, weights: Array | None = None) -> Array:
        return np.bincount(row[which], None if weights is None else weights[which], count)

    def a_step(which: Array) -> list[float | None]:
        if steps is None or not which.any():
            return [None] * count
        return list((per_rank(which & blocks, table["duration_ns"]) / steps / 1e6).tolist())

    sent = per_rank(sized, table["bytes"]).astype(np.int64).tolist() if sized.any() else [None] * count
    every = np.ones(len(row), bool)
    columns = (known, per_rank(every), per_rank(message), sent, a_step(~message), a_step(message))
    return [
        OfRank(*(cell.item() if isinstance(cell, np.generic) else cell for cell in cells))
        for cells in zip(*columns, strict=True)
    ]


def share_of_time(run: Run, ranks: Ints) -> Floats:
    """[R] of these sorted ranks' time from first to last call, how much each was blocked in calls; NaN without any."""
    table = run.collectives
    blocking = ((table["flags"] & (NONBLOCKING | GPU_TIME)) == 0) & (table["duration_ns"] >= 0)
    calls = chosen(table, blocking & np.isin(table["rank"], ranks))
    row, start, took = np.searchsorted(ranks, calls["rank"]), calls["start_ns"], calls["duration_ns"]
    first, last = np.full(len(ranks), np.inf), np.full(len(ranks), -np.inf)
    np.minimum.at(first, row, start)
    np.maximum.at(last, row, start + took)
    blocked = np.bincount(row, took, len(ranks))
    share: Floats = np.divide(blocked, last - first, out=np.full(len(ranks), np.nan), where=last > first)
    return np.asarray(np.minimum(share, 1.0))


#: Calls are those of the steps where these take this share of the recorded time: a benchmark's sweep has others.
_OF_STEPS = 0.25


def steps_of(run: Run, seen: Overview | None) -> float | None:
    """How many steps the recorded calls are of; ``None`` where none are known, or most calls are of none of them."""
    if seen is None or not len(seen.steps) or not seen.step > 0:
        return None
    start = run.collectives["start_ns"]
    recorded = float(start.max() - start.min()) if len(start) else 0.0
    steps = max(recorded / seen.step, float(len(seen.steps)))
    return steps if len(seen.steps) >= _OF_STEPS * steps else None


def _on_a_link(run: Run, names: list[str], code: Array, members: Ints, on_gpu: Array) -> Floats:
    """[N] how many times the bytes that a rank contributes pass each link, at least.

    ``nccl-tests``, doc/PERFORMANCE.md. It counts what all ranks gather or scatter together, which is what one rank
    contributes times their number, but for a scatter that is recorded as what goes in. NCCL's plugin has what comes
    out.
    """
    plain = ["".join(c for c in name.lower() if c.isalnum()).removeprefix("mpi") for name in names]
    others = np.maximum(members - 1, 0).astype(np.float64)
    part = others / np.maximum(members, 1)
    found = np.ones(len(code))
    for number, name in enumerate(plain):
        mask = code == number
        if "allreduce" in name or name == "ddpsync":
            found[mask] = 2 * part[mask]
        elif "allgather" in name:
            found[mask] = others[mask]
        elif "reducescatter" in name:
            found[mask] = np.where(on_gpu & (run.job.source == Job.source), others, part)[mask]
        elif "alltoall" in name:
            found[mask] = part[mask]
    return found


def _newest(table: Table, most: int) -> Table:
    count = rows(table)
    if count <= most:
        return table
    start = table["start_ns"]
    since = int(start.max()) - int((int(start.max()) - int(start.min())) * most / count)
    return chosen(table, start >= since)


def _groups(run: Run, table: Table, comm: Array) -> tuple[Ints, Ints, list[str]]:
    """[N] how many ranks the communicator of each has (as it says, else as were seen in it), [N] the number of its
    name, and the names.
    """
    known, which = np.unique(comm, return_inverse=True)
    size, name, names = np.zeros(len(known), np.int64), np.zeros(len(known), np.int64), [""]
    ranks = int(table["rank"].max()) + 1
    pairs = np.unique(np.searchsorted(known, table["comm"]) * ranks + table["rank"])
    np.add.at(size, pairs // ranks, 1)
    if rows(run.communicators):
        place = np.minimum(np.searchsorted(known, run.communicators["comm"]), len(known) - 1)
        there = known[place] == run.communicators["comm"]
        np.maximum.at(size, place[there], run.communicators["size"][there].astype(np.int64))
        code, texts = codes(run.communicators["name"][there])
        names = ["", *texts]
        name[place[there]] = np.asarray(code, np.int64) + 1
    return size[which.ravel()], name[which.ravel()], names


#: Intervals of this name are series of cycles; their value is how many.
CYCLES = "horovod_cycle"


def horovod_notes(run: Run) -> list[str]:
    """One sentence on the mean cycle, which adds to the wait for every tensor; none where it was not measured."""
    table = run.intervals
    indices = np.flatnonzero((table["name"] == CYCLES) & (table["duration_ns"] > 0) & (table["value"] > 0))
    if not len(indices):
        return []
    cycle_ms = np.sum(table["duration_ns"][indices]) / np.sum(table["value"][indices]) / 1e6
    return [f"a Horovod cycle takes {cycle_ms:.1f} ms; ready tensors wait for the next one"]
