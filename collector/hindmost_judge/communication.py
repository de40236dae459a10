"""What ranks sent each other: calls, bytes, wait, transfer and bandwidth of each operation, size and group.

Also how long a cycle of Horovod takes, in which ranks negotiate what is ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindmost_judge.encoding import chosen, codes
from hindmost_judge.model import NONBLOCKING, rows
from hindmost_judge.timeline.collective_calls import is_synchronising

if TYPE_CHECKING:
    from hindmost_judge.model import Run, Table


class Traffic(NamedTuple):
    """Calls of one operation, of one size, in groups of one size; ``None`` is unmeasured.

    ``wait_ms`` and ``transfer_ms`` are of the mean call: what it took beyond the shortest of its members, and that.
    ``bandwidth`` is bytes a second of a transfer.
    """

    operation: str
    bytes: int | None
    group: int
    groups: int
    calls: int
    wait_ms: float | None
    transfer_ms: float | None
    bandwidth: float | None


#: Rows beyond these, those that take least time, are left out.
MOST = 200
#: About so many of the newest calls are counted: a recording of days has billions.
CALLS = 2_000_000


def find(run: Run) -> list[Traffic]:
    """A row each, those that take most time first. Of messages between two ranks no wait is known."""
    table = _newest(run.collectives)
    if not rows(table):
        return []
    op, names = codes(table["op"])
    order = np.lexsort((table["seq"], op, table["comm"]))
    comm, seq, code = table["comm"][order], table["seq"][order], op[order]
    took, size = table["duration_ns"][order].astype(np.float64), table["bytes"][order]
    new = np.ones(len(order), bool)
    new[1:] = (comm[1:] != comm[:-1]) | (seq[1:] != seq[:-1]) | (code[1:] != code[:-1])
    starts = np.flatnonzero(new)
    meets = np.array([is_synchronising(name) for name in names], bool)[code[starts]]
    calls = np.diff(np.append(starts, len(order)))
    blocking = np.logical_and.reduceat((table["flags"][order] & NONBLOCKING) == 0, starts)
    measured = np.minimum.reduceat(took, starts)
    known = meets & blocking & (measured >= 0) & (calls > 1)
    total = np.add.reduceat(np.maximum(took, 0.0), starts)
    members = _members(run, table, comm[starts])
    key = np.stack([code[starts].astype(np.int64), size[starts].astype(np.int64), members])
    kinds, which = np.unique(key, axis=1, return_inverse=True)
    which = which.ravel()
    count = np.bincount(which, calls)
    held = [np.bincount(which, values * known) for values in (calls, measured * calls, total, size[starts] * calls)]
    found = []
    for at in range(kinds.shape[1]):
        number, size_, group = (int(one) for one in kinds[:, at])
        some, shortest, whole, sent = (float(one[at]) for one in held)
        found.append(
            Traffic(
                operation=names[number],
                bytes=size_ if size_ >= 0 else None,
                group=group,
                groups=len(np.unique(comm[starts][which == at])),
                calls=int(count[at]),
                wait_ms=(whole - shortest) / some / 1e6 if some else None,
                transfer_ms=shortest / some / 1e6 if some else None,
                bandwidth=sent / shortest * 1e9 if some and shortest > 0 and size_ > 0 else None,
            )
        )
    return sorted(found, key=lambda one: -one.calls * ((one.wait_ms or 0.0) + (one.transfer_ms or 0.0)))[:MOST]


def _newest(table: Table) -> Table:
    count = rows(table)
    if count <= CALLS:
        return table
    start = table["start_ns"]
    since = int(start.max()) - int((int(start.max()) - int(start.min())) * CALLS / count)
    return chosen(table, start >= since)


def _members(
    run: Run, table: Table, comm: np.ndarray[tuple[int], np.dtype[np.uint64]]
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """[N] how many ranks the communicator of each has: as it says, else as many as were seen in it."""
    known, which = np.unique(comm, return_inverse=True)
    size = np.zeros(len(known), np.int64)
    pairs = np.unique(np.stack([table["comm"].astype(np.uint64), table["rank"].astype(np.uint64)]), axis=1)
    np.add.at(size, np.searchsorted(known, pairs[0]), 1)
    if rows(run.communicators):
        place = np.minimum(np.searchsorted(known, run.communicators["comm"]), len(known) - 1)
        there = known[place] == run.communicators["comm"]
        np.maximum.at(size, place[there], run.communicators["size"][there].astype(np.int64))
    return size[which.ravel()]


#: Intervals of this name are series of cycles; their value is how many.
CYCLES = "horovod_cycle"


def horovod_notes(run: Run) -> list[str]:
    """One sentence on the cycle time, which adds to the wait for every tensor; none where it was not measured."""
    cycle = cycle_ms(run)
    if cycle is None:
        return []
    return [f"a Horovod cycle takes {cycle:.1f} ms; ready tensors wait for the next one"]


def cycle_ms(run: Run) -> float | None:
    """Mean time from the start of a cycle to that of the next, over all ranks; ``None`` unmeasured."""
    table = run.intervals
    if not rows(table):
        return None
    held = (table["name"] == CYCLES) & (table["duration_ns"] > 0) & (table["value"] > 0)
    if not held.any():
        return None
    return float(np.sum(table["duration_ns"][held]) / np.sum(table["value"][held]) / 1e6)
