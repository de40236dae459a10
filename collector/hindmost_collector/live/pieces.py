"""What agents sent of one table of a running job, piece by piece, oldest first."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from hindmost_judge.model import rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hindmost_judge.model import Table


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
