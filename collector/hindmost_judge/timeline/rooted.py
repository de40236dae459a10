"""Broadcasts whose receivers wait for their root, where most or all of a job meets a late rank.

No rank leaves a broadcast before its root has come. The root leaves at once, and a receiver that comes after it does
not wait. A broadcast has no common end, so most show nothing. Broadcasts of a model's buffers before each forward
(batch norm under DDP), or of a batch that one rank reads for all, come once a step. If their root is late, all ranks
wait for it there, and nowhere else.
"""

from __future__ import annotations

import heapq
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge import dictionary_encoding
from hindmost_judge.model import ERROR, NONBLOCKING

if TYPE_CHECKING:
    from hindmost_judge.model import Table
    from hindmost_judge.types import Array, Floats, Ints

#: With fewer calls the job is starting up, which broadcasts a model's parameters.
_ENOUGH = 10
#: Waiting for less than this share of the time shows no late rank: every job has some jitter of arrivals.
_SHARE = 0.005
#: … or this share of the time spent in calls, where start times are unknown.
_SHARE_OF_CALLS = 0.1
#: Share of the others' extra wait that must be the root's delay; with less, the root only left early.
_MOSTLY = 0.5
#: Communicators examined, those with the most waiting first.
_LOOKED_AT = 8
#: The share of a communicator's calls that may be start-up: a root that loads what it sends is waited for then, once.
_STARTING = 0.25


def awaited(calls: Table, code: Ints, rooted: Array, meets: Array) -> Array:
    """[N] which calls are broadcasts, or other rooted operations, for which all but one rank of a communicator wait.

    ``code`` [N] numbers the operation of each call. In ``rooted`` [M] operations a root sends; calls that ``meets`` [N]
    end only when all have come. All calls of such an operation count: also of other communicators, and those without
    waiting.
    """
    found = np.zeros(len(code), bool)
    if not rooted.any():
        return found
    held = np.flatnonzero(rooted[code] & ((calls["flags"] & (NONBLOCKING | ERROR)) == 0))
    held = held[(calls["duration_ns"][held] >= 0) & (calls["seq"][held] >= 0)]
    often = np.flatnonzero(np.bincount(code[held], minlength=len(rooted)) >= 2 * _ENOUGH)
    if not len(often):
        return found
    least, meetings = _least(calls), _Meetings(calls, meets)
    for operation in often.tolist():
        mine = held[code[held] == operation]
        most = heapq.nlargest(_LOOKED_AT, _met(calls, mine), key=lambda one: float(one[2].sum()))
        found[mine] = any(
            longer.sum() >= least
            and _late(calls, first, second, longer, meetings) >= max(least, _MOSTLY * longer.sum())
            for first, second, longer in most
        )
    return found


def _least(calls: Table) -> float:
    """Least ns of waiting in all that show a late rank, from the first rank of the table."""
    mine = calls["rank"] == calls["rank"][0]
    start = calls["start_ns"][mine]
    if (start >= 0).any():
        return _SHARE * float(np.ptp(start[start >= 0]))
    return _SHARE_OF_CALLS * float(np.maximum(calls["duration_ns"], 0).sum()) / len(np.unique(calls["rank"]))


def _met(calls: Table, mine: Ints) -> list[tuple[Ints, Ints, Floats]]:
    """For each communicator of the calls ``mine`` of one operation, without start-up: who left each call first.

    The rows of the rank that left each soonest, and of the next, and how much longer that one was inside, ns.
    """
    seq, took = calls["seq"][mine].astype(np.int64), calls["duration_ns"][mine].astype(np.float64)
    comm, comms = dictionary_encoding.factorize(calls["comm"][mine])
    instance, found = dictionary_encoding.factorize((comm.astype(np.int64) << 40) + seq)
    order = np.lexsort((took, instance))
    first = np.searchsorted(instance[order], np.arange(len(found)))
    of_comm, number = found >> 40, found % (1 << 40)
    begins, ends = np.full(len(comms), np.iinfo(np.int64).max), np.zeros(len(comms), np.int64)
    np.minimum.at(begins, of_comm, number)
    np.maximum.at(ends, of_comm, number)
    started = number >= begins[of_comm] + _STARTING * (ends - begins)[of_comm]
    whole = np.flatnonzero((np.bincount(instance) > 1) & started)
    whole = whole[np.argsort(of_comm[whole], kind="stable")]
    parts = np.split(whole, np.flatnonzero(np.diff(of_comm[whole])) + 1)
    rows = [(order[first[part]], order[first[part] + 1]) for part in parts if len(part) >= _ENOUGH]
    return [(mine[least], mine[after], took[after] - took[least]) for least, after in rows]


def _late(calls: Table, first: Ints, second: Ints, longer: Floats, meetings: _Meetings) -> float:
    """Ns by which the ``first`` [N] to leave came later than the ``second`` [N], of these being inside ``longer`` [N].

    Measured since all last met. A root that comes in time may leave at once, since its data is received on the way; it
    is then early for the next meeting. Where start times are unknown, a root that waits there as much longer was not
    late.
    """
    if (calls["start_ns"][first] < 0).any() or (calls["start_ns"][second] < 0).any():
        least, after = (int(calls["rank"][rows[0]]) for rows in (first, second))
        return float(longer.sum()) - max(float(meetings.inside(least) - meetings.inside(after)), 0.0)
    later = np.nan_to_num(meetings.since(first) - meetings.since(second))
    return float(np.clip(later, -longer, longer).sum())


class _Meetings:
    """Calls that end only when all have come, by rank; computed once, at first use."""

    def __init__(self, calls: Table, meets: Array) -> None:
        self._calls, self._meets = calls, meets

    @cached_property
    def _of_rank(self) -> dict[int, Ints]:
        """The rows of each rank's meetings."""
        rows = np.flatnonzero(self._meets)
        rows = rows[np.argsort(self._calls["rank"][rows], kind="stable")]
        ranks, begins = np.unique(self._calls["rank"][rows], return_index=True)
        return dict(zip(ranks.tolist(), np.split(rows, begins)[1:], strict=True))

    @cached_property
    def _ends(self) -> dict[int, Ints]:
        """When each rank's meetings ended, in order."""
        start, took = self._calls["start_ns"], self._calls["duration_ns"]
        return {rank: np.sort(start[rows] + took[rows]) for rank, rows in self._of_rank.items()}

    def inside(self, rank: int) -> int:
        """Ns that a rank was inside of them in all."""
        return int(self._calls["duration_ns"][self._of_rank.get(rank, _NONE)].sum())

    def since(self, calls: Ints) -> Floats:
        """[N] ns from when all last met to these calls, on each rank's own clock; NaN before the first time."""
        start, found = self._calls["start_ns"][calls], np.full(len(calls), np.nan)
        ranks = self._calls["rank"][calls]
        for rank in np.unique(ranks).tolist():
            mine, ends = np.flatnonzero(ranks == rank), self._ends.get(rank, _NONE)
            last = np.searchsorted(ends, start[mine], side="right") - 1
            mine, last = mine[last >= 0], last[last >= 0]
            found[mine] = start[mine] - ends[last]
        return found


_NONE = np.empty(0, np.int64)
