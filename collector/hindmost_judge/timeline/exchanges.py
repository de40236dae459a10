"""Steps of hosts that send to each other and meet in no collective: exchanges of a domain's edges with neighbours.

Each rank repeats the same messages, and one repetition is a step. What neighbours wait for each other in it reaches all
ranks within a few steps, so that it counts as one call of all of them. Its time is what the rank spent in its messages,
and its self time what it spent between them.

Ranks must do alike. In a pipeline, or where one rank hands out work, some receive first and pass on: they wait by
design.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindmost_judge import encoding
from hindmost_judge.model import ERROR, GPU_TIME, UNMEASURED, Run, Table, rows
from hindmost_judge.stats.robust import median
from hindmost_judge.timeline import steps
from hindmost_judge.timeline.collective_calls import EXCHANGE, OWN, sums
from hindmost_judge.timeline.messages import job_ranks

if TYPE_CHECKING:
    from hindmost_judge.types import Array, Floats, Ints

#: The rank that has made the fewest steps has made at least this share of the most: others do not wait for it else.
_TOGETHER = 0.9


class _Steps(NamedTuple):
    """Steps of a rank: which ``call`` [N] (row of the table) is of which, ``number`` [N], from 0 to S - 1.

    ``began`` [S] ns is when each began, ``whom`` the other ranks in its messages, ``kinds`` what calls a step has, in
    the order in which they first come.
    """

    call: Ints
    number: Ints
    began: Floats
    whom: frozenset[int]
    kinds: tuple[int, ...]


def with_exchanges_joined(run: Run) -> Run | None:
    """The run with the messages of each rank's steps as one call, and without all others.

    ``None`` where a rank's messages repeat in no pattern, ranks differ in what they do, or do not wait for each other.
    """
    table = run.collectives
    if not rows(table) or not ((table["peer"] >= 0) & ((table["flags"] & GPU_TIME) == 0)).any():
        return None
    code, _ = encoding.codes(table["op"])
    usable = ((table["flags"] & (ERROR | GPU_TIME)) == 0) & (table["duration_ns"] >= 0)
    held = np.flatnonzero(usable & (table["start_ns"] >= 0) & (table["self_ns"] != UNMEASURED))
    held = held[np.lexsort((table["start_ns"][held], table["rank"][held]))]
    peer = job_ranks(run, table["comm"][held], table["peer"][held])
    if len(held) == 0:  # nothing tells what ranks did between their messages
        return None
    ranks, first = np.unique(table["rank"][held], return_index=True)
    found: list[_Steps] = []
    for mine, whom in zip(np.split(held, first[1:]), np.split(peer, first[1:]), strict=True):
        one = _of_rank(table, code, mine, whom)
        if one is None:
            return None
        found.append(one)
    if not _alike(found) or not _connected(ranks, found):
        return None
    return replace(run, collectives=_joined(table, found))


def _of_rank(table: Table, code: Ints, mine: Ints, whom: Ints) -> _Steps | None:
    """The steps of a rank's calls ``mine`` [N], in order, with their peers; ``None`` without a pattern."""
    token = encoding.factorize(code[mine] * (int(whom.max()) + 2) + whom + 1)[0].astype(np.int64)
    number = steps.infer(token, table["self_ns"][mine].astype(np.float64), apart=True)
    inside = np.flatnonzero(number >= 0)
    if len(inside) == 0:
        return None
    _, begins, number = np.unique(number[inside], return_index=True, return_inverse=True)
    call, step = mine[inside], inside[number == np.bincount(number).argmax()]
    peers = frozenset(whom[inside][whom[inside] >= 0].tolist())
    began = table["start_ns"][call[begins]].astype(np.float64)
    return _Steps(call, number, began, peers, tuple(dict.fromkeys(code[mine[step]].tolist())))


def _alike(found: list[_Steps]) -> bool:
    """Whether all ranks do the same in a step, and have made about as many."""
    made = [len(one.began) for one in found]
    return len({one.kinds for one in found}) == 1 and min(made) >= _TOGETHER * max(made)


def _connected(ranks: Array, found: list[_Steps]) -> bool:
    """Whether all wait for each other, some through others."""
    whom = dict(zip(ranks.tolist(), (one.whom for one in found), strict=True))
    reached, new = set[int](), {int(ranks[0])}
    while new:
        reached |= new
        new = {peer for rank in new for peer in whom.get(rank, ())} - reached
    return reached == set(whom)


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
    middle = (other[1:] + other[:-1]) / 2
    number = np.searchsorted(middle, began).astype(np.int64)
    number[1:][np.diff(number) == 0] = -1
    return number
