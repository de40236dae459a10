"""Counters of each rank since the collector first heard of it: what ``hindmost_rank_*_total`` show.

Which rank waited for which is counted collective by collective, as rows arrive. A synchronising collective ends at one
moment on all its members. So the shortest duration is the transfer, and the rest of the others' durations is waiting
for the rank with the shortest: no clocks are compared. One instance is settled when all members that this communicator
has shown so far have reported it, or when it is old. In a collective that one call starts and another waits for
(``MPI_Iallreduce``), the wait is that duration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from hindmost_judge.communication import CYCLES
from hindmost_judge.encoding import is_constant
from hindmost_judge.model import ERROR, NONBLOCKING, OTHER, PHASES, Table
from hindmost_judge.timeline.collective_calls import WAIT, is_synchronising
from hindmost_judge.timeline.phases import unnamed

from hindmost_collector.ingest.chunk import Chunk
from hindmost_collector.ingest.row_builder import Words

Array = np.ndarray[Any, Any]

#: What tells instances apart.
_INSTANCE = ("comm", "op", "seq")
#: Rows that may wait for the rest of their instance, and for how many turns; beyond, the oldest are let go unsettled.
_PENDING, _TURNS = 1_000_000, 120
#: Communicators whose size is remembered: a job that starts again makes new ones, and those used longest ago go.
MOST_COMMUNICATORS = 1 << 17


class _Part(NamedTuple):
    """Rows of one turn that wait, instance after instance: ``instances`` by column, and where in ``rank`` and
    ``duration`` the rows of each begin and how many they are (N,)."""

    turn: int
    instances: dict[str, Array]
    begin: Array
    length: Array
    rank: Array
    duration: Array


class _Started:
    """Collectives that ranks have started and not yet waited for, as far as their waits may still come."""

    def __init__(self) -> None:
        self._turns: list[Array] = []

    def add(self, starts: Table) -> None:
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
        return sum(int(part.length.sum()) for part in self._parts)

    def _forget(self) -> None:
        while len(self._parts) > 1 and (self.pending > _PENDING or self._parts[0].turn <= self._turn - _TURNS):
            self._parts.pop(0)

    def _settle(self) -> Mapping[str, tuple[Array, Array]]:
        """Take out the instances that are whole now, over all parts."""
        joined = {name: np.concatenate([part.instances[name] for part in self._parts]) for name in _INSTANCE}
        order, begin, count = _by_instance(joined)
        which = np.empty(len(order), np.int64)
        which[order] = np.repeat(np.arange(len(begin)), count)
        counts = np.bincount(which, weights=np.concatenate([part.length for part in self._parts])).astype(np.int64)
        whole = counts >= self._sizes(joined["comm"][order[begin]], counts)
        ends = np.cumsum([len(part.length) for part in self._parts])
        taken, unsettled = [], []
        for part, instance in zip(self._parts, np.split(which, ends[:-1]), strict=True):
            done = whole[instance]
            if done.any():
                count = part.length[done]
                rows = _ranges(part.begin[done], count)
                taken.append((instance[done], count, part.rank[rows], part.duration[rows]))
            if not done.all():
                unsettled.append(_without(part, done) if done.any() else part)
        self._parts = unsettled
        if not taken:
            return {}
        instances, lengths, rank, duration = map(np.concatenate, zip(*taken, strict=True))
        return _shares(instances, lengths, rank, duration, len(counts))

    def _sizes(self, comm: Array, counts: Array) -> Array:
        """How many members each communicator has shown in any one instance so far."""
        known, which = np.unique(comm, return_inverse=True)
        shown = np.full(len(known), 2)
        np.maximum.at(shown, which, counts)
        for place, one in enumerate(known.tolist()):
            size = self._members[one] = max(self._members.pop(one, 2), int(shown[place]))  # the newest come last
            shown[place] = size
        for one in list(islice(self._members, max(len(self._members) - MOST_COMMUNICATORS, 0))):
            del self._members[one]
        return shown[which]


def _taken(table: Table, rows: Array) -> Table:
    return {name: table[name][rows] for name in (*_INSTANCE, "rank", "duration_ns")}


def _part(turn: int, table: Table) -> _Part:
    order, begin, count = _by_instance(table)
    instances = {name: table[name][order[begin]] for name in _INSTANCE}
    return _Part(turn, instances, begin, count, table["rank"][order], table["duration_ns"][order])


def _without(part: _Part, gone: Array) -> _Part:
    """A part less its instances that are ``gone``; once these are most of it, less their rows."""
    instances = {name: column[~gone] for name, column in part.instances.items()}
    begin, count = part.begin[~gone], part.length[~gone]
    if 2 * count.sum() > len(part.rank):
        return part._replace(instances=instances, begin=begin, length=count)
    rows = _ranges(begin, count)
    return _Part(part.turn, instances, np.cumsum(count) - count, count, part.rank[rows], part.duration[rows])


def _ranges(begin: Array, count: Array) -> Array:
    """All places of ranges that begin there and have so many."""
    return np.asarray(np.arange(int(count.sum())) + np.repeat(begin - (np.cumsum(count) - count), count))


def _by_instance(table: Table) -> tuple[Array, Array, Array]:
    """``(what sorts rows by instance, where each begins in that order, how many rows it has)``."""
    keys = [table[name] for name in _INSTANCE if not is_constant(table[name])]
    order = np.lexsort([_narrowed(key) for key in keys[::-1]]) if keys else np.arange(len(table["seq"]))
    fresh = np.zeros(len(order), dtype=bool)
    fresh[:1] = True
    for key in keys:
        column = key[order]
        fresh[1:] |= column[1:] != column[:-1]
    begin = np.flatnonzero(fresh)
    return order, begin, np.diff(begin, append=len(order))


def _narrowed(key: Array) -> Array:
    """The same order in two bytes a value where that is enough: numpy sorts them by their digits."""
    least = key.min()
    return (key - least).astype(np.uint16) if int(key.max()) - int(least) < 1 << 16 else key


def _shares(
    instance: Array, length: Array, rank: Array, duration: Array, count: int
) -> Mapping[str, tuple[Array, Array]]:
    """What the members of whole instances waited, and for whom; runs of so many rows are each of one of ``count``."""
    begin, group = np.cumsum(length) - length, np.repeat(instance, length)
    shortest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(shortest, instance, np.minimum.reduceat(duration, begin))
    waited_ns = duration - shortest[group]
    sums = np.bincount(instance, weights=np.add.reduceat(waited_ns, begin), minlength=count) / 1e9
    least = np.flatnonzero(waited_ns == 0)[::-1]
    last = np.zeros(count, np.int64)
    last[group[least]] = least  # the first of those that took the shortest: it is written over the others
    culprits = rank[last[sums > 0]]  # without waiting, no rank was last
    return {
        "wait_seconds_total": (rank, waited_ns / 1e9),
        "caused_wait_seconds_total": (culprits, sums[sums > 0]),
        "last_arrivals_total": (culprits, np.ones(len(culprits))),
    }


class _Runs(NamedTuple):
    """Rows of ranks one after the other, as agents send them: what ``rank`` each run is of, and where it begins."""

    rank: Array
    begin: Array
    length: Array

    @classmethod
    def of(cls, rank: Array) -> _Runs:
        begin = np.flatnonzero(np.diff(rank, prepend=-1))
        return cls(rank[begin], begin, np.diff(begin, append=len(rank)))

    def rows(self, size: int) -> Array:
        return np.bincount(self.rank, weights=self.length, minlength=size)

    def sums(self, values: Array, size: int, dtype: Any = None) -> Array:
        """Of each rank: a run is summed in a thirtieth of the time that it takes to add its rows to their ranks."""
        return np.bincount(self.rank, weights=np.add.reduceat(values, self.begin, dtype=dtype), minlength=size)


class RankTotals:
    """Per-rank sums as arrays indexed by rank. NaN: this rank has reported no such thing."""

    def __init__(self) -> None:
        self._columns: dict[str, Array] = {}
        self._size = 0
        self._waits = Waits()

    def __iter__(self) -> Iterator[tuple[str, Array]]:
        """``(name, values by rank)`` of each counter; phases are named ``phase:NAME``."""
        return iter(list(self._columns.items()))

    def column(self, name: str) -> Array:
        """One counter by rank, created if missing."""
        found = self._columns.get(name)
        if found is None or len(found) < self._size:
            grown = np.full(self._size, np.nan)
            if found is not None:
                grown[: len(found)] = found
            found = self._columns[name] = grown
        return found

    def add(self, chunk: Chunk, words: Words) -> None:
        highest = [int(table["rank"].max()) for table in chunk.coded.values()]
        highest += [int(chunk.plain[name]["rank"].max()) for name in ("rank_states",) if name in chunk.plain]
        self._size = max([self._size, *(one + 1 for one in highest)])
        if "steps" in chunk.coded:
            self._steps(chunk.coded["steps"])
        if "collectives" in chunk.coded:
            self._collectives(chunk.coded["collectives"], words)
        if "intervals" in chunk.coded:
            self._cycles(chunk.coded["intervals"], words)
        states = chunk.plain.get("rank_states")
        if states is not None:
            lost = self.column("events_lost_total")
            np.fmax.at(lost, states["rank"], states["events_lost_total"].astype(float))

    def _count(self, name: str, rank: Array, values: Array) -> None:
        rows, sums = (np.bincount(rank, weights=weights, minlength=self._size) for weights in (None, values))
        self._add(name, rows, sums)

    def _add(self, name: str, rows: Array, sums: Array) -> None:
        column = self._begun(name, rows)
        column += sums

    def _time(self, name: str, runs: _Runs, ns: Array, known: Array) -> None:
        """Add times to their ranks, where they are ``known``."""
        if known.any():
            sums = runs.sums(np.where(known, ns, 0), self._size) / 1e9
            self._add(name, runs.sums(known, self._size, np.int64), sums)

    def _begun(self, name: str, rows: Array) -> Array:
        """A counter; it is 0 for ranks with rows and no counter before."""
        column = self.column(name)
        column[np.isnan(column) & (rows > 0)] = 0.0
        return column

    def _steps(self, steps: Table) -> None:
        rank = steps["rank"]
        runs = _Runs.of(rank)
        rows = runs.rows(self._size)
        self._add("steps_total", rows, rows)
        for name, column in (
            ("step_seconds_total", "duration_ns"),
            *((f"phase:{phase}", f"{phase}_ns") for phase in PHASES),
        ):
            self._time(name, runs, steps[column], steps[column] >= 0)
        rest = unnamed({name: steps[f"{name}_ns"] for name in PHASES}, steps["duration_ns"])
        if rest is not None:
            self._time(f"phase:{OTHER}", runs, rest, ~np.isnan(rest))
        counted = steps["work"] > 0
        if counted.any():
            self._count("work_total", rank[counted], steps["work"][counted])
        np.fmax.at(self.column("last_step"), rank, steps["step"].astype(float))
        for name in ("phase:self_cpu", "phase:self_runqueue", "phase:self_blocked", "covered_seconds"):
            self._columns.pop(name, None)  # steps are marked after all: their own phases say it better

    def _cycles(self, intervals: Table, words: Words) -> None:
        """Series of Horovod's cycles, about one a second: their length, and how many were in them."""
        cycles = (intervals["name"] == words.code(CYCLES)) & (intervals["duration_ns"] >= 0)
        if cycles.any():
            rank = intervals["rank"][cycles]
            self._count("horovod_cycles_total", rank, intervals["value"][cycles])
            self._count("horovod_cycle_seconds_total", rank, intervals["duration_ns"][cycles] / 1e9)

    def _unmarked(self, collectives: Table, runs: _Runs) -> None:
        """A job that marks no steps: its time is what its calls took and what lies between them."""
        own, took = collectives["self_ns"], collectives["duration_ns"]
        cpu, runqueue = collectives["cpu_ns"], collectives["runqueue_ns"]
        of_own, of_cpu = own >= 0, cpu >= 0
        self._time("covered_seconds", runs, own + np.maximum(took, 0), of_own)
        self._time("phase:self_cpu", runs, cpu, of_cpu)
        both = of_own & of_cpu & (runqueue >= 0)
        self._time("phase:self_runqueue", runs, runqueue, both)
        self._time("phase:self_blocked", runs, np.maximum(own - cpu - runqueue, 0), both)

    def inferred(self, calls_per_step: int | None) -> dict[str, Array]:
        """Step counters of a job that marks no steps, from how many collective calls make one; empty for other jobs."""
        calls = self._columns.get("collectives_total")
        if not calls_per_step or calls is None or "steps_total" in self._columns:
            return {}
        steps = np.floor(calls / calls_per_step)
        found = {"steps_total": steps, "last_step": np.where(steps > 0, steps - 1, np.nan)}
        if "covered_seconds" in self._columns:
            found["step_seconds_total"] = self.column("covered_seconds")
        return found

    def _collectives(self, collectives: Table, words: Words) -> None:
        runs = _Runs.of(collectives["rank"])
        rows = runs.rows(self._size)
        self._add("collectives_total", rows, rows)
        for name in ("wait_seconds_total", "caused_wait_seconds_total", "last_arrivals_total"):
            self._begun(name, rows)  # with collectives, not having waited is a measurement
        if "steps_total" not in self._columns:
            self._unmarked(collectives, runs)
        for name, (rank, values) in self._waits.add(collectives, words).items():
            if rank.size:
                self._size = max(self._size, int(rank.max()) + 1)
                self._count(name, rank, values)
