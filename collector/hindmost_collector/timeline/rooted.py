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
#: Waiting less than this share of the time shows nobody late: some jitter of arrivals is in every job.
_SHARE = 0.005
#: … or this share of what is spent in calls, where nobody knows when they began.
_SHARE_OF_CALLS = 0.1
#: The part of a kind's calls that may be starting up: a root that loads what it gives is waited for then, once.
_STARTING = 0.25


def awaited(calls: Table, code: Ints, names: list[str]) -> Array:
    """[N] which calls are broadcasts of a kind (operation and size) in which all of a communicator but one wait.

    ``code`` [N] numbers the operation of each call in ``names``. All of a kind are: of other communicators, and those
    in which nobody waits, too.
    """
    rooted = np.array([_plain(name) in _ROOTED for name in names])
    found = np.zeros(len(code), bool)
    if not rooted.any():
        return found
    held = np.flatnonzero(rooted[code] & ((calls["flags"] & (NONBLOCKING | ERROR)) == 0))
    held = held[(calls["duration_ns"][held] >= 0) & (calls["seq"][held] >= 0)]
    if len(held) < 2 * _ENOUGH:
        return found
    kind, _ = coded.factorize((code[held].astype(np.int64) << 40) + calls["bytes"][held])
    least = _least(calls)
    for one in range(kind.max() + 1):
        mine = held[kind == one]
        if len(mine) >= 2 * _ENOUGH and _waited(calls, mine) >= least:
            found[mine] = True
    return found


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum()).removeprefix("mpi").removeprefix("nccl")


def _least(calls: Table) -> float:
    """Ns that ranks wait in all, at least, for somebody to be late, by the rank that the table begins with."""
    mine = calls["rank"] == calls["rank"][0]
    start = calls["start_ns"][mine]
    if (start >= 0).any():
        return _SHARE * float(np.ptp(start[start >= 0]))
    return _SHARE_OF_CALLS * float(np.maximum(calls["duration_ns"], 0).sum()) / len(np.unique(calls["rank"]))


def _waited(calls: Table, mine: Ints) -> float:
    """Ns that all but one wait in the calls ``mine`` of one kind, in the communicator in which that is most."""
    seq, took = calls["seq"][mine].astype(np.int64), calls["duration_ns"][mine].astype(np.float64)
    comm, _ = coded.factorize(calls["comm"][mine])
    instance, found = coded.factorize((comm.astype(np.int64) << 40) + seq)
    order = np.lexsort((took, instance))
    first = np.searchsorted(instance[order], np.arange(len(found)))
    whole = (np.bincount(instance) > 1) & (found % (1 << 40) >= np.quantile(seq, _STARTING))
    if whole.sum() < _ENOUGH:
        return 0.0
    waited = took[order][first[whole] + 1] - took[order][first[whole]]
    return float(np.bincount(found[whole] >> 40, waited).max())
