"""Growing columns: what many small blocks of a wire message are gathered into before they become arrays.

A block of one step costs a few C-level ``list.extend`` calls; a block of thousands becomes an array at once. Nothing
loops over samples in Python.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Array = np.ndarray[Any, Any]

_SMALL = 32


class Malformed(ValueError):  # noqa: N818 - a verdict on the sender, said as an adjective
    """A block whose columns do not fit together, or whose values cannot be."""


class Column:
    """One growing column of numbers."""

    __slots__ = ("_dtype", "_fill", "_pieces", "_tail", "length")

    def __init__(self, dtype: Any, fill: float) -> None:
        self._dtype, self._fill = dtype, fill
        self._pieces: list[Array] = []
        self._tail: list[float] = []
        self.length = 0

    def extend(self, values: Sequence[float]) -> None:
        """Append ``values``."""
        count = len(values)
        self.length += count
        if count < _SMALL:
            self._tail.extend(values)
            return
        self._spill()
        self._pieces.append(np.asarray(values, dtype=self._dtype))

    def pad(self, length: int) -> None:
        """Fill up with *not measured* until there are ``length`` values."""
        missing = length - self.length
        if missing <= 0:
            return
        self.length = length
        if missing < _SMALL:
            self._tail.extend(repeat(self._fill, missing))
            return
        self._spill()
        self._pieces.append(np.full(missing, self._fill, self._dtype))

    def _spill(self) -> None:
        if self._tail:
            self._pieces.append(np.array(self._tail, dtype=self._dtype))
            self._tail = []

    def take(self) -> Array:
        """Everything so far as one array; the column is empty afterwards."""
        self._spill()
        pieces, self._pieces, self.length = self._pieces, [], 0
        return np.concatenate(pieces) if pieces else np.empty(0, self._dtype)


class Builder:
    """A growing table: some values hold for a whole block, others differ by row.

    Args:
        constants: name to dtype of what is given once a block.
        columns: name to ``(dtype, fill)`` of what is given by row; an absent column is filled.
    """

    def __init__(self, constants: Mapping[str, Any], columns: Mapping[str, tuple[Any, float]]) -> None:
        self._constants = dict(constants)
        self._blocks: list[tuple[float, ...]] = []
        self._columns = {name: Column(dtype, fill) for name, (dtype, fill) in columns.items()}
        self.rows = 0

    def add(self, count: int, constants: tuple[float, ...], values: Iterable[tuple[str, Sequence[float]]]) -> None:
        """Append ``count`` rows. Raises Malformed, appending nothing, when a column has another length."""
        given = [(name, column) for name, column in values if len(column)]
        for name, column in given:
            if len(column) != count:
                raise Malformed(f"column {name} has {len(column)} values in a block of {count}")
        for name, column in given:
            growing = self._columns[name]
            growing.pad(self.rows)
            growing.extend(column)
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
    """Strings by number: columns of few distinct strings travel as codes and become words at the edges."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._codes: dict[str, int] = {}

    def code(self, word: str) -> int:
        """The number of ``word``, a new one when it is new."""
        code = self._codes.get(word)
        if code is None:
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
