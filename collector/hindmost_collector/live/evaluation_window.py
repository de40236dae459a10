"""Which part of a window is evaluated: what all ranks have reported; between full evaluations, the newest steps.

Each agent sends what its ranks did every few seconds, at its own moments. A window therefore lacks the newest seconds
of some ranks, and the oldest of those whose oldest rows were dropped first. A rank with missing rows does not seem
late, and the ranks that wait for it seem to wait for a slow network. Such steps are not judged.

A full evaluation takes tenths of a second to a second of CPU time, the newest steps a part of that.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from hindmost_judge.model import rows

from hindmost_collector.ingest.session import MOST_S, NS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from hindmost_judge.model import Run, Table

#: Ranks that report so much later than others, or earlier, are not waited for: they have joined, ended or are cut off.
#: The newest steps take so much longer at most: agents of large jobs send what seconds brought, in turn.
HELD_NS = 2 * MOST_S * NS
#: At least this many steps are left, as far as the window has them: a slowdown needs ten, the first ones may be left
#: out as warm-up, and the newest rows are of unfinished steps. Windows of very many ranks are short.
_STEPS = 16
#: Least rows of the fullest table for an incremental evaluation that may take 20 to 100 ms, and for one that may not.
ROWS, LEAST_ROWS = 50_000, 1_000

#: With this many times the rows, this many steps are enough, if nearly all ranks reported enough for a judgement:
#: evaluations of thousands of ranks must be as frequent.
_MANY, _FEWEST = 2, 13
#: Share of the ranks that need enough steps for a judgement: some may have ended, or lost contact.
_NEARLY_ALL = 0.9
#: Least steps that collectives must cover: the full evaluation does not use fewer.
_JUDGED = 11
#: Least metric samples: they show how many CPUs ranks share. Causes need a full evaluation.
_SAMPLES = 20_000
#: Larger jobs span so many nodes that CPU oversubscription would be an oversight.
_ON_A_NODE = 512


def reported_by_all(run: Run, step_ns: float, gone: AbstractSet[int], begun: AbstractSet[str]) -> Run:
    """A window without what began before or after the time that all ranks reported, except those that are ``gone``.

    A step takes ``step_ns``. Tables without dropped rows are complete since the ranks have ``begun``. Each table is cut
    by its own clock: a GPU's clock is not the host's. Where steps are marked, collectives of too few of them are left
    out: of thousands of ranks the window holds seconds, and most ranks would be missing in each.
    """
    cut = {}
    for name, table in (("steps", run.steps), ("collectives", run.collectives)):
        if rows(table):
            spans = _reported(table, gone, begun=name in begun)
            too_few = name == "collectives" and name not in begun and spans[0][1] - spans[0][0] < _JUDGED * step_ns
            if too_few and rows(run.steps):
                cut[name] = {column: values[:0] for column, values in table.items()}
            else:
                cut[name] = _cut(table, next((one for one in spans if one[1] - one[0] >= _STEPS * step_ns), spans[-1]))
    return replace(run, **cut)


def _reported(table: Table, gone: AbstractSet[int], *, begun: bool) -> tuple[tuple[int, int], ...]:
    """When the last of the ranks began to tell, and the first ended; with what only some reported before, and after."""
    rank, start = table["rank"], table["start_ns"]
    first = np.full(int(rank.max()) + 1, np.iinfo(np.int64).max)
    last = np.full(len(first), np.iinfo(np.int64).min)
    np.minimum.at(first, rank, start)
    np.maximum.at(last, rank, start + np.maximum(table["duration_ns"], 0))
    oldest, newest = int(first.min()), int(last.max())
    last[[one for one in gone if one < len(last)]] = newest
    since = oldest if begun else int(first[first <= oldest + HELD_NS].max())
    until = int(last[last >= newest - HELD_NS].min())
    return (since, until), (oldest, until), (oldest, newest + 1)


def _cut(table: Table, span: tuple[int, int]) -> Table:
    inside = (table["start_ns"] >= span[0]) & (table["start_ns"] < span[1])
    return table if inside.all() else {name: column[inside] for name, column in table.items()}


def newest_steps(
    held: Mapping[str, Sequence[Piece]],
    step_ns: float,
    ranks: int,
    least: int = ROWS,
    begun: AbstractSet[str] = frozenset(),
) -> dict[str, list[Piece]]:
    """The pieces of tables, oldest first, of the newest steps, which take ``step_ns`` each, of so many ranks.

    The fullest table has at least ``least`` rows. Each table is cut by its own clock: a GPU's clock is not the
    host's. Tables without dropped rows are complete since the ranks have ``begun``.
    """
    kept = {name: list(pieces) for name, pieces in held.items()}
    if kept.get("steps") and kept.get("collectives"):
        pieces = kept["collectives"]  # the oldest reaches back into time of which others' rows were dropped
        since = pieces[0].first_ns if "collectives" in begun else pieces[0].newest_ns
        if pieces[-1].newest_ns - since < _JUDGED * step_ns:
            kept["collectives"] = []
    fullest = max(kept.values(), key=lambda pieces: sum([one.rows for one in pieces]), default=[])
    span, found, reported = 0, 0, _Reported(kept.get("steps") or [], ranks)
    for piece in reversed(fullest):
        found += piece.rows
        span = fullest[-1].newest_ns - piece.first_ns
        enough = span >= (_STEPS if found < _MANY * least else _FEWEST) * step_ns
        if found >= least and enough and (reported.of_nearly_all(span) or span >= _STEPS * step_ns + HELD_NS):
            break
    return {
        name: [one for one in pieces if pieces[-1].newest_ns - one.newest_ns <= span] for name, pieces in kept.items()
    }


class _Reported:
    """How many steps each rank has reported, in more and more of the newest pieces."""

    def __init__(self, pieces: Sequence[Piece], ranks: int) -> None:
        self._left, self._ranks = list(pieces), ranks
        self._newest = pieces[-1].newest_ns if pieces else 0
        self._steps = np.zeros(0, np.int64)

    def of_nearly_all(self, span: int) -> bool:
        """Whether nearly all ranks reported enough steps for a judgement in this time; true where no step is marked."""
        if not self._newest:
            return True
        while self._left and self._newest - self._left[-1].newest_ns <= span:
            more = np.bincount(self._left.pop().table["rank"], minlength=len(self._steps))
            more[: len(self._steps)] += self._steps
            self._steps = more
        return int(np.sum(self._steps >= _JUDGED)) >= _NEARLY_ALL * self._ranks


def of_samples(sizes: Sequence[int]) -> int:
    """How many ticks of metrics, which hold so many samples each, oldest first, to leave out."""
    found, left = 0, len(sizes)
    while left and found < _SAMPLES:
        left -= 1
        found += sizes[left]
    return left


def may_share_cpus(ranks: Table) -> bool:
    """Whether ranks may share CPUs: then metrics say which of them may be named, else how many CPUs there are."""
    return rows(ranks) <= _ON_A_NODE


class Piece(NamedTuple):
    """A tick's rows, their count, and their first and last begin; each evaluation reads all pieces."""

    table: Table
    rows: int
    first_ns: int
    newest_ns: int


def piece(table: Table) -> Piece:
    """Rows, at least one, as a piece."""
    return Piece(table, rows(table), int(table["start_ns"].min()), int(table["start_ns"].max()))


class Pieces:
    """Pieces, bounded by rows and by age, which counts from the newest piece; the newest is always kept."""

    def __init__(self) -> None:
        self._held: deque[Piece] = deque()
        self._rows = 0
        self.whole = True  # nothing was let go

    def __iter__(self) -> Iterator[Piece]:
        return iter(tuple(self._held))  # another thread may add one meanwhile

    def __bool__(self) -> bool:
        return bool(self._held)

    def tables(self) -> list[Table]:
        """The rows of each."""
        return [one.table for one in self]

    def add(self, one: Piece) -> None:
        """Take a piece in."""
        self._held.append(one)
        self._rows += one.rows

    def bound(self, limit: int, span_ns: int) -> None:
        """Let the oldest go, beyond so many rows or older than the newest piece by more than this."""
        while len(self._held) > 1 and (
            self._rows > limit or self._held[0].newest_ns < self._held[-1].newest_ns - span_ns
        ):
            self._rows -= self._held.popleft().rows
            self.whole = False

    def clear(self) -> None:
        """Let all go."""
        self._held.clear()
        self._rows, self.whole = 0, False
