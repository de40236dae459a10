"""Growing tables: what the blocks of wire messages are gathered into before they become arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Array = np.ndarray[Any, Any]

#: Rows that one block may have: no ring holds more.
BLOCK_LIMIT = 1 << 17
_INT64 = np.iinfo(np.int64)


def bounded(value: int) -> int:
    """``value`` as far as 64 bits hold it: what others send may be anything, and sums of it more."""
    return min(max(value, int(_INT64.min)), int(_INT64.max))


#: Longer texts are kept one by one: in numpy's own string arrays each would take as much room as the longest.
_FIXED_WIDTH = 256


def texts(values: Sequence[str]) -> Array:
    """Strings as a column, whose memory is about that of the strings whatever their lengths."""
    return np.array(values, dtype=object if max(map(len, values), default=0) > _FIXED_WIDTH else np.str_)


def held_bytes(column: Array) -> int:
    """About how much memory a column takes, with the texts that it only points to."""
    return column.nbytes + (sum(map(len, column)) if column.dtype == object else 0)


class Malformed(ValueError):  # noqa: N818 - a verdict on the sender, said as an adjective
    """A block whose columns do not fit together, or whose values cannot be."""


class Builder:
    """A growing table of blocks: wire messages of some ranks' rows, whose packed columns have one length.

    Blocks of one shape are joined by the protobuf library as they come, which copies memory, and become arrays when the
    table is taken; nothing is done for a single value in Python. Rows come out shape by shape, as they came.

    Args:
        message: the blocks' type.
        constants: name to dtype of what holds for a whole block.
        columns: name to ``(field of the message, dtype, fill)``; an absent column is filled with *not measured*.
        extras: name to ``(dtype, fill)`` of columns that have a message of their own, a ``PhaseColumn``.
        coded: ``(column, field)`` of indices into the words that ``add`` is given codes of.
    """

    def __init__(
        self,
        message: type[Any],
        constants: Mapping[str, Any],
        columns: Mapping[str, tuple[str, Any, float]],
        extras: Mapping[str, tuple[Any, float]] | None = None,
        coded: tuple[str, str] | None = None,
    ) -> None:
        self._message, self._constants, self._columns = message, constants, columns
        self._extras, self._coded = extras or {}, coded
        self._fields = attrgetter(*(source for source, _, _ in columns.values()))
        self._shapes: dict[Any, _Shape] = {}
        self.rows = 0

    def add(
        self,
        block: Any,
        count: int,
        counts: Sequence[int],
        ranks: Sequence[int],
        constants: Sequence[int],
        codes: tuple[int, ...] = (),
        extras: Mapping[str, Any] | None = None,
    ) -> None:
        """Append a block of ``count`` rows.

        Args:
            counts: of consecutive rows of one rank each; they sum up to ``count``.
            ranks: of those rows.
            constants: what holds for the whole block, in the order of ``constants``.
            codes: of the words that the block's own indices mean.
            extras: column to a message with a field ``ns``.

        Raises Malformed, appending nothing, when a column has another length.
        """
        if count > BLOCK_LIMIT:
            raise Malformed(f"a block of {count} rows: at most {BLOCK_LIMIT} are taken")
        extras = extras or {}
        lengths = [*map(len, self._fields(block)), *(len(one.ns) for one in extras.values())]
        whole = lengths.count(count)
        if whole + lengths.count(0) != len(lengths):
            self._refuse(count, lengths, extras)
        key = codes, tuple(extras), None if whole == len(lengths) else tuple(map(bool, lengths))
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = _Shape(self._message(), {name: type(one)() for name, one in extras.items()})
        shape.merged.MergeFrom(block)
        for name, one in extras.items():
            shape.extras[name].MergeFrom(one)
        shape.counts.extend(counts)
        shape.ranks.extend(ranks)
        shape.sizes.append(count)
        shape.constants.extend(constants)
        self.rows += count

    def _refuse(self, count: int, lengths: Sequence[int], extras: Mapping[str, Any]) -> None:
        names = (*self._columns, *extras)
        name, length = next(one for one in zip(names, lengths, strict=True) if one[1] not in {0, count})
        raise Malformed(f"column {name} has {length} values in a block of {count}")

    def take(self) -> dict[str, Array]:
        """All rows as arrays, one a column and a constant; the builder is empty afterwards."""
        shapes, self._shapes, self.rows = self._shapes, {}, 0
        if not shapes:
            shapes = {((), (), None): _Shape(self._message(), {})}
        tables = [self._arrays(codes, shape) for (codes, _, _), shape in shapes.items()]
        if len(tables) == 1:
            return tables[0]
        return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}

    def _arrays(self, codes: tuple[int, ...], shape: _Shape) -> dict[str, Array]:
        counts = np.array(shape.counts, dtype=np.int64)
        sizes = np.array(shape.sizes, dtype=np.int64)
        constants = np.array(shape.constants, dtype=np.int64).reshape(len(sizes), len(self._constants))
        total = int(sizes.sum())
        table = {"rank": np.repeat(np.array(shape.ranks, dtype=np.int32), counts)}
        for index, (name, dtype) in enumerate(self._constants.items()):
            table[name] = np.repeat(constants[:, index].astype(dtype), sizes)
        for name, (source, dtype, fill) in self._columns.items():
            table[name] = _array(getattr(shape.merged, source), dtype, fill, total)
        for name, (dtype, fill) in self._extras.items():
            given = shape.extras.get(name)
            table[name] = _array(given.ns if given is not None else (), dtype, fill, total)
        if self._coded:
            name, source = self._coded
            indices = np.asarray(getattr(shape.merged, source), dtype=np.int64)
            table[name] = np.array(codes, dtype=np.int32)[indices] if total else np.empty(0, np.int32)
        return table


@dataclass
class _Shape:
    """Blocks that have the same columns and the same words."""

    merged: Any
    extras: dict[str, Any]
    counts: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)


def _array(given: Any, dtype: Any, fill: float, total: int) -> Array:
    return np.asarray(given, dtype=dtype) if len(given) else np.full(total, fill, dtype)


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
