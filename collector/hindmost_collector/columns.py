"""Growing columns: what many small blocks of a wire message are gathered into before they become arrays.

A block of one step costs a few C-level ``list.extend`` calls; a block of thousands becomes an array at once. Nothing
loops over samples in Python.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Array = np.ndarray[Any, Any]

_SMALL = 32
#: Rows that one block may have: no ring holds more.
BLOCK_LIMIT = 1 << 17
_INT64 = np.iinfo(np.int64)


def bounded(value: int) -> int:
    """``value`` as far as 64 bits hold it: what others send may be anything, and sums of it more."""
    return min(max(value, int(_INT64.min)), int(_INT64.max))


class Malformed(ValueError):  # noqa: N818 - a verdict on the sender, said as an adjective
    """A block whose columns do not fit together, or whose values cannot be."""


class Column:
    """One growing column of numbers."""

    __slots__ = ("_dtype", "_fill", "_pieces", "_tail", "length")

    def __init__(self, dtype: Any, fill: float) -> None:
        self._dtype, self._fill = np.dtype(dtype), fill
        self._pieces: list[Array] = []
        self._tail: array[Any] = array(self._dtype.char)
        self.length = 0

    def extend(self, values: list[Any], count: int) -> None:
        """Append the ``count`` values of a short list."""
        self._tail.fromlist(values)
        self.length += count

    def append(self, values: Array) -> None:
        """Append an array."""
        self._spill()
        self._pieces.append(values)
        self.length += len(values)

    def pad(self, length: int) -> None:
        """Fill up with *not measured* until there are ``length`` values."""
        if length > self.length:
            self.append(np.full(length - self.length, self._fill, self._dtype))

    def _spill(self) -> None:
        if self._tail:
            self._pieces.append(np.frombuffer(self._tail, dtype=self._dtype))
            self._tail = array(self._dtype.char)

    def take(self) -> Array:
        """Everything so far as one array; the column is empty afterwards."""
        self._spill()
        pieces, self._pieces, self.length = self._pieces, [], 0
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.empty(0, self._dtype)


class Builder:
    """A growing table: some values hold for a whole block, others differ by row.

    Args:
        constants: name to dtype of what is given once a block.
        columns: name to ``(dtype, fill)`` of what is given by row; an absent column is filled.
    """

    def __init__(self, constants: Mapping[str, Any], columns: Mapping[str, tuple[Any, float]]) -> None:
        self._constants = dict(constants)
        self._dtypes = {name: dtype for name, (dtype, _) in columns.items()}
        self._blocks: list[tuple[float, ...]] = []
        self._columns = {name: Column(dtype, fill) for name, (dtype, fill) in columns.items()}
        self.rows = 0

    def add(self, count: int, constants: tuple[float, ...], values: Iterable[tuple[str, Any]]) -> None:
        """Append ``count`` rows, ``values`` of each column sliceable as a list or a packed field is.

        Raises Malformed, appending nothing, when a column has another length.
        """
        if count > BLOCK_LIMIT:
            raise Malformed(f"a block of {count} rows: at most {BLOCK_LIMIT} are taken")
        small = count < _SMALL
        fitting: list[tuple[Column, Any]] = []
        for name, given in values:
            # slicing a packed field makes a list at once; iterating over it costs ten times as much
            taken = given[:] if small else np.asarray(given, dtype=self._dtypes[name])
            if len(taken) == count:
                fitting.append((self._columns[name], taken))
            elif len(taken):
                raise Malformed(f"column {name} has {len(taken)} values in a block of {count}")
        for column, taken in fitting:
            if column.length != self.rows:
                column.pad(self.rows)
            if small:
                column.extend(taken, count)
            else:
                column.append(taken)
        self._blocks.append((count, *constants))
        self.rows += count

    def take(self) -> dict[str, Array]:
        """All rows as arrays, one a column and a constant; the builder is empty afterwards."""
        blocks, self._blocks = self._blocks, []
        counts = np.array([block[0] for block in blocks], dtype=np.int64)
        table = {
            name: np.repeat(np.array([block[index] for block in blocks], dtype=dtype), counts)
            for index, (name, dtype) in enumerate(self._constants.items(), start=1)
        }
        for name, column in self._columns.items():
            column.pad(self.rows)
            table[name] = column.take()
        self.rows = 0
        return table


class Words:
    """Strings by number: columns of few distinct strings travel as codes and become words at the edges.

    Args:
        limit: how many there may be; beyond, every new one is ``OTHER``. None for no limit.
    """

    OTHER = "other"

    def __init__(self, limit: int | None = None) -> None:
        self.words: list[str] = []
        self._codes: dict[str, int] = {}
        self._limit = limit

    def code(self, word: str) -> int:
        """The number of ``word``, a new one when it is new."""
        code = self._codes.get(word)
        if code is None:
            if self._limit is not None and len(self.words) >= self._limit and word != self.OTHER:
                return self.code(self.OTHER)
            code = self._codes[word] = len(self.words)
            self.words.append(word)
        return code

    def of(self, codes: Array) -> Array:
        """The words of ``codes``, as a numpy string array."""
        used = sorted(set(np.unique(codes).tolist()))
        if not used:
            return np.empty(0, dtype=np.str_)
        words = np.array([self.words[code] for code in used], dtype=np.str_)
        return words[np.searchsorted(used, codes)]
