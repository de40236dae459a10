"""Messages of all ranks to one rank that it then broadcasts, joined into one call.

mpi4py's ``allreduce`` of an object does this, and so do programs that reduce to a root and broadcast from it. No rank
leaves such a broadcast before all have come: ranks wait in it, and in the messages before it, for the last one. Where
ranks compute on the way to the root, as a pipeline's stages do, they wait for each other by design; those calls stay as
they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge import constant, dictionary_encoding
from hindmost_judge.model import ERROR, GPU_TIME, NONBLOCKING, UNMEASURED, rows
from hindmost_judge.stats.robust import median
from hindmost_judge.timeline import nonblocking, schedule
from hindmost_judge.timeline.operation_names import is_synchronising

if TYPE_CHECKING:
    from hindmost_judge.model import Run, Table
    from hindmost_judge.types import Array, Ints

#: What calls do: a message to or from another rank, all to a root, a root to all, all to all.
SENDS, RECEIVES, GATHERS, SPREADS, MEETS, ELSE = range(6)
_KINDS = {"send": SENDS, "recv": RECEIVES, "reduce": GATHERS, "gather": GATHERS, "broadcast": SPREADS}
#: Most self time that a rank may spend after its first call towards the next meeting, as a share of the time between
#: two meetings.
_ON_THE_WAY = 0.1
#: Different ways of gathering that are examined, the commonest first.
_SHAPES = 8


def joined(run: Run) -> Run:
    """The run with each broadcast that ends a gathering as an ``all_reduce``, which has its messages' time as well."""
    table = run.collectives
    if not rows(table) or not ((table["peer"] >= 0) & ((table["flags"] & GPU_TIME) == 0)).any():
        return run  # nearly all jobs on GPUs: their names are not looked at
    code, names = dictionary_encoding.codes(table["op"])
    kind = np.array([_KINDS.get(name, MEETS if is_synchronising(name) else ELSE) for name in names])[code]
    if not (kind == SPREADS).any() or not ((kind == RECEIVES) | (kind == GATHERS)).any():
        return run
    usable = (table["flags"] & (NONBLOCKING | ERROR | GPU_TIME)) == 0
    held = np.flatnonzero(usable & (kind != ELSE) & (table["duration_ns"] >= 0) & (table["start_ns"] >= 0))
    held = held[np.lexsort((table["start_ns"][held], table["rank"][held]))]
    calls = _Calls(run, held, kind[held])
    ends = calls.closing()
    if not ends.any():
        return run
    return replace(run, collectives=calls.merged(ends))


@dataclass
class _Calls:
    """Calls ``held`` [N] (rows of the table), rank by rank and in order, and what ``kind`` [N] they are."""

    run: Run
    held: Ints
    kind: Ints

    def __post_init__(self) -> None:
        table = self.run.collectives
        self.rank = table["rank"][self.held].astype(np.int64)
        self.comm = dictionary_encoding.factorize(table["comm"][self.held])[0].astype(np.int64)
        self.peer = schedule.job_ranks(self.run, table["comm"][self.held], table["peer"][self.held])
        self.own = table["self_ns"][self.held].astype(np.int64)

    def stretches(self, ends: Array) -> Ints:
        """[N] which of the calls that ``ends`` [N] each leads to, or is; one more than there are where to none."""
        last = np.flatnonzero(ends)
        found = np.asarray(np.cumsum(ends) - ends, np.int64)
        of_end = self.rank[last[np.minimum(found, len(last) - 1)]]
        return np.where((found < len(last)) & (self.rank == of_end), found, len(last))

    def closing(self) -> Array:
        """[N] which broadcasts end a gathering: their root knows by then that all of their communicator have come."""
        ends, found = self.kind >= SPREADS, np.zeros(len(self.held), bool)
        last, stretch = np.flatnonzero(ends), self.stretches(ends)
        if len(last) == 0:
            return found
        spreads = self.kind[last] == SPREADS
        instance = dictionary_encoding.factorize(
            (self.comm[last] << 40) + self.run.collectives["seq"][self.held[last]]
        )[0]
        told = self._told(stretch, len(last)) * (1 + self.rank[last] % 8191)
        shape = np.bincount(instance[spreads], told[spreads], minlength=instance.max() + 1)
        order = np.argsort(stretch, kind="stable")
        bounds = np.searchsorted(stretch[order], np.arange(len(last) + 1))
        for comm in np.unique(self.comm[last[spreads]]).tolist():
            mine = np.flatnonzero(spreads & (self.comm[last] == comm))
            size = int(np.bincount(instance[mine]).max())
            shapes, count = np.unique(shape[instance[mine]], return_counts=True)
            for one in shapes[np.argsort(-count)][:_SHAPES].tolist():
                alike = mine[shape[instance[mine]] == one]
                sample = alike[instance[alike] == instance[alike[0]]]
                calls = {int(self.rank[last[e]]): order[bounds[e] : bounds[e + 1]] for e in sample.tolist()}
                if len(calls) == size > 1 and self._all_known(calls) and self._straight(last[alike], stretch, alike):
                    found[last[alike]] = True
        return found

    def _told(self, stretch: Ints, count: int) -> Array:
        """[E] what the calls up to each of the ends are, in one number: alike where they are."""
        order = np.argsort(stretch, kind="stable")
        first = np.searchsorted(stretch[order], np.arange(count + 1))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order)) - first[stretch[order]]
        factor = np.random.default_rng(7).integers(1, 2**31, int(place.max()) + 1)
        word = (self.kind + 1) * (int(self.peer.max()) + 2) + self.peer + 1
        return np.bincount(stretch, weights=(word * factor[place]) % 1_000_003, minlength=count + 1)[:-1]

    def _all_known(self, calls: dict[int, Ints]) -> bool:
        """Whether a broadcast's root has heard of all ranks by then, of some by others, from ``calls`` up to it."""
        heard = {rank: {rank} for rank in calls}
        sent: dict[tuple[int, int, int], list[set[int]]] = {}
        todo = {rank: self._steps(rank, mine.tolist(), list(calls)) for rank, mine in calls.items()}
        moved = True
        while moved:
            moved = False
            for rank, left in todo.items():
                while left and (left[0][0] == SENDS or sent.get((left[0][2], rank, left[0][1]))):
                    what, tag, whom = left.pop(0)
                    if what == SENDS:
                        sent.setdefault((rank, whom, tag), []).append(set(heard[rank]))
                    else:
                        heard[rank] |= sent[whom, rank, tag].pop(0)
                    moved = True
        end = next(iter(calls.values()))[-1]
        root = int(self.peer[end])
        return root in heard and not todo[root] and len(heard[root]) == len(calls)

    def _steps(self, rank: int, mine: list[int], members: list[int]) -> list[tuple[int, int, int]]:
        """What a rank does before its broadcast: whether it sends or receives, as what, and to or from whom."""
        found = []
        for call in mine[:-1]:
            what, whom = int(self.kind[call]), int(self.peer[call])
            if what != GATHERS:
                found.append((what, SENDS, whom))
            elif whom != rank:
                found.append((SENDS, GATHERS, whom))
            else:
                found += [(RECEIVES, GATHERS, one) for one in members if one != rank]
        return found

    def _straight(self, last: Ints, stretch: Ints, number: Ints) -> bool:
        """Whether ranks do next to nothing of their own between their first call towards these and these."""
        mine = np.isin(stretch, number)
        first = np.unique(stretch[mine], return_index=True)[1]
        before = self.own[mine][first]
        collective = mine & (self.kind >= GATHERS)
        if (self.own[collective] == UNMEASURED).any() or (before == UNMEASURED).any():
            return False
        total = np.bincount(stretch[collective], self.own[collective], minlength=int(stretch.max()) + 1)[number]
        return all(
            float(median(total[of_rank] - before[of_rank])) <= _ON_THE_WAY * float(median(total[of_rank]))
            for of_rank in (self.rank[last] == one for one in np.unique(self.rank[last]))
        )

    def merged(self, closing: Array) -> Table:
        """The table with these broadcasts as all-reduces, less the calls that lead to them."""
        table = self.run.collectives
        ends = closing | (self.kind == MEETS)
        last, stretch = np.flatnonzero(ends), self.stretches(ends)
        of_closing = np.append(closing[last], False)[stretch]
        into = self.held[last[closing[last]]]
        number = (np.cumsum(np.append(closing[last], False)) - 1)[stretch]
        took = np.bincount(number[of_closing], table["duration_ns"][self.held[of_closing]]).astype(np.int64)
        changed = {name: np.array(table[name]) for name in ("op", "start_ns", "duration_ns")}
        end = table["start_ns"][into] + table["duration_ns"][into]
        changed["op"] = changed["op"].astype(object)
        changed["op"][into] = "all_reduce"
        changed["start_ns"][into], changed["duration_ns"][into] = end - took, took
        collective = of_closing & (self.kind >= GATHERS)
        for name in nonblocking.OWN:
            changed[name] = nonblocking.sums(table, name, self.held[collective], number[collective], into)
        left = np.ones(rows(table), bool)
        left[self.held[of_closing]] = False
        left[into] = True
        return constant.chosen(table | changed, left)
