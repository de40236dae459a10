"""Ranks that ran different operations at one place of a communicator, and went on: they exchanged garbage.

A collective library requires the same sequence on all members and does not check it. Operations of similar size may
pair up wrongly without a hang.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.dictionary_encoding import codes
from hindmost_judge.model import ERROR, rows

if TYPE_CHECKING:
    from hindmost_judge.model import Run, Table
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Array, Ints


@dataclass(frozen=True)
class Mismatch:
    """The first place at which ``ranks`` ran ``ran`` and ``others`` ran ``op``, and at how many places ranks differ."""

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    ran: str
    op: str
    comm: int
    seq: int
    start_ns: int
    places: int

    @property
    def named(self) -> tuple[int, ...]:
        """The wrong side: the smaller one; with two equal sides, neither."""
        return self.ranks if len(self.ranks) < len(self.others) else ()


#: Two sides of one operation: different names at one number are no mismatch here.
MEET = {"send", "recv"}


def find(run: Run, settings: Settings, *, stopped: bool = False) -> Mismatch | None:
    """The earliest such place of any communicator; ``None`` where there is none, or too little agreed to tell.

    In a job that went on, half of the ranks against the other half is no proof; in one that ``stopped`` it is the
    reason.
    """
    table = run.collectives
    if rows(table) == 0:
        return None
    op, names = codes(table["op"])
    usable = np.flatnonzero((table["seq"] >= 0) & ((table["flags"] & ERROR) == 0))
    found = [
        one
        for comm in (np.unique(table["comm"][usable]) if len(names) > 1 else ())
        if (one := _in_communicator(table, op, names, usable[table["comm"][usable] == comm], settings)) is not None
        and (stopped or one.named)
    ]
    return min(found, key=lambda one: one.start_ns, default=None)


def _in_communicator(table: Table, op: Ints, names: list[str], held: Array, settings: Settings) -> Mismatch | None:
    if _alike(table["seq"][held], op[held]) or _counted_apart(table, held):
        return None
    held = held[np.argsort(table["seq"][held], kind="stable")]
    seq = table["seq"][held]
    first = np.flatnonzero(np.append(True, np.diff(seq) != 0))
    size = np.diff(np.append(first, len(held)))
    differ = np.maximum.reduceat(op[held], first) != np.minimum.reduceat(op[held], first)
    places = np.flatnonzero(differ & (size > 1))
    if len(places) == 0 or int(np.sum((size > 1)[: places[0]])) < settings.desync_agreed:
        return None
    members = held[first[places[0]] : first[places[0]] + size[places[0]]]
    common = int(np.argmax(np.bincount(op[members])))
    odd = op[members] != common
    if 2 * int(odd.sum()) > len(members) or MEET.issuperset({names[one] for one in op[members].tolist()}):
        return None
    return Mismatch(
        ranks=tuple(sorted(table["rank"][members[odd]].tolist())),
        others=tuple(sorted(table["rank"][members[~odd]].tolist())),
        ran=names[int(op[members[odd][0]])],
        op=names[common],
        comm=int(table["comm"][members[0]]),
        seq=int(table["seq"][members[0]]),
        start_ns=int(table["start_ns"][members[0]]),
        places=len(places),
    )


#: Sequence numbers that span less than this for each row are looked up in an array, without sorting.
_SPAN_A_ROW = 4


def _alike(seq: Array, op: Ints) -> bool:
    """Whether all members ran the same at each number: so it is in nearly all jobs, and nothing is left to look for."""
    least = int(seq.min())
    if int(seq.max()) - least >= _SPAN_A_ROW * len(seq):
        return bool((op == op[0]).all())
    number = (seq - least).astype(np.int64)
    any_of = np.zeros(int(number.max()) + 1, op.dtype)
    any_of[number] = op
    return bool((any_of[number] == op).all())


def _counted_apart(table: Table, held: Array) -> bool:
    """Whether any member has one number twice: then operations are numbered each for itself, or by another rule."""
    order = np.lexsort((table["seq"][held], table["rank"][held]))
    rank, seq = table["rank"][held][order], table["seq"][held][order]
    return bool(np.any((np.diff(rank) == 0) & (np.diff(seq) == 0)))
