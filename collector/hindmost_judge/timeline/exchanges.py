"""Steps of hosts that send to each other and meet in no collective: exchanges of a domain's edges with neighbours.

Each rank repeats the same messages, and one repetition is a step. What neighbours wait for each other in it reaches all
ranks within a few steps, so that each is late as for one call of all of them. Costs are replayed from neighbour to
neighbour. The time of a step is what the rank spent in its messages, its self time what it spent between them.

Ranks must compute at the same time. In a pipeline or a ring, or where one rank hands out work, some wait for what
others make of their message: that is by design, and no rank is late for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hindmost_judge import encoding
from hindmost_judge.model import ERROR, GPU_TIME, UNMEASURED, Run, Table
from hindmost_judge.stats.robust import median
from hindmost_judge.timeline import steps
from hindmost_judge.timeline.collective_calls import EXCHANGE, OWN, messages, sums
from hindmost_judge.timeline.messages import have_peers, job_ranks
from hindmost_judge.types import Floats, Ints

#: The rank that has made the fewest steps has made at least this share of the most: others do not wait for it else.
_TOGETHER = 0.9
#: A message is one of the steps if it is in at least this share of them.
_MOST = 0.5
#: The rank that computes longest is in its messages for less than this share of each neighbour's computing. Of ranks
#: that compute in turn each is in them for all of it.
_AT_ONCE = 0.8


class _Steps(NamedTuple):
    """Steps of a rank: which ``call`` [N] (row of the table) is of which, ``number`` [N], from 0 to S - 1.

    ``began`` [S] ns is when each began, ``sources`` and ``targets`` the known ranks in the messages that most steps
    have, ``kinds`` what calls a step has, in the order in which they first come. A step usually has ``computing`` and
    ``waiting`` ns between and in its calls.
    """

    call: Ints
    number: Ints
    began: Floats
    sources: frozenset[int]
    targets: frozenset[int]
    kinds: tuple[int, ...]
    computing: float
    waiting: float

    @property
    def whom(self) -> frozenset[int]:
        """The other ranks in its messages."""
        return self.sources | self.targets


def with_exchanges_joined(run: Run) -> tuple[Run, Ints] | None:
    """The run with the messages of each rank's steps as one call, and without all others; who waits for whom in them.

    The latter [2, E] are ranks, in order, and a rank of which each receives; a rank waits for itself, too.
    ``None`` where a rank's messages repeat in no pattern, ranks differ in what they do, or do not wait for each other.
    """
    table = run.collectives
    if not have_peers(table):
        return None
    code, names = encoding.codes(table["op"])
    usable = messages(names)[code]  # a collective now and then is no part of a step
    usable &= ((table["flags"] & (ERROR | GPU_TIME)) == 0) & (table["duration_ns"] >= 0)
    calls = np.flatnonzero(usable & (table["start_ns"] >= 0) & (table["self_ns"] != UNMEASURED))
    if len(calls) == 0:  # nothing tells what ranks did between their messages
        return None
    calls = calls[np.lexsort((table["start_ns"][calls], table["rank"][calls]))]
    peer = job_ranks(run, table["comm"][calls], table["peer"][calls])
    ranks, first = np.unique(table["rank"][calls], return_index=True)
    found: dict[int, _Steps] = {}
    for rank, mine, whom in zip(ranks.tolist(), np.split(calls, first[1:]), np.split(peer, first[1:]), strict=True):
        one = _of_rank(table, code, mine, whom)
        if one is None or (found and one.kinds != found[int(ranks[0])].kinds):
            return None
        found[rank] = one
    made = [len(one.began) for one in found.values()]
    if min(made) < _TOGETHER * max(made) or not _connected(found) or not _at_once(found):
        return None
    return replace(run, collectives=_joined(table, list(found.values()))), _neighbours(found)


def _neighbours(found: dict[int, _Steps]) -> Ints:
    """[2, E] ranks and those of which they receive, in order: where a source is not recorded, by who sends to it."""
    known = {(rank, source) for rank, one in found.items() for source in (rank, *one.sources)}
    known |= {(target, rank) for rank, one in found.items() for target in one.targets}
    return np.asarray(np.array(sorted(known), np.int64).T)


def _of_rank(table: Table, code: Ints, mine: Ints, whom: Ints) -> _Steps | None:
    """The steps of a rank's calls ``mine`` [N], in order, with their peers; ``None`` without a pattern."""
    token = encoding.factorize(code[mine] * (int(whom.max()) + 2) + whom + 1)[0].astype(np.int64)
    number = steps.infer(token, table["self_ns"][mine].astype(np.float64))
    inside = np.flatnonzero(number >= 0)
    if len(inside) == 0:
        return None
    _, begins, number = np.unique(number[inside], return_index=True, return_inverse=True)
    call, step = mine[inside], inside[number == np.bincount(number).argmax()]
    usual = inside[np.bincount(token[inside])[token[inside]] >= _MOST * len(begins)]
    usual = usual[whom[usual] >= 0]
    sent = table["op"][mine[usual]] == "send"
    computing, waiting = (
        float(median(np.bincount(number, table[name][call]).astype(np.float64))) for name in ("self_ns", "duration_ns")
    )
    return _Steps(
        call=call,
        number=number,
        began=table["start_ns"][call[begins]].astype(np.float64),
        sources=frozenset(whom[usual[~sent]].tolist()),
        targets=frozenset(whom[usual[sent]].tolist()),
        kinds=tuple(dict.fromkeys(code[mine[step]].tolist())),
        computing=computing,
        waiting=waiting,
    )


def _connected(found: dict[int, _Steps]) -> bool:
    """Whether all wait for each other, some through others."""
    reached, new = set[int](), {next(iter(found))}
    while new:
        reached |= new
        new = {peer for rank in new if rank in found for peer in found[rank].whom} - reached
    return reached == set(found)


def _at_once(found: dict[int, _Steps]) -> bool:
    """Whether the rank that computes longest, and so waits least, computes at the same time as its neighbours."""
    longest = max(found.values(), key=lambda one: one.computing)
    return longest.waiting < _AT_ONCE * min((found[peer].computing for peer in longest.whom), default=0.0)


def _joined(table: Table, found: list[_Steps]) -> Table:
    """One row a rank and step; the same number for the steps of two ranks that began at about the same time."""
    longest = max(found, key=lambda one: len(one.began))
    numbers = [_as_of(longest.began, one.began) for one in found]
    made = np.cumsum([0, *(len(one.began) for one in found)])
    call = np.concatenate([one.call for one in found])
    which = np.concatenate([one.number + begin for one, begin in zip(found, made, strict=False)])
    order = np.lexsort((table["start_ns"][call], which))
    call, which = call[order], which[order]
    last = call[np.append(np.diff(which) > 0, True)]
    took = np.bincount(which, table["duration_ns"][call]).astype(np.int64)
    sizes = np.bincount(which, np.maximum(table["bytes"][call], 0)).astype(np.int64)
    own = {name: sums(table, name, call, which, last)[last] for name in OWN}
    rest = {name: column[last] for name, column in table.items()}
    joined = (
        rest
        | own
        | {
            "op": np.full(len(last), EXCHANGE),
            "comm": np.zeros(len(last), np.uint64),
            "seq": np.concatenate(numbers),
            "start_ns": table["start_ns"][last] + table["duration_ns"][last] - took,
            "duration_ns": took,
            "bytes": np.full(len(last), int(median(sizes.astype(np.float64)))),
            "flags": np.zeros(len(last), np.int32),
            "peer": np.full(len(last), -1, np.int32),
        }
    )
    return encoding.chosen(joined, joined["seq"] >= 0)


def _as_of(other: Floats, began: Floats) -> Ints:
    """[S] which of the steps of another rank each is: the one that began next to it; -1 for one that had its own."""
    if len(other) == len(began):
        return np.arange(len(began))
    number = np.searchsorted((other[1:] + other[:-1]) / 2, began).astype(np.int64)
    nearest = np.lexsort((np.abs(began - other[number]), number))
    number[nearest[1:][np.diff(number[nearest]) == 0]] = -1
    return number
