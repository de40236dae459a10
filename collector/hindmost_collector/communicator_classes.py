"""Which communicators do the same for other ranks: the tensor groups of a job, or its data-parallel groups.

Those that look alike (size, spacing of members, operations) and share no rank are one class. Ranks may be laid out so
that the members of sisters are spaced unlike, and a group may log or check what its sisters do not: such are one class
where they are of one size, do about as much, and have every rank between them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hindmost_collector.numbered import found_in

if TYPE_CHECKING:
    from hindmost_collector.align import Array, Ints
    from hindmost_collector.model import Table

#: Sisters make so many times as many calls as each other, at most.
_ABOUT = 2.0


@dataclass
class _Class:
    """Communicators ``comms`` that share no rank, of ``size`` members each, and what the first of them does."""

    size: int
    ops: frozenset[int]
    calls: float
    bytes: int
    comms: list[int] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)

    def likeness(self, other: _Class) -> float:
        """How much alike these are in what they do; 0 for such as are no sisters."""
        ratio = min(self.calls, other.calls) / max(self.calls, other.calls)
        if self.size != other.size or not self.ops & other.ops or ratio * _ABOUT < 1 or self.ranks & other.ranks:
            return 0.0
        return ratio + (self.bytes == other.bytes)

    def take(self, other: _Class) -> None:
        """Have what another one has, too."""
        self.comms += other.comms
        self.ranks |= other.ranks


def find(comm: Ints, op: Ints, row: Ints, size: Array, ranks: int) -> tuple[Ints, Ints]:
    """Class of each communicator, and [R, C] communicator of each rank in each class, -1 where it has none.

    ``comm``, ``op``, ``row`` and ``size`` [N] are whose call each is, of what, by which rank and of how many bytes.
    """
    members = _parts(comm, row, ranks)
    found = _together(_alike(members, comm, op, size), ranks)
    klass = np.zeros(len(members), np.int64)
    group = np.full((ranks, len(found)), -1, np.int64)
    for number, one in enumerate(found):
        for each in one.comms:
            klass[each] = number
            group[members[each], number] = each
    return klass, group


def _parts(comm: Ints, part: Ints, count: int) -> dict[int, list[int]]:
    """Of each communicator the different values of ``part`` [N], which are below ``count``."""
    found: dict[int, list[int]] = {}
    for pair in found_in(comm.astype(np.int64) * count + part).tolist():
        found.setdefault(pair // count, []).append(pair % count)
    return found


def _alike(members: dict[int, list[int]], comm: Ints, op: Ints, size: Array) -> list[_Class]:
    """Communicators of one size, spacing and kinds of operations in one class, as far as they share no rank."""
    ops = _parts(comm, op, int(op.max()) + 1)
    calls = np.bincount(comm)
    first = np.unique(comm, return_index=True)[1]
    names: dict[tuple[Any, ...], int] = {}
    found: list[_Class] = []
    for one, who in members.items():
        looks = (len(who), tuple(m - who[0] for m in who), tuple(ops[one]))
        number = 0
        while (place := names.setdefault((*looks, number), len(found))) < len(found) and found[place].ranks & set(who):
            number += 1
        each = _Class(
            len(who), frozenset(ops[one]), float(calls[one]) / len(who), int(size[first[one]]), [one], set(who)
        )
        if place == len(found):
            found.append(each)
        else:
            found[place].take(each)
    return found


def _together(found: list[_Class], ranks: int) -> list[_Class]:
    """With those in one class that only together have every rank, the most alike first."""
    parts = [one for one in found if len(one.ranks) < ranks]
    for one in parts if len(parts) > 1 else ():
        if one not in found:
            continue
        whole, taken = _Class(one.size, one.ops, one.calls, one.bytes, [*one.comms], {*one.ranks}), [one]
        while len(whole.ranks) < ranks:
            others = [other for other in parts if other in found and whole.likeness(other) > 0]
            if not others:
                break
            best = max(others, key=whole.likeness)
            whole.take(best)
            taken.append(best)
        if len(whole.ranks) == ranks:
            found = [whole if each is one else each for each in found if each is one or each not in taken]
    return found


def places(table: Table, comm: Ints, op: Ints, klass: Ints) -> Ints:
    """[N] the number by which calls of a class' communicators belong together: their own sequence number.

    Where communicators of a class call unlike often in a step, it is the how manieth of its kind in its step.
    """
    seq: Ints = table["seq"].astype(np.int64)
    step = table.get("step")
    if step is None or (step < 0).any() or not _differ(comm, op, klass, seq):
        return seq
    kind = comm.astype(np.int64) * (int(op.max()) + 1) + op
    order = np.lexsort((seq, step, kind))
    apart = np.diff(kind[order], prepend=-1) != 0
    fresh = apart | (np.diff(step[order], prepend=-1) != 0)
    number = np.cumsum(np.diff(seq[order], prepend=-1) != 0)
    within = number - np.maximum.accumulate(np.where(fresh, number, 0))
    found = np.empty_like(seq)
    found[order] = step[order].astype(np.int64) * (int(within.max()) + 1) + within
    return found


def _differ(comm: Ints, op: Ints, klass: Ints, seq: Ints) -> bool:
    """Whether communicators of one class number different operations."""
    kinds = int(op.max()) + 1
    calls = found_in((comm.astype(np.int64) << 36) + seq)
    kind = np.zeros(int(comm.max()) + 1, np.int64)
    kind[comm] = klass
    count = np.bincount(calls >> 36, minlength=len(kind))
    ops = _parts(comm, op, kinds)
    alike: dict[int, set[tuple[Any, ...]]] = {}
    for one in np.unique(comm).tolist():
        alike.setdefault(int(kind[one]), set()).add((int(count[one]), tuple(ops[one])))
    return any(len(looks) > 1 for looks in alike.values())
