"""Blocks of [rank x step] that hold no more than their rows can fill.

A rank whose agent sends minutes of backlog is at another step than all others. Every step that it tells of would be a
column of all ranks: rows of a few megabytes made blocks of gigabytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge import constant, dictionary_encoding
from hindmost_judge.model import Table, rows

if TYPE_CHECKING:
    from hindmost_judge.types import Array

#: Most cells of a block per row, and cells allowed however few rows there are.
_CELLS_A_ROW, _FREE = 8, 1 << 20


def columns(table: Table, by: str) -> Table:
    """The rows of a table that becomes a block with a column for each value of ``by``.

    All of them, or, where most of such a block would be empty, those of the columns that most ranks have; of similar
    columns the later ones.
    """
    if not rows(table):
        return table
    most = max(_CELLS_A_ROW * rows(table), _FREE) // len(dictionary_encoding.unique(table["rank"]))
    column, found = dictionary_encoding.factorize(table[by])
    if len(found) <= most:
        return table
    return constant.chosen(table, _fullest(column, len(found), max(most, 1))[column])


def _fullest(column: Array, count: int, most: int) -> Array:
    """Which of so many columns have the most rows, of those alike the ones that were met last."""
    order = np.lexsort((np.arange(count), np.bincount(column, minlength=count)))
    kept = np.zeros(count, bool)
    kept[order[-most:]] = True
    return kept
