"""Collectives that one call starts and another waits for (``MPI_Iallreduce``, ``MPI_Start``), joined into one.

A rank is ready once it has started one: no rank waits for what it computes between the two calls, which is self time
like any other. The second call's time is its waiting for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge import constant, dictionary_encoding
from hindmost_judge.model import ERROR, NONBLOCKING, UNMEASURED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.model import Table
    from hindmost_judge.types import Array, Ints

#: How the wait for a request is named.
WAIT = "wait"
#: What a start measured of the time before it: it is of the next call that meets the others.
OWN = ("self_ns", "cpu_ns", "runqueue_ns")
#: The MPI shim samples the CPU time of intervals from this length (ns) on: for shorter ones the measurement costs more
#: than it is worth.
SAMPLED_FROM_NS = 1e6


def joined(table: Table, waits: Array, meets: Array) -> tuple[Table, Array]:
    """The table with each awaited collective as one blocking row, without its waits; and the mask [N] of the rows left.

    ``waits`` [N] are rows of the operation :data:`WAIT`, ``meets`` [N] of synchronising ones. A collective that a
    rank completed by polling, or waited for among others, stays as it was on all of its ranks: how long that rank
    waited is unknown.
    """
    left = np.ones(len(waits), bool)
    # The wait for a message is for no communicator.
    finished = (table["comm"] != 0) & (table["duration_ns"] >= 0)
    waits = waits & finished & ((table["flags"] & (NONBLOCKING | ERROR)) == 0)
    if not waits.any():
        return table, left
    started = np.flatnonzero(meets & finished & ((table["flags"] & (NONBLOCKING | ERROR)) == NONBLOCKING))
    waited = np.flatnonzero(waits)
    start, instance = _of_waits(table, started, waited)
    alone = np.ones(len(waits), bool)
    alone[start[start >= 0]] = False
    polled = np.zeros(instance.max() + 1, bool)
    polled[instance[: len(started)][alone[started]]] = True
    known = (start >= 0) & ~polled[instance[len(started) :]]
    if not known.any():
        return table, left
    start, waited = start[known], waited[known]
    found = table | {name: np.array(table[name]) for name in ("start_ns", "duration_ns", "flags")}
    found["duration_ns"][start] = 0
    np.add.at(found["duration_ns"], start, table["duration_ns"][waited])  # MPI_Waitany may wait for it more than once
    found["start_ns"][start[::-1]] = table["start_ns"][waited[::-1]]
    found["flags"][start] &= ~NONBLOCKING
    left[waited] = False
    found = _met(found, table, meets, left)
    return constant.chosen(found, left), left


def _of_waits(table: Table, started: Ints, waited: Ints) -> tuple[Ints, Ints]:
    """``(row of the start that each wait is for, -1 for none; which collective each start, then wait, is of)``."""
    both = np.concatenate([started, waited])
    instance = _instance(table, both)
    rank = table["rank"][both].astype(np.int64)
    key, keys = dictionary_encoding.factorize(instance * (int(rank.max()) + 1) + rank)
    found = np.full(len(keys), -1, np.int64)
    found[key[: len(started)]] = started
    return np.asarray(found[key[len(started) :]], np.int64), instance


def _instance(table: Table, held: Ints) -> Ints:
    """Which collective each of these rows is of: a number for each communicator and sequence."""
    comm, _ = dictionary_encoding.factorize(table["comm"][held])
    return np.asarray(
        dictionary_encoding.factorize((comm.astype(np.int64) << 36) + table["seq"][held].astype(np.int64))[0], np.int64
    )


def _met(table: Table, before: Table, meets: Array, left: Array) -> Table:
    """The table with measurements before each start counted to the rank's next call that meets the others.

    Collectives that all ranks wait for one after another become one; ``left`` [N] loses the others' rows. ``before``
    is the table as it was: there a start stands at its own moment.
    """
    targets = np.flatnonzero(meets & ((table["flags"] & (NONBLOCKING | ERROR)) == 0))
    sources = np.union1d(np.flatnonzero((before["flags"] & NONBLOCKING) != 0), targets)
    both = np.concatenate([sources, targets])
    moment = np.concatenate([before["start_ns"][sources], table["start_ns"][targets]])
    meeting = np.arange(len(both)) >= len(sources)
    order = np.lexsort((meeting, moment, table["rank"][both]))
    both, meeting = both[order], meeting[order]
    stretch: Ints = np.cumsum(meeting) - meeting  # what follows the last call of a rank is cut off
    targets = both[meeting]
    stretch[table["rank"][both] != table["rank"][targets[np.minimum(stretch, len(targets) - 1)]]] = len(targets)
    sources, stretch = both[~meeting], stretch[~meeting]
    starting = np.bincount(stretch, minlength=len(targets) + 1)[:-1] > 0
    instance = _instance(table, targets)
    kept = np.isin(instance, instance[starting])
    into = targets[np.maximum.accumulate(np.where(kept, np.arange(len(targets)), 0))]
    np.add.at(table["duration_ns"], into[~kept], table["duration_ns"][targets[~kept]])
    left[targets[~kept]] = False
    return table | {name: sums(before, name, sources, stretch, targets) for name in OWN}


def with_before(table: Table, stays: Array, columns: Sequence[str]) -> Table:
    """The table with these columns of the rows that do not stay added to the rank's next row that does."""
    order = np.lexsort((table["start_ns"], table["rank"]))
    kept = stays[order]
    into = order[kept]
    stretch = np.cumsum(kept) - kept
    follows = stretch < len(into)
    follows[follows] = table["rank"][into[stretch[follows]]] == table["rank"][order[follows]]
    longer = np.zeros(len(into), bool)
    longer[stretch[follows & ~kept]] = True
    held = follows & np.append(longer, False)[stretch]
    number = (np.cumsum(longer) - 1)[stretch[held]]
    return table | {name: sums(table, name, order[held], number, into[longer]) for name in columns}


def sums(table: Table, name: str, sources: Ints, number: Ints, into: Ints) -> Array:
    """The column with each of the rows ``into`` [T] the sum of its sources: rows ``sources`` [N].

    ``number`` [N] says to which row each source belongs; T to none. Unmeasured where one of them is; intervals too
    short to be sampled count as computing.
    """
    values = table[name][sources]
    if (values == UNMEASURED).all():
        return np.asarray(table[name])
    own = table["self_ns"][sources]
    short = (values == UNMEASURED) & (own != UNMEASURED) & (own < SAMPLED_FROM_NS)
    values = np.where(short, own if name == "cpu_ns" else 0, values)
    total = np.zeros(len(into) + 1, np.int64)
    np.add.at(total, number, values)
    total[number[values == UNMEASURED]] = UNMEASURED
    found = np.array(table[name])
    found[into] = total[:-1]
    return found
