"""Which whole numbers a column holds: of ranks and steps, which lie close together, without sorting all rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hindmost_judge.types import Array, Ints

#: Numbers are dense if they span no more than this for each row.
_SPAN_A_ROW = 4


def found_in(column: Array) -> Array:
    """The numbers of a column, each once and in order."""
    return _of_span(column)[0]


def numbered(column: Array) -> tuple[Array, Ints]:
    """The numbers of a column, each once and in order, and which of them each row has."""
    found, place, least = _of_span(column)
    return (found, place[column - least]) if place is not None else np.unique(column, return_inverse=True)


def _of_span(column: Array) -> tuple[Array, Ints | None, int]:
    """The numbers, the place of each from the least one on (``None``: they lie far apart), and the least."""
    least, most = (int(column.min()), int(column.max())) if len(column) else (0, -1)
    if not len(column) or most - least >= _SPAN_A_ROW * len(column):
        return np.unique(column), None, least
    there = np.zeros(most - least + 1, bool)
    there[column - least] = True
    found = np.flatnonzero(there)
    return (found + least).astype(column.dtype), np.cumsum(there) - 1, least
