"""Who waited for whom, collective by collective, as rows arrive.

A synchronising collective ends at one moment on all its members, so the shortest duration is the transfer and what
others took beyond it they spent waiting for the one that took the shortest: no clocks are compared. One instance is
settled when all members that this communicator has shown so far have reported it, or when it is old.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hindmost_collector.model import ERROR, NONBLOCKING, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hindmost_collector.columns import Words

Array = np.ndarray[Any, Any]

#: Operations that nobody leaves before everybody has entered.
SYNCHRONISING = frozenset(
    {
        "all_reduce",
        "all_gather",
        "all_gather_into_tensor",
        "all_to_all",
        "allreduce",
        "allgather",
        "alltoall",
        "barrier",
        "ddp_sync",
        "reduce_scatter",
        "reduce_scatter_tensor",
    }
)
_COLUMNS = ("rank", "comm", "seq", "duration_ns", "op")
#: Rows that may wait for the rest of their instance; beyond, the oldest are let go unsettled.
_PENDING = 1_000_000


class Waits:
    """Settles collectives. Asynchronous and failed calls, broadcasts and point-to-point calls say nothing of waits."""

    def __init__(self) -> None:
        self._pending: dict[str, Array] = {}
        self._members: dict[int, int] = {}

    def add(self, collectives: Table, words: Words) -> Mapping[str, tuple[Array, Array]]:
        """Counter name to ``(rank, seconds or count)`` of what the new rows settled."""
        fits = (collectives["flags"] & (NONBLOCKING | ERROR)) == 0
        fits &= collectives["duration_ns"] >= 0
        fits &= np.isin(collectives["op"], [words.code(op) for op in SYNCHRONISING])
        table = {name: collectives[name][fits] for name in _COLUMNS}
        if self._pending:
            table = {name: np.concatenate([self._pending[name], table[name]]) for name in _COLUMNS}
        if not len(table["rank"]):
            return {}
        order = np.lexsort((table["seq"], table["op"], table["comm"]))
        table = {name: column[order] for name, column in table.items()}
        return self._settle(table)

    def _settle(self, table: dict[str, Array]) -> Mapping[str, tuple[Array, Array]]:
        comm, seq, op = table["comm"], table["seq"], table["op"]
        fresh = np.ones(len(comm), dtype=bool)
        fresh[1:] = (comm[1:] != comm[:-1]) | (seq[1:] != seq[:-1]) | (op[1:] != op[:-1])
        starts = np.flatnonzero(fresh)
        counts = np.diff(np.append(starts, len(comm)))
        group = np.repeat(np.arange(len(starts)), counts)
        whole = counts >= self._sizes(comm[starts], counts)
        rows = whole[group] & (counts >= 2)[group]
        rest = ~whole[group]
        self._pending = {name: column[rest][-_PENDING:] for name, column in table.items()}
        return _shares(table["rank"], table["duration_ns"], starts, group, rows)

    def _sizes(self, comm: Array, counts: Array) -> Array:
        """How many members each communicator has shown in any one instance so far."""
        for one, count in zip(comm.tolist(), counts.tolist(), strict=True):
            if count > self._members.get(one, 2):
                self._members[one] = count
        return np.array([self._members.get(one, 2) for one in comm.tolist()])


def _shares(
    rank: Array, duration: Array, starts: Array, group: Array, rows: Array
) -> Mapping[str, tuple[Array, Array]]:
    shortest = np.minimum.reduceat(duration, starts)
    waited = (duration - shortest[group]) / 1e9
    sums = np.bincount(group, weights=waited, minlength=len(starts))
    position = np.arange(len(rank))
    last = np.full(len(starts), len(rank))
    is_shortest = duration == shortest[group]
    np.minimum.at(last, group[is_shortest], position[is_shortest])
    settled = np.bincount(group, weights=rows, minlength=len(starts)) > 0
    whole = np.flatnonzero(settled & (sums > 0))  # where nobody waited, nobody was last
    culprits = rank[last[whole]]
    return {
        "wait_seconds_total": (rank[rows], waited[rows]),
        "caused_wait_seconds_total": (culprits, sums[whole]),
        "last_arrivals_total": (culprits, np.ones(len(culprits))),
    }
