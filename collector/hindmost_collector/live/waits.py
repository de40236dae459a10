"""Which ranks waited for which, collective by collective, as rows arrive.

A synchronising collective ends at one moment on all its members. So the shortest duration is the transfer, and the rest
of the others' durations is waiting for the rank with the shortest: no clocks are compared. One instance is settled when
all members that this communicator has shown so far have reported it, or when it is old.

In a collective that one call starts and another waits for (``MPI_Iallreduce``), the wait is that duration.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from hindmost_judge.model import ERROR, NONBLOCKING, Table
from hindmost_judge.timeline.collective_calls import WAIT, is_synchronising

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hindmost_collector.ingest.columns import Words

Array = np.ndarray[Any, Any]

#: What tells instances apart.
_INSTANCE = ("comm", "op", "seq")
#: Rows that may wait for the rest of their instance, and for how many turns; beyond, the oldest are let go unsettled.
_PENDING, _TURNS = 1_000_000, 120
#: Communicators whose size is remembered: a job that starts again makes new ones, and those used longest ago go.
_COMMUNICATORS = 1 << 17


class _Part(NamedTuple):
    """Rows of one turn that wait: ``instances`` by column, (N,) each; ``which`` (R,) of them a row is of."""

    turn: int
    instances: dict[str, Array]
    counts: Array
    which: Array
    rank: Array
    duration: Array


class _Started:
    """Collectives that ranks have started and not yet waited for, as far as their waits may still come."""

    def __init__(self) -> None:
        self._turns: list[Array] = []

    def add(self, starts: Table) -> None:
        """These rows are starts of a turn."""
        self._turns.append(_keys(starts))
        while len(self._turns) > 1 and (len(self._turns) > _TURNS or sum(map(len, self._turns)) > _PENDING):
            self._turns.pop(0)

    def take(self, waits: Table) -> Array:
        """[N] which of these rows are the first wait for one that the same rank has started."""
        keys, found = _keys(waits), np.zeros(len(waits["rank"]), bool)
        _, first = np.unique(keys, return_index=True)
        found[first] = np.isin(keys[first], np.concatenate(self._turns or [np.empty(0, np.uint64)]))
        self._turns = [left for turn in self._turns if len(left := turn[~np.isin(turn, keys)])]
        return found


def _keys(table: Table) -> Array:
    """[N] a number for each communicator, sequence and rank."""
    seq, rank = table["seq"].astype(np.uint64), table["rank"].astype(np.uint64)
    mixed: Array = (table["comm"].astype(np.uint64) ^ (seq * np.uint64(0x9E3779B97F4A7C15))) * np.uint64(
        0xFF51AFD7ED558CCD
    )
    return np.asarray((mixed ^ (mixed >> np.uint64(29))) + rank * np.uint64(0xC2B2AE3D27D4EB4F))


class Waits:
    """Settles collectives. Failed calls, broadcasts and point-to-point calls say nothing of waits.

    Every agent's rows come at a moment of its own, so most instances of a large job wait some turns: what waits is
    looked at instance by instance, and its rows only once they are settled.
    """

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._members: dict[int, int] = {}
        self._started = _Started()
        self._turn = 0
        self._meet = np.zeros(0, bool)

    def add(self, collectives: Table, words: Words) -> Mapping[str, tuple[Array, Array]]:
        """Counter name to ``(rank, seconds or count)`` of what the new rows settled, whose operations' codes are always
        of the same ``words``."""
        fits = self._fitting(collectives, words)
        if not fits.any():
            return {}
        self._turn += 1
        self._parts.append(_part(self._turn, collectives if fits.all() else _taken(collectives, fits)))
        self._forget()
        return self._settle()

    def _fitting(self, collectives: Table, words: Words) -> Array:
        """[N] which rows blocked until all members had come."""
        how, done = collectives["flags"] & (NONBLOCKING | ERROR), collectives["duration_ns"] >= 0
        meets = done & self._meetings(words)[collectives["op"]]
        fits: Array = meets & (how == 0)
        started = np.flatnonzero(meets & (how == NONBLOCKING))
        if len(started):
            self._started.add({name: collectives[name][started] for name in ("comm", "seq", "rank")})
        waits = np.flatnonzero(done & (how == 0) & (collectives["comm"] != 0) & (collectives["op"] == words.code(WAIT)))
        if len(waits):
            fits[waits] = self._started.take({name: collectives[name][waits] for name in ("comm", "seq", "rank")})
        return fits

    def _meetings(self, words: Words) -> Array:
        """[W] which of the words name operations that end only when all ranks have entered."""
        new = words.words[len(self._meet) :]
        if new:
            self._meet = np.append(self._meet, [is_synchronising(word) for word in new])
        return self._meet

    @property
    def pending(self) -> int:
        """Rows that wait for the rest of their instance."""
        return sum(len(part.rank) for part in self._parts)

    def _forget(self) -> None:
        while len(self._parts) > 1 and (self.pending > _PENDING or self._parts[0].turn <= self._turn - _TURNS):
            self._parts.pop(0)

    def _settle(self) -> Mapping[str, tuple[Array, Array]]:
        """Take out the instances that are whole now, over all parts."""
        joined = {name: np.concatenate([part.instances[name] for part in self._parts]) for name in _INSTANCE}
        number, which = _numbered(joined)
        counts = np.bincount(which, weights=np.concatenate([part.counts for part in self._parts])).astype(np.int64)
        whole = counts >= self._sizes(joined["comm"][number], counts)
        ends = np.cumsum([len(part.counts) for part in self._parts])
        taken, kept = [], []
        for part, instance in zip(self._parts, np.split(which, ends[:-1]), strict=True):
            rows = whole[instance][part.which]
            if rows.any():
                taken.append((instance[part.which[rows]], part.rank[rows], part.duration[rows]))
                if not rows.all():
                    kept.append(_without(part, whole[instance], rows))
            else:
                kept.append(part)
        self._parts = kept
        if not taken:
            return {}
        group, rank, duration = map(np.concatenate, zip(*taken, strict=True))
        return _shares(rank, duration, group, len(counts))

    def _sizes(self, comm: Array, counts: Array) -> Array:
        """How many members each communicator has shown in any one instance so far."""
        known, which = np.unique(comm, return_inverse=True)
        shown = np.full(len(known), 2)
        np.maximum.at(shown, which, counts)
        for place, one in enumerate(known.tolist()):
            size = self._members[one] = max(self._members.pop(one, 2), int(shown[place]))  # the newest come last
            shown[place] = size
        for one in list(islice(self._members, max(len(self._members) - _COMMUNICATORS, 0))):
            del self._members[one]
        return shown[which]


def _taken(table: Table, rows: Array) -> Table:
    return {name: table[name][rows] for name in (*_INSTANCE, "rank", "duration_ns")}


def _part(turn: int, table: Table) -> _Part:
    number, which = _numbered(table)
    instances = {name: table[name][number] for name in _INSTANCE}
    counts = np.bincount(which, minlength=len(number))
    return _Part(turn, instances, counts, which.astype(np.int32), table["rank"], table["duration_ns"])


def _without(part: _Part, gone: Array, rows: Array) -> _Part:
    """A part less its instances that are ``gone``, of which these rows are."""
    stays = ~rows
    place = np.cumsum(~gone) - 1
    instances = {name: column[~gone] for name, column in part.instances.items()}
    which = place[part.which[stays]].astype(np.int32)
    return _Part(part.turn, instances, part.counts[~gone], which, part.rank[stays], part.duration[stays])


def _numbered(table: Table) -> tuple[Array, Array]:
    """``(a row of each instance, which instance each row is of)``."""
    order = np.lexsort([table[name] for name in reversed(_INSTANCE)])
    fresh = np.zeros(len(order), dtype=bool)
    fresh[:1] = True
    for name in _INSTANCE:
        column = table[name][order]
        fresh[1:] |= column[1:] != column[:-1]
    which = np.empty(len(order), np.int64)
    which[order] = np.cumsum(fresh) - 1
    return order[fresh], which


def _shares(rank: Array, duration: Array, group: Array, count: int) -> Mapping[str, tuple[Array, Array]]:
    """What the members of whole instances waited, and for whom; ``group`` tells which of ``count`` a row is of."""
    shortest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(shortest, group, duration)
    waited = (duration - shortest[group]) / 1e9
    sums = np.bincount(group, weights=waited, minlength=count)
    least = np.flatnonzero(duration == shortest[group])[::-1]
    last = np.zeros(count, np.int64)
    last[group[least]] = least  # the first of those that took the shortest: it is written over the others
    culprits = rank[last[sums > 0]]  # without waiting, no rank was last
    return {
        "wait_seconds_total": (rank, waited),
        "caused_wait_seconds_total": (culprits, sums[sums > 0]),
        "last_arrivals_total": (culprits, np.ones(len(culprits))),
    }
