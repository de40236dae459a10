"""Columns with one value in every row, such as unmeasured ones: they take the memory of one value.

Such a column is an array like any other: numpy strides over one element again and again. It must not be written to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.model import Table

Array = np.ndarray[Any, Any]


def repeated(value: Any, count: int, dtype: Any = None) -> Array:
    """A column of one value."""
    return np.broadcast_to(np.array(value, dtype), (count,))


def is_constant(column: Array) -> bool:
    """Whether a column is known to hold one value; other columns may hold one value too, unchecked."""
    return column.strides == (0,) and len(column) > 0


def thinned(column: Array) -> Array:
    """The column, as one value where all are alike."""
    if len(column) < 2 or is_constant(column) or column[0] != column[-1]:
        return column
    return repeated(column[0], len(column), column.dtype) if (column == column[0]).all() else column


def spread(values: Array, counts: Array) -> Array:
    """Each of the values as often as it is counted."""
    one = thinned(values)
    return repeated(one[0], int(counts.sum()), one.dtype) if is_constant(one) else np.repeat(values, counts)


def joined(parts: Sequence[Array]) -> Array:
    """Several pieces of a column as one."""
    if len(parts) == 1:
        return parts[0]
    if all(map(is_constant, parts)) and all(part[0] == parts[0][0] for part in parts):
        return repeated(parts[0][0], sum(map(len, parts)), parts[0].dtype)
    return np.concatenate(parts)


def chosen(table: Table, mask: Array) -> Table:
    """The rows of a table for which ``mask`` holds; the table itself where all do."""
    count = int(np.count_nonzero(mask))
    if count == len(mask):
        return table
    return {
        name: repeated(column[0], count, column.dtype) if is_constant(column) else column[mask]
        for name, column in table.items()
    }


def memory(column: Array) -> int:
    """Bytes that its numbers take."""
    return column.itemsize if is_constant(column) else column.nbytes
