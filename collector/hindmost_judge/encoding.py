"""Columns of tables as numbers: constant ones, values and texts as codes, whole numbers that lie close together.

A column with one value in every row takes the memory of one: numpy strides over one element again and again. It must
not be written to. Codes number values in the order in which they first come. Arrow hashes many of them, and few where
it is loaded; pandas would too, and takes 50 MiB and as long as all other imports of a collector.

A table that becomes a block of [rank x step] keeps no more columns than its rows can fill: a rank whose agent sends
minutes of backlog is at another step than all others, and each of its steps would be a column of all ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from hindmost_judge.model import Table, rows
from hindmost_judge.types import Array, Ints


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


def grouped(key: Array) -> list[Ints]:
    """Indices of rows with the same ``key`` [N], together and in their order."""
    order = np.argsort(key, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(key[order])) + 1) if len(key) else []


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


def factorize(
    values: np.ndarray[Any, np.dtype[Any]],
) -> tuple[np.ndarray[Any, np.dtype[np.intp]], np.ndarray[Any, np.dtype[Any]]]:
    """``(numbers, values)``: the number of each of the values, and the different ones in order."""
    if values.dtype == object or (len(values) <= _SORTED_ROWS and "pyarrow" not in sys.modules):
        return _factorized(values)
    import pyarrow as pa  # noqa: PLC0415 - where used

    hashed = pa.array(values).dictionary_encode()
    return hashed.indices.to_numpy().astype(np.intp), hashed.dictionary.to_numpy(zero_copy_only=False)


#: So many rows are sorted in less time than pyarrow is imported in.
_SORTED_ROWS = 1 << 14


def _factorized(
    values: np.ndarray[Any, np.dtype[Any]],
) -> tuple[np.ndarray[Any, np.dtype[np.intp]], np.ndarray[Any, np.dtype[Any]]]:
    if values.dtype == object:
        number: dict[Any, int] = {}
        numbers = np.fromiter((number.setdefault(value, len(number)) for value in values), np.intp, len(values))
        return numbers, np.array(list(number), object)
    distinct, begin, place = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(begin)
    return np.argsort(order)[place], distinct[order]


def unique(values: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """The different values, in the order in which they first come."""
    return factorize(values)[1]


def codes(text: Array) -> tuple[Ints, list[str]]:
    """Integer codes of a text column and the text of each; hashes whole rows, so that millions stay cheap."""
    if len(text) == 0:
        return np.empty(0, np.int64), []
    if is_constant(text):
        return np.zeros(len(text), np.int64), [str(text[0])]
    if text.dtype == object:  # rows that share their texts, or long ones
        return _shared_codes(np.ascontiguousarray(text))
    fixed = np.ascontiguousarray(text)
    width = fixed.dtype.itemsize // 4
    if width == 0:
        return np.zeros(len(text), np.int64), [""]
    letters = fixed.view(np.uint32).reshape(len(fixed), width)
    hashed = np.zeros(len(fixed), np.uint64)
    for column, factor in enumerate(_factors(width)):
        hashed += letters[:, column] * factor  # a column at a time: no block of 64-bit words as large as the text
    found, _ = factorize(hashed)
    return found.astype(np.int64), [str(fixed[i]) for i in first(np.arange(len(found)), found, found.max() + 1)]


@cache
def _factors(width: int) -> Array:
    """What each letter of a hashed text counts."""
    return np.random.default_rng(7).integers(1, 2**63, width, dtype=np.uint64)


def _shared_codes(text: Array) -> tuple[Ints, list[str]]:
    """Codes of texts that many rows share: which rows have the same object, then which objects are the same text.

    Comparing object identities takes a tenth of the time of comparing texts.
    """
    same, places = factorize(np.frombuffer(text, np.intp))
    found, words = factorize(text[first(np.arange(len(text)), same, len(places))])
    return found.astype(np.int64)[same], [str(word) for word in words]


def first(values: Array, code: Ints, count: int, missing: int = 0) -> Ints:
    """[C] the first of the values [N] of each code; ``missing`` where there is none."""
    found = np.full(count, missing, np.int64)
    found[code[::-1]] = values[::-1]
    return found


def ordinals(keys: Ints) -> Ints:
    """[N] how many of the same key come before each."""
    order = np.argsort(keys, kind="stable")
    first = np.flatnonzero(np.append(True, np.diff(keys[order]) != 0))
    found = np.empty(len(keys), np.int64)
    found[order] = np.arange(len(keys)) - np.repeat(first, np.diff(np.append(first, len(keys))))
    return found


def distinct_integers(column: Array) -> Array:
    """The numbers of a column, each once and in order."""
    return np.sort(unique(column))


def numbered(column: Array) -> tuple[Array, Ints]:
    """The numbers of a column, each once and in order, and which of them each row has."""
    code, found = factorize(column)
    order = np.argsort(found)
    return found[order], np.argsort(order)[code]


#: Most cells of a block per row, and cells allowed however few rows there are.
_CELLS_A_ROW, _FREE = 8, 1 << 20


def columns_that_fill(table: Table, by: str) -> Table:
    """The rows of a table that becomes a block with a column for each value of ``by``.

    All of them, or, where most of such a block would be empty, those of the columns that most ranks have; of similar
    columns the later ones.
    """
    if not rows(table):
        return table
    most = max(_CELLS_A_ROW * rows(table), _FREE) // len(unique(table["rank"]))
    column, found = factorize(table[by])
    if len(found) <= most:
        return table
    order = np.lexsort((np.arange(len(found)), np.bincount(column, minlength=len(found))))
    return chosen(table, np.isin(column, order[-max(most, 1) :]))
