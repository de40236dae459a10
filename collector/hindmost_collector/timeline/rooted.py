"""Broadcasts whose receivers wait for their root: where most or all of a job finds out that one rank is late.

Nobody leaves a broadcast before its root has come. The root leaves at once, and who comes after it waits for nobody:
its end is no common one, and most broadcasts tell nothing. Those of a model's buffers before each forward (batch norm
under DDP), or of a batch that one rank reads for all, come once a step; if the root is late, it is there that everybody
waits for it, and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector import coded
from hindmost_collector.model import ERROR, NONBLOCKING

if TYPE_CHECKING:
    from hindmost_collector.align import Array, Ints
    from hindmost_collector.model import Table

#: Operations in which one rank gives to all others, spelled without punctuation.
_ROOTED = ("broadcast", "bcast", "broadcastoop", "scatter")
#: Fewer of a kind than this are starting up, which broadcasts a model's parameters.
_ENOUGH = 10
#: Who waits is inside for so many times as long as who is waited for: two that carry the same data take about as long.
_LONGER = 5.0
#: Waiting less than this share of the time shows nobody late: some jitter of arrivals is in every job.
_SHARE = 0.005
#: The part of a recording, one in so many, that may be starting up.
_STARTING = 4


def awaited(calls: Table, code: Ints, names: list[str]) -> Array:
    """[N] which calls are broadcasts of a kind (communicator, operation and size) in which all but one rank wait.

    ``code`` [N] numbers the operation of each call in ``names``. All of a kind are, also those in which nobody waits.
    """
    rooted = np.array([_plain(name) in _ROOTED for name in names])
    found = np.zeros(len(code), bool)
    if not rooted.any():
        return found
    usable = ((calls["flags"] & (NONBLOCKING | ERROR)) == 0) & (calls["duration_ns"] >= 0) & (calls["start_ns"] >= 0)
    held = np.flatnonzero(rooted[code] & usable)
    if len(held) < 2 * _ENOUGH:
        return found
    comm, _ = coded.factorize(calls["comm"][held])
    kind, _ = coded.factorize((comm.astype(np.int64) * len(names) + code[held]) * (1 << 40) + calls["bytes"][held])
    for one in range(kind.max() + 1):
        mine = held[kind == one]
        if len(mine) >= 2 * _ENOUGH and _waited(calls, mine):
            found[mine] = True
    return found


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum()).removeprefix("mpi").removeprefix("nccl")


def _waited(calls: Table, mine: Ints) -> bool:
    """Whether all but one wait for long in the calls ``mine`` of one kind, those of the recording's start apart."""
    rank, took = calls["rank"][mine], calls["duration_ns"][mine].astype(np.float64)
    instance, found = coded.factorize(calls["seq"][mine])
    order = np.lexsort((took, instance))
    first = np.searchsorted(instance[order], np.arange(len(found)))
    count = np.bincount(instance)
    begun, span = _begun(calls, mine[rank == rank[0]])
    late = np.zeros(len(found), bool)
    late[instance[rank == rank[0]]] = begun >= span / _STARTING
    whole = late & (count == count.max())
    if count.max() < 2 or whole.sum() < _ENOUGH:
        return False
    least, next_least = took[order][first[whole]], took[order][first[whole] + 1]
    return bool(np.where(next_least > _LONGER * least, next_least - least, 0.0).sum() >= _SHARE * span)


def _begun(calls: Table, mine: Ints) -> tuple[Array, float]:
    """Ns from a rank's first call to its calls ``mine``, and to its last of all."""
    start = calls["start_ns"][calls["rank"] == calls["rank"][mine[0]]]
    start = start[start >= 0]
    return calls["start_ns"][mine] - start.min(), float(np.ptp(start))
