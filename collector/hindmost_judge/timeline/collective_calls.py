"""Which calls make ranks wait for each other, with one row for each: what :mod:`matching` puts side by side.

An operation's name says whether it is synchronising. Three kinds of calls need more than that:

- Nonblocking collectives, which one call starts and another waits for (``MPI_Iallreduce``, ``MPI_Start``), become one
  call. A rank is ready once it has started one; the second call's time is its waiting for the others.
- Communicators in which a single rank was seen are set aside: no other rank's self time ends there.
- A broadcast has no common end: the root leaves at once, and a receiver that comes after it does not wait. It counts
  where most of a job waits for a late root: for a model's buffers before each forward, or a batch that one rank reads.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from hindmost_judge.encoding import chosen, factorize, grouped
from hindmost_judge.model import ERROR, NONBLOCKING, UNMEASURED, Table
from hindmost_judge.stats.robust import or_zero
from hindmost_judge.types import Array, Floats, Ints

#: The messages of a step with all neighbours, as one operation.
EXCHANGE = "exchange"
#: Operations that no member can leave before every member has entered, spelled without punctuation.
_SYNCHRONISING = tuple(
    (
        "allreduce allgather reducescatter barrier alltoall allgatherbase reducescattertensor allgatherintotensor "
        f"ddpsync {EXCHANGE}"
    ).split()
)
#: Operations in which one rank gives to all others, spelled likewise.
_ROOTED = ("broadcast", "bcast", "broadcastoop", "scatter")
#: Calls of two ranks, and the wait for one of them.
_MESSAGES = frozenset({"send", "recv", "sendrecv", "probe", "wait"})
#: Parts of the names of what ranks run inside of forward and backward, where computing may wait for it.
_INSIDE = ("gather", "all_to_all")


def is_synchronising(name: str) -> bool:
    """Whether this operation's name is one whose end is common to all members."""
    return _plain(name) in _SYNCHRONISING


def is_rooted(name: str) -> bool:
    """Whether this operation's name is one in which a root gives to all others."""
    return _plain(name) in _ROOTED


def messages(names: Sequence[str]) -> Array:
    """[M] which of these operations are calls of two ranks, or waits for one of them."""
    return np.array([name.replace("_", "") in _MESSAGES for name in names], bool)


def is_inside(name: str) -> bool:
    """Whether this operation's name is one that gathers parameters, or exchanges parts of batches."""
    return any(part in name for part in _INSIDE)


def _plain(name: str) -> str:
    plain = "".join(c for c in name.lower() if c.isalnum())
    return plain.removeprefix("mpi").removeprefix("nccl").rstrip("vw")


#: How the wait for a request is named.
WAIT = "wait"
#: What a start measured of the time before it: it is of the next call that meets the others.
OWN = ("self_ns", "cpu_ns", "runqueue_ns")
#: The MPI shim samples the CPU time of intervals from this length (ns) on: for shorter ones the measurement costs more
#: than it is worth.
SAMPLED_FROM_NS = 1e6


def with_their_waits(table: Table, waits: Array, meets: Array) -> tuple[Table, Array]:
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
    return chosen(found, left), left


def _of_waits(table: Table, started: Ints, waited: Ints) -> tuple[Ints, Ints]:
    """``(row of the start that each wait is for, -1 for none; which collective each start, then wait, is of)``."""
    both = np.concatenate([started, waited])
    comm, _ = factorize(table["comm"][both])
    instance = factorize((comm.astype(np.int64) << 36) + table["seq"][both].astype(np.int64))[0].astype(np.int64)
    rank = table["rank"][both].astype(np.int64)
    key, keys = factorize(instance * (int(rank.max()) + 1) + rank)
    found = np.full(len(keys), -1, np.int64)
    found[key[: len(started)]] = started
    return np.asarray(found[key[len(started) :]], np.int64), instance


def with_before(table: Table, stays: Array, columns: Sequence[str]) -> Table:
    """The table with these columns of the rows that do not stay added to the rank's next row that does."""
    order = np.lexsort((table["start_ns"], table["rank"]))
    staying = stays[order]
    into = order[staying]
    interval = np.cumsum(staying) - staying
    follows = interval < len(into)
    follows[follows] = table["rank"][into[interval[follows]]] == table["rank"][order[follows]]
    longer = np.zeros(len(into), bool)
    longer[interval[follows & ~staying]] = True
    mask = follows & np.append(longer, False)[interval]
    number = (np.cumsum(longer) - 1)[interval[mask]]
    return table | {name: sums(table, name, order[mask], number, into[longer]) for name in columns}


def sums(table: Table, name: str, sources: Ints, number: Ints, into: Ints) -> Array:
    """The column with each of the rows ``into`` [T] the sum of its sources: rows ``sources`` [N].

    ``number`` [N] says to which row each source belongs; T to none. Unmeasured where one of them is; intervals too
    short to be sampled count as computing.
    """
    values = table[name][sources]
    if (values == UNMEASURED).all():
        return np.asarray(table[name])
    self_time = table["self_ns"][sources]
    short = (values == UNMEASURED) & (self_time != UNMEASURED) & (self_time < SAMPLED_FROM_NS)
    values = np.where(short, self_time if name == "cpu_ns" else 0, values)
    total = np.zeros(len(into) + 1, np.int64)
    np.add.at(total, number, values)
    total[number[values == UNMEASURED]] = UNMEASURED
    found = np.array(table[name])
    found[into] = total[:-1]
    return found


def without_single_members(table: Table) -> Table:
    """The table without them; unchanged where no communicator has several ranks.

    What was measured of the time before one of them counts to the rank's next collective.
    """
    comm, _ = factorize(table["comm"])
    one = np.zeros(comm.max() + 1, np.int64)
    one[comm] = table["rank"]
    met = np.zeros(len(one), bool)
    met[comm[table["rank"] != one[comm]]] = True
    if met.all() or not met.any():
        return table
    stays = met[comm]
    return chosen(with_before(table, stays, OWN), stays)


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
_NONE = np.empty(0, np.int64)


def awaited_broadcasts(calls: Table, code: Ints, rooted: Array, meets: Array) -> Array:
    """[N] which calls are broadcasts, or other rooted operations, for which all but one rank of a communicator wait.

    ``code`` [N] numbers the operation of each call. In ``rooted`` [M] operations a root sends; calls that ``meets`` [N]
    end only when all have come. All calls of such an operation count: also of other communicators, and those without
    waiting.
    """
    found = np.zeros(len(code), bool)
    if not rooted.any():
        return found
    indices = np.flatnonzero(rooted[code] & ((calls["flags"] & (NONBLOCKING | ERROR)) == 0))
    indices = indices[(calls["duration_ns"][indices] >= 0) & (calls["seq"][indices] >= 0)]
    often = np.flatnonzero(np.bincount(code[indices], minlength=len(rooted)) >= 2 * _ENOUGH)
    if not len(often):
        return found
    least, met = _least(calls), np.flatnonzero(meets)
    ends = calls["start_ns"] + calls["duration_ns"]
    left = {
        int(calls["rank"][mine[0]]): np.sort(ends[mine]) for mine in (met[one] for one in grouped(calls["rank"][met]))
    }
    for operation in often.tolist():
        mine = indices[code[indices] == operation]
        most = heapq.nlargest(_LOOKED_AT, _left_first(calls, mine), key=lambda one: float(one[2].sum()))
        found[mine] = any(
            longer.sum() >= least
            and _root_late_by(calls, first, second, longer, met, left) >= max(least, _MOSTLY * longer.sum())
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


def _left_first(calls: Table, mine: Ints) -> list[tuple[Ints, Ints, Floats]]:
    """For each communicator of the calls ``mine`` of one operation, without start-up: who left each call first.

    The rows of the rank that left each soonest, and of the next, and how much longer that one was inside, ns.
    """
    seq, took = calls["seq"][mine].astype(np.int64), calls["duration_ns"][mine].astype(np.float64)
    comm, comms = factorize(calls["comm"][mine])
    instance, found = factorize((comm.astype(np.int64) << 40) + seq)
    order = np.lexsort((took, instance))
    first = np.searchsorted(instance[order], np.arange(len(found)))
    of_comm, number = found >> 40, found % (1 << 40)
    begins, ends = np.full(len(comms), np.iinfo(np.int64).max), np.zeros(len(comms), np.int64)
    np.minimum.at(begins, of_comm, number)
    np.maximum.at(ends, of_comm, number)
    started = number >= begins[of_comm] + _STARTING * (ends - begins)[of_comm]
    whole = np.flatnonzero((np.bincount(instance) > 1) & started)
    parts = [whole[one] for one in grouped(of_comm[whole])]
    rows = [(order[first[part]], order[first[part] + 1]) for part in parts if len(part) >= _ENOUGH]
    return [(mine[least], mine[after], took[after] - took[least]) for least, after in rows]


def _root_late_by(calls: Table, first: Ints, second: Ints, longer: Floats, met: Ints, left: dict[int, Ints]) -> float:
    """Ns by which the ``first`` [N] to leave came later than the ``second`` [N], of these being inside ``longer`` [N].

    Measured since all last ``met`` (rows), which ranks ``left`` then. A root that comes in time may leave at once,
    since its data is received on the way; it is then early for the next meeting. Where start times are unknown, a root
    that waits there as much longer was not late.
    """
    if (calls["start_ns"][first] < 0).any() or (calls["start_ns"][second] < 0).any():
        inside = np.bincount(calls["rank"][met], calls["duration_ns"][met], minlength=int(calls["rank"].max()) + 1)
        return float(longer.sum()) - max(float(np.subtract(*inside[calls["rank"][[first[0], second[0]]]])), 0.0)
    later = or_zero(_since_met(calls, first, left) - _since_met(calls, second, left))
    return float(np.clip(later, -longer, longer).sum())


def _since_met(calls: Table, rows: Ints, left: dict[int, Ints]) -> Floats:
    """[N] ns from when each rank last ``left`` a meeting to these calls, on its own clock; NaN before the first one."""
    start, found = calls["start_ns"][rows], np.full(len(rows), np.nan)
    for mine in grouped(calls["rank"][rows]):
        ends = left.get(int(calls["rank"][rows[mine[0]]]), _NONE)
        last = np.searchsorted(ends, start[mine], side="right") - 1
        found[mine[last >= 0]] = (start[mine] - ends[last])[last >= 0] if len(ends) else np.nan
    return found
