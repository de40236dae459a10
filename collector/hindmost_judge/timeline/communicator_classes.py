"""Which communicators do the same for other ranks: the tensor groups of a job, or its data-parallel groups.

Communicators that look alike (size, spacing of members, operations) and share no rank are one class. Ranks may be
laid out with different spacing of the members of sisters, and a group may log or check what its sisters do not. Such
groups are one class if they are of one size, do about as much, and have every rank between them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from hindmost_judge.timeline.whole_numbers import found_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hindmost_judge.model import Table
    from hindmost_judge.types import Array, Ints

#: Sister communicators make at most this many times as many calls as each other.
_ABOUT = 2.0
#: Most pairs of communicators compared to find sisters of different spacing: all pairs of 90.
_PAIRS = 1 << 13


@dataclass(eq=False)
class _Class:
    """Communicators ``comms`` that share no rank, of ``size`` members each, and what the first of them does."""

    size: int
    ops: frozenset[int]
    calls: float
    bytes: int
    comms: list[int] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)

    def likeness(self, other: _Class) -> float:
        """How much alike these are in what they do; 0 for such as do other things."""
        ratio = min(self.calls, other.calls) / max(self.calls, other.calls)
        if self.size != other.size or not self.ops & other.ops or ratio * _ABOUT < 1:
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
    """For each communicator the different values of ``part`` [N], which are below ``count``."""
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
    sizes: dict[int, list[_Class]] = {}
    for one in parts:
        sizes.setdefault(one.size, []).append(one)
    taken: set[int] = set()
    for sisters in sizes.values():
        taken |= _united(sisters, ranks, _PAIRS // len(parts))
    return [one for one in found if id(one) not in taken]


def _united(parts: list[_Class], ranks: int, tries: int) -> set[int]:
    """The ids of those of ``parts`` that others took, to have every rank; so many begin to look for sisters."""
    left, taken = {id(one): one for one in parts}, set()
    for one in islice((one for one in parts if id(one) in left), tries if _have_all(parts, ranks) else 0):
        sisters = _sisters(one, left.values(), ranks)
        for other in sisters:
            one.take(other)
            taken.add(id(other))
            del left[id(other)]
        if sisters:
            del left[id(one)]
            if not _have_all(left.values(), ranks):
                break
    return taken


def _have_all(parts: Iterable[_Class], ranks: int) -> bool:
    """Whether every rank is in one of the ``parts``."""
    return len(set[int]().union(*(one.ranks for one in parts))) == ranks


def _sisters(one: _Class, parts: Iterable[_Class], ranks: int) -> list[_Class]:
    """Those of ``parts``, the most alike first, that have the ranks which ``one`` has not; none if any is left."""
    found, have = [], {*one.ranks}
    alike = [(one.likeness(other), other) for other in parts]
    for likeness, other in sorted(alike, key=itemgetter(0), reverse=True):
        if likeness > 0 and have.isdisjoint(other.ranks):
            found.append(other)
            have |= other.ranks
    return found if len(have) == ranks else []


def places(table: Table, comm: Ints, op: Ints, klass: Ints) -> Ints:
    """[N] the number by which calls of a class's communicators belong together: their own sequence number.

    Where communicators of a class make different numbers of calls in a step, it is the call's ordinal of its kind in
    its step.
    """
    seq: Ints = table["seq"].astype(np.int64)
    step = table.get("step")
    if step is None or (step < 0).any() or not _differ(step, comm, op, klass, seq):
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


def _differ(step: Ints, comm: Ints, op: Ints, klass: Ints, seq: Ints) -> bool:
    """Whether communicators of one class number different operations.

    A recording may begin and end in the midst of a step, later for this communicator than for that: what differs there
    only, is numbered alike.
    """
    odd = np.isin(klass, _unlike(comm, op, klass, seq))
    if not odd.any():
        return False
    step, comm, op, klass, seq = (each[odd] for each in (step, comm, op, klass, seq))
    whole = _whole_steps(step, comm, klass)
    if len(np.unique(klass[whole])) < len(np.unique(klass)):
        return True
    step, comm, op, klass, seq = (each[whole] for each in (step, comm, op, klass, seq))
    return bool(len(_unlike(comm, op, klass)) or _begin_apart(step, comm, klass, seq))


def _unlike(comm: Ints, op: Ints, klass: Ints, seq: Ints | None = None) -> list[int]:
    """Classes of which communicators have different operations or, by ``seq``, numbers of calls."""
    kind = np.zeros(int(comm.max()) + 1, np.int64)
    kind[comm] = klass
    calls = np.zeros(0, np.int64) if seq is None else found_in((comm.astype(np.int64) << 36) + seq) >> 36
    count = np.bincount(calls, minlength=len(kind))
    looks: dict[int, set[tuple[Any, ...]]] = {}
    for one, ops in _parts(comm, op, int(op.max()) + 1).items():
        looks.setdefault(int(kind[one]), set()).add((int(count[one]), tuple(ops)))
    return [one for one, different in looks.items() if len(different) > 1]


def _whole_steps(step: Ints, comm: Ints, klass: Ints) -> Array:
    """[N] whether a step began after the first and ended before the last of every communicator of its class."""
    names, index = np.unique(comm, return_index=True)
    place = np.searchsorted(names, comm)
    first, last = np.full(len(names), step.max()), np.full(len(names), step.min())
    np.minimum.at(first, place, step)
    np.maximum.at(last, place, step)
    begin, end = np.full(int(klass.max()) + 1, step.min()), np.full(int(klass.max()) + 1, step.max())
    np.maximum.at(begin, klass[index], first)
    np.minimum.at(end, klass[index], last)
    return np.asarray((step > begin[klass]) & (step < end[klass]))


def _begin_apart(step: Ints, comm: Ints, klass: Ints, seq: Ints) -> bool:
    """Whether communicators of one class begin a step with different numbers."""
    order = np.lexsort((seq, comm, step, klass))
    step, comm, klass, seq = (each[order] for each in (step, comm, klass, seq))
    same = (np.diff(step) == 0) & (np.diff(klass) == 0)
    begins = np.flatnonzero(np.concatenate(([True], ~same | (np.diff(comm) != 0))))
    together = (np.diff(step[begins]) == 0) & (np.diff(klass[begins]) == 0)
    return bool((together & (np.diff(seq[begins]) != 0)).any())
