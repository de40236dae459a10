"""Steps of hosts that send to each other and meet in no collective: neighbours that exchange the edges of a domain,
stages that hand on what they made, a rank that hands out work.

Each rank repeats the same calls, and one repetition is a step. What ranks wait for each other in it reaches all within
a few steps, so that each is late as for one call of all of them. Costs are replayed from neighbour to neighbour. The
time of a step is what the rank spent in its calls, its self time what it spent between them.

Where all ranks compute at the same time, and make the same calls, they do the same work. Else those do with the same
peers: workers of one rank are alike, stages are not. Where some wait for what others make of their message, that is by
design, and no rank is late for it: see :func:`hindmost_judge.timeline.cohorts.of_exchanges`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hindmost_judge import encoding
from hindmost_judge.model import ERROR, GPU_TIME, NONBLOCKING, UNMEASURED, Run, Table
from hindmost_judge.stats.robust import lower_median, median
from hindmost_judge.timeline import steps
from hindmost_judge.timeline.collective_calls import EXCHANGE, OWN, WAIT, messages, sums
from hindmost_judge.timeline.messages import have_peers, job_ranks
from hindmost_judge.types import Array, Floats, Ints

#: The rank that has made the fewest steps has made at least this share of the most: others do not wait for it else.
_TOGETHER = 0.9
#: A message is one of the steps if it is in at least this share of them.
_MOST = 0.5
#: Calls so many times rarer than others come every few steps, as a test whether an iteration has converged.
_OFTEN = 4
#: The rank that computes longest is in its messages for less than this share of each neighbour's computing. Of ranks
#: that compute in turn each is in them for all of it.
_AT_ONCE = 0.8
#: Calls that receive.
_RECEIVES = ("recv", "sendrecv")
#: Calls in which a rank gives to its peer; in others it gets from that. Those of all ranks have a root as the peer.
_GIVES = ("send", "reduce", "gather")
_OF_ROOT = ("reduce", "gather", "broadcast", "scatter")


class _Steps(NamedTuple):
    """Steps of a rank: ``call`` [N] (rows of the table), with which ``peer`` [N] each is, and of which step: ``number``
    [N], from 0 to S - 1.

    ``began`` [S] ns is when each began, ``sources`` and ``targets`` the known ranks in the calls that most steps have,
    ``kinds`` what calls a step has, in the order in which they first come. A step usually has ``computing`` and
    ``waiting`` ns between and in its calls.
    """

    call: Ints
    peer: Ints
    number: Ints
    began: Floats
    sources: frozenset[int]
    targets: frozenset[int]
    kinds: tuple[int, ...]
    computing: float
    waiting: float

    def in_steps_of(self, times: int, first: int) -> _Steps:
        """The same with so many repetitions as one step, from this one on, without those that are left over."""
        steps = (len(self.began) - first) // times
        inside = (self.number >= first) & (self.number < first + steps * times)
        return self._replace(
            call=self.call[inside],
            peer=self.peer[inside],
            number=(self.number[inside] - first) // times,
            began=self.began[first : first + steps * times : times],
            computing=self.computing * times,
            waiting=self.waiting * times,
        )


class Exchanges(NamedTuple):
    """A ``run`` with the calls of each rank's steps as one call, and without all others.

    ``neighbours`` [2, E] are ranks, in order, and a rank for which each waits in them, itself among these. Ranks of one
    ``kind`` [R] make the same calls with as many peers, those of one ``cohort`` [R] as all do at once, or with the same
    peers.
    ``travel`` [E, S] is for how long a rank waited on after this neighbour, or itself, had sent: ns of the job clock,
    NaN where it is not known.
    """

    run: Run
    neighbours: Ints
    travel: Floats
    kind: Ints
    cohort: Ints


def with_exchanges_joined(run: Run, *, rare: bool = False) -> Exchanges | None:
    """The exchanges of a run; ``None`` where a rank's calls have no pattern, or ranks do not wait for each other.

    ``rare``: calls that come every few steps only may be part of one.
    """
    table = run.collectives
    if not have_peers(table):
        return None
    code, names = encoding.codes(table["op"])
    of_root = np.array([name in _OF_ROOT for name in names])[code]
    usable = messages(names)[code] | (of_root & (table["peer"] >= 0))  # others now and then are no part of a step
    usable &= ((table["flags"] & (ERROR | GPU_TIME)) == 0) & (table["duration_ns"] >= 0)
    calls = np.flatnonzero(usable & (table["start_ns"] >= 0))
    calls = calls[np.lexsort((table["start_ns"][calls], table["rank"][calls]))]
    _, first, count = np.unique(table["rank"][calls], return_index=True, return_counts=True)
    known = table["self_ns"][calls] != UNMEASURED
    if not known.any():  # nothing tells what ranks did between their messages
        return None
    known[first[count >= _MANY]] = True
    calls = calls[known]
    peer = job_ranks(run, table["comm"][calls], table["peer"][calls])
    table = table | {"self_ns": _since_last_call(table, calls, of_root)}
    ranks, first = np.unique(table["rank"][calls], return_index=True)
    found: dict[int, _Steps] = {}
    for rank, mine, whom in zip(ranks.tolist(), np.split(calls, first[1:]), np.split(peer, first[1:]), strict=True):
        one = _of_rank(table, code, mine, whom, rare=rare)
        if one is None:
            return None
        found[rank] = one
    found, pairs = _in_whole_steps(found, table), _neighbours(found)
    made = [len(one.began) for one in found.values()]
    if min(made) < _TOGETHER * max(made) or not _all_reached(np.hstack([pairs, pairs[::-1]])):
        return None
    at_once = _at_once(found, pairs)
    each = list(found.values())
    kind = _numbered([(one.kinds, len(one.sources), len(one.targets)) for one in each])
    same = at_once and len({one.kinds for one in each}) == 1
    cohort = _numbered([(one.kinds, None if same else (one.sources, one.targets)) for one in each])
    joined = replace(run, collectives=_joined(table, each, at_once=at_once))
    return Exchanges(joined, pairs, _travels(table, found, pairs, at_once=at_once), kind, cohort)


#: A rank's first call, before which nothing is known, is of a step if so many follow; else perhaps of its set-up.
_MANY = 100


class _Pattern(NamedTuple):
    """The calls of a rank's usual step: of each the name, the peer, and whether it only starts; ``start`` and ``end``
    [S, L] ns, NaN in steps with other calls."""

    ops: list[str]
    peers: list[int]
    starts_only: list[bool]
    start: Floats
    end: Floats

    def received(self, peer: int) -> int | None:
        """The last call by which the usual step receives of a peer."""
        return max((at for at, op in enumerate(self.ops) if op in _RECEIVES and self.peers[at] == peer), default=None)

    def sent(self, peer: int, at: int) -> int | None:
        """The last call by which it sends to a peer; a call that does both names whom it receives of: as the peer's."""
        both = at if at < len(self.ops) and self.ops[at] == "sendrecv" else None
        return max((at for at, op in enumerate(self.ops) if op == "send" and self.peers[at] == peer), default=both)

    def ended(self, at: int) -> int:
        """The call in which it waits for what the call at this place started."""
        waits = (later for later in range(at, len(self.ops)) if self.ops[later] == WAIT and not self.starts_only[later])
        return next(waits, at) if self.starts_only[at] else at


def _travels(table: Table, found: dict[int, _Steps], pairs: Ints, *, at_once: bool) -> Floats:
    """[E, S] of :class:`Exchanges`; all NaN where ranks do not compute at once."""
    longest = max(found.values(), key=lambda one: len(one.began))
    travel = np.full((pairs.shape[1], len(longest.began)), np.nan)
    patterns = {rank: _pattern(table, one, longest.began) for rank, one in found.items()} if at_once else {}
    for edge, (rank, source) in enumerate(pairs.T.tolist()):
        if rank not in patterns or source not in patterns:
            continue
        here, there = patterns[rank], patterns[source]
        if rank == source:
            last_sent = max((at for at, op in enumerate(here.ops) if op in ("send", "sendrecv")), default=-1)
            travel[edge] = here.end[:, -1] - here.start[:, last_sent]
            continue
        at = here.received(source)
        sent = there.sent(rank, at) if at is not None else None
        if at is not None and sent is not None:
            travel[edge] = here.end[:, here.ended(at)] - there.start[:, sent]
    return travel


def _pattern(table: Table, one: _Steps, began: Floats) -> _Pattern:
    """The usual step of a rank, and its times in the steps that ``began`` [S] then on the rank with most steps."""
    length = int(np.bincount(np.bincount(one.number)).argmax())
    first = np.searchsorted(one.number, np.arange(len(one.began)))
    usual = np.flatnonzero(np.bincount(one.number, minlength=len(one.began)) == length)
    place = first[usual][:, None] + np.arange(length)
    calls, number = one.call[place], _as_of(began, one.began)[usual]
    start, end = np.full((2, len(began), length), np.nan)
    known = number >= 0
    start[number[known]] = table["start_ns"][calls[known]]
    end[number[known]] = table["start_ns"][calls[known]] + table["duration_ns"][calls[known]]
    usual_step, peers = calls[len(calls) // 2], one.peer[place[len(calls) // 2]]
    starts_only = (table["flags"][usual_step] & NONBLOCKING) != 0
    return _Pattern(table["op"][usual_step].tolist(), peers.tolist(), starts_only.tolist(), start, end)


def _numbered(keys: list[tuple[object, ...]]) -> Ints:
    numbers: dict[tuple[object, ...], int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys])


def _since_last_call(table: Table, calls: Ints, of_root: Array) -> Array:
    """[N] ns of self time since the rank's last call of any kind: collectives have it since the last of their own."""
    own = np.array(table["self_ns"])
    mine = of_root[calls]
    if not mine.any():
        return own
    gaps = np.where(mine, 0, own[calls])
    before, last = np.cumsum(gaps), np.flatnonzero(mine)
    follows = table["rank"][calls[last[1:]]] == table["rank"][calls[last[:-1]]]
    first = np.searchsorted(table["rank"][calls], table["rank"][calls[last]])
    until = np.where(np.append(False, follows), np.append(0, before[last[:-1]]), before[first] - gaps[first])
    own[calls[last]] = np.maximum(own[calls[last]] - (before[last] - until), 0)
    return own


def _neighbours(found: dict[int, _Steps]) -> Ints:
    """[2, E] ranks and those of which they receive, in order: where a source is not recorded, by who sends to it."""
    known = {(rank, source) for rank, one in found.items() for source in (rank, *one.sources)}
    known |= {(target, rank) for rank, one in found.items() for target in one.targets}
    return np.asarray(np.array(sorted(known), np.int64).T)


def _of_rank(table: Table, code: Ints, mine: Ints, whom: Ints, *, rare: bool) -> _Steps | None:
    """The steps of a rank's calls ``mine`` [N], in order, with their peers; ``None`` without a pattern."""
    rank = int(table["rank"][mine[0]])
    token = encoding.factorize(code[mine] * (int(whom.max()) + 2) + whom + 1)[0].astype(np.int64)
    often = np.bincount(token)
    repeats = (often[token] * _OFTEN > often.max()) | rare
    mine, whom, token = mine[repeats], whom[repeats], token[repeats]
    number = steps.infer(token, table["self_ns"][mine].astype(np.float64))
    inside = np.flatnonzero(number >= 0)
    if len(inside) == 0:
        return None
    _, begins, number = np.unique(number[inside], return_index=True, return_inverse=True)
    call, step = mine[inside], inside[number == np.bincount(number).argmax()]
    usual = inside[np.bincount(token[inside])[token[inside]] >= _MOST * len(begins)]
    usual = usual[(whom[usual] >= 0) & (whom[usual] != rank)]
    gives = np.isin(table["op"][mine[usual]], _GIVES)
    computing, waiting = (
        float(median(np.bincount(number, table[name][call]).astype(np.float64))) for name in ("self_ns", "duration_ns")
    )
    return _Steps(
        call=call,
        peer=whom[inside],
        number=number,
        began=table["start_ns"][call[begins]].astype(np.float64),
        sources=frozenset(whom[usual[~gives]].tolist()),
        targets=frozenset(whom[usual[gives]].tolist()),
        kinds=tuple(dict.fromkeys((2 * code[mine[step]] + (whom[step] == rank)).tolist())),
        computing=computing,
        waiting=waiting,
    )


def _in_whole_steps(found: dict[int, _Steps], table: Table) -> dict[int, _Steps]:
    """With as many repetitions as one step as the typical rank's computing before each shows, if all made as many."""
    if len({len(one.began) for one in found.values()}) > 1:
        return found
    own = np.array([np.bincount(one.number, table["self_ns"][one.call]) for one in found.values()])
    times, first = steps.cycle(lower_median(own, axis=0))
    return {rank: one.in_steps_of(times, first) for rank, one in found.items()} if times > 1 else found


def _all_reached(pairs: Ints) -> bool:
    """Whether all ranks are reached from the first one, each from the first of a pair to the second."""
    reached, new = set[int](), {int(pairs[0, 0])}
    while new:
        reached |= new
        new = set(pairs[1][np.isin(pairs[0], list(new))].tolist()) - reached
    return reached == set(pairs.ravel().tolist())


def _at_once(found: dict[int, _Steps], pairs: Ints) -> bool:
    """Whether ranks compute at the same time on work of their own.

    Each waits for all, and the rank that computes longest, and so waits least, computes at the same time as its
    neighbours. Stages that only hand on fill up, and then all compute at once on what others made.
    """
    longest = max(found, key=lambda rank: found[rank].computing)
    near = set(pairs[:, (pairs == longest).any(axis=0)].ravel().tolist()) - {longest}
    least = min((found[peer].computing for peer in near if peer in found), default=0.0)
    return found[longest].waiting < _AT_ONCE * least and _all_reached(pairs) and _all_reached(pairs[::-1])


def _joined(table: Table, found: list[_Steps], *, at_once: bool) -> Table:
    """One row a rank and step; the same number for the steps of two ranks that began at about the same time.

    Ranks that do not compute at once may be many steps ahead of each other: there steps are counted.
    """
    longest = max(found, key=lambda one: len(one.began))
    numbers = [_as_of(longest.began, one.began) if at_once else np.arange(len(one.began)) for one in found]
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
