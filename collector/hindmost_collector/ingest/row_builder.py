"""The rows of a job as they arrive: growing tables that wire messages are gathered into before they become arrays.

There are thousands of blocks a second, and few are looked at: each is kept as little more than the bytes that it came
in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from hindmost_judge import encoding
from hindmost_judge.model import PHASES
from hindmost_proto import varint

from hindmost_collector.ingest.packed_fields import eights, first, signed, varint_count, varints

Array = np.ndarray[Any, Any]

#: Rows that one block may have: no ring holds more.
BLOCK_LIMIT = 1 << 17
#: The least and the greatest number of 64 bits, which a column holds.
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def bounded(value: int) -> int:
    """``value`` as far as 64 bits hold it: what others send may be anything, and sums of it more."""
    return value if _LEAST <= value <= _MOST else min(max(value, _LEAST), _MOST)


#: Longer texts are kept one by one: in numpy's own string arrays each would take as much room as the longest.
_FIXED_WIDTH = 256


def texts(values: Sequence[str]) -> Array:
    """Strings as a column, whose memory is about that of the strings whatever their lengths."""
    return np.array(values, dtype=object if max(map(len, values), default=0) > _FIXED_WIDTH else np.str_)


def held_bytes(column: Array) -> int:
    """About how much memory a column takes, with the texts that it only points to."""
    return encoding.memory(column) + (sum(map(len, column)) if column.dtype == object else 0)


class Malformed(ValueError):  # noqa: N818 - a verdict on the sender, said as an adjective
    """A block whose columns do not fit together, or whose values cannot be."""


class Owners(NamedTuple):
    """The owners of a block's rows: how many consecutive ones each rank has, as packed varints; their int32 ranks."""

    counts: bytes
    ranks: bytes

    @classmethod
    def of(cls, counts: Sequence[int], ranks: Sequence[int]) -> Owners:
        return cls(b"".join(map(varint, counts)), np.array(ranks, np.int32).tobytes())


class Builder:
    """A growing table of blocks: packed messages of some ranks' rows, whose columns have one length.

    Columns of blocks of one shape are kept as the bytes they came in, and joined when the table is taken; nothing is
    done for a single value in Python. Rows come out shape by shape, as they came.

    Args:
        constants: name to dtype of what holds for a whole block.
        columns: name to ``(field of the message, dtype, fill)``; a missing column is filled with *not measured*. Of
            eight bytes a value, like the dtype.
        varints: name to ``(field, how to read it, dtype, fill)`` of columns that are varints.
        extras: name to fill of columns of int64 that come in messages of their own.
        coded: ``(column, field)`` of indices into the words that ``add`` is given codes of.
    """

    def __init__(
        self,
        constants: Mapping[str, Any],
        columns: Mapping[str, tuple[str, Any, float]],
        varints: Mapping[str, tuple[str, Callable[[bytes], Array], Any, float]] | None = None,
        extras: Mapping[str, int] | None = None,
        coded: tuple[str, str] | None = None,
    ) -> None:
        self._constants, self._columns, self._varints = constants, columns, varints or {}
        self._extras, self._coded = extras or {}, coded
        self._eights = [source for source, _, _ in columns.values()]
        self._small = [source for source, *_ in self._varints.values()]
        index = [coded[1]] if coded else []
        self._fields = attrgetter(*self._eights, *self._small, *index)
        self._shapes: dict[Any, _Shape] = {}
        self.rows = 0

    def add(
        self,
        block: Any,
        count: int,
        owners: Owners,
        constants: Sequence[int],
        codes: tuple[int, ...] = (),
        extras: Mapping[str, bytes] | None = None,
    ) -> None:
        """Append a block of ``count`` rows.

        Args:
            constants: what holds for the whole block, in the order of ``constants``.
            codes: of the words that the block's own indices mean; the indices have been looked at.
            extras: column to its bytes.

        Raises Malformed, appending nothing, when a column has another length.
        """
        if count > BLOCK_LIMIT:
            raise Malformed(f"a block of {count} rows: at most {BLOCK_LIMIT} are taken")
        extras = extras or {}
        values = self._fields(block)
        eights, small = values[: len(self._eights)], values[len(self._eights) :][: len(self._small)]
        lengths = [*map(len, eights), *map(len, extras.values())]
        varint_counts = [varint_count(one) for one in small]
        whole = lengths.count(count * 8), varint_counts.count(count)
        absent = (lengths.count(0), varint_counts.count(0)) if count else (0, 0)
        if whole[0] + absent[0] != len(lengths) or whole[1] + absent[1] != len(varint_counts):
            self._refuse(count, lengths, varint_counts, extras)
        if not count:
            return
        missing = (
            None if whole == (len(lengths), len(varint_counts)) else (*map(bool, lengths), *map(bool, varint_counts))
        )
        key = codes, tuple(extras), missing
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = _Shape()
        shape.blocks.append((*values, *extras.values()))
        shape.counts.append(owners.counts)
        shape.ranks.append(owners.ranks)
        shape.sizes.append(count)
        shape.constants.extend(constants)
        self.rows += count

    def _refuse(
        self, count: int, lengths: Sequence[int], varint_counts: Sequence[int], extras: Mapping[str, bytes]
    ) -> None:
        names = (*self._columns, *extras, *self._varints)
        found = (*(length / 8 for length in lengths), *varint_counts)
        name, length = next(one for one in zip(names, found, strict=True) if one[1] not in {0, count})
        raise Malformed(f"column {name} has {length:g} values in a block of {count}")

    def take(self) -> dict[str, Array]:
        """All rows as arrays, one a column and a constant, not to be written to; the builder is empty afterwards."""
        shapes, self._shapes, self.rows = self._shapes, {}, 0
        if not shapes:
            shapes = {((), (), None): _Shape()}
        tables = [self._arrays(codes, extras, shape) for (codes, extras, _), shape in shapes.items()]
        if len(tables) == 1:
            return tables[0]
        return {name: encoding.joined([table[name] for table in tables]) for name in tables[0]}

    def _arrays(self, codes: tuple[int, ...], extras: Sequence[str], shape: _Shape) -> dict[str, Array]:
        sizes = np.array(shape.sizes, dtype=np.int64)
        constants = np.array(shape.constants, dtype=np.int64).reshape(len(sizes), len(self._constants))
        total = int(sizes.sum())
        owners, counts = np.frombuffer(b"".join(shape.ranks), np.int32), varints(b"".join(shape.counts))
        table: dict[str, Array] = {"rank": np.repeat(owners, counts)}
        for index, (name, dtype) in enumerate(self._constants.items()):
            table[name] = encoding.spread(constants[:, index].astype(dtype), sizes)
        width = len(self._eights) + len(self._small) + bool(self._coded) + len(extras)
        joined = iter([b"".join(pieces) for pieces in zip(*shape.blocks, strict=True)] or [b""] * width)
        for name, (_, dtype, fill) in self._columns.items():
            table[name] = _array(np.frombuffer(next(joined), dtype), dtype, fill, total)
        for name, (_, read, dtype, fill) in self._varints.items():
            table[name] = _array(read(next(joined)), dtype, fill, total)
        if self._coded:
            table[self._coded[0]] = encoding.thinned(np.array(codes, dtype=np.int32)[varints(next(joined))])
        for name in extras:
            table[name] = _array(np.frombuffer(next(joined), np.int64), np.int64, self._extras[name], total)
        for name in self._extras.keys() - table.keys():
            table[name] = encoding.repeated(self._extras[name], total, np.int64)
        return table


@dataclass
class _Shape:
    """Blocks that have the same columns and the same words: of each block its columns."""

    blocks: list[tuple[bytes, ...]] = field(default_factory=list)
    counts: list[bytes] = field(default_factory=list)
    ranks: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)


def _array(values: Array, dtype: Any, fill: float, total: int) -> Array:
    """What was given, or *not measured*. A column of which every value is the same keeps none of the others' bytes."""
    return encoding.thinned(values.astype(dtype, copy=False)) if len(values) else encoding.repeated(fill, total, dtype)


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
        code = self._codes.get(word)
        if code is None:
            if self._limit is not None and len(self.words) >= self._limit and word != self.OTHER:
                return self.code(self.OTHER)
            code = self._codes[word] = len(self.words)
            self.words.append(word)
        return code

    def of(self, codes: Array) -> Array:
        """The words of ``codes``; rows share their texts, so that comparing where these lie tells them apart."""
        if encoding.is_constant(codes):
            return encoding.repeated(self.words[codes[0]], len(codes), np.str_)
        return np.array(self.words, dtype=object)[codes]


class Origin:
    """One schema of one node. There is one object of each, so that blocks are compared without reading them."""

    __slots__ = ("__weakref__", "key", "node", "schema")

    def __init__(self, node: str, schema: int) -> None:
        """Use :func:`origin`."""
        self.node, self.schema, self.key = node, schema, (node, schema)


_origins: WeakValueDictionary[tuple[str, int], Origin] = WeakValueDictionary()


def origin(node: str, schema: int) -> Origin:
    found = _origins.get((node, schema))
    if found is None:
        found = _origins[node, schema] = Origin(node, schema)
    return found


class MetricRows:
    """Samples of one schema of one node, kept as they came.

    ``last_ns`` is the job time of the newest; ``offset`` is what makes job times of the node's; ``ticks`` and ``size``
    are how many rows and values there are.
    """

    __slots__ = ("last_ns", "node_times", "offset", "origin", "raw")

    def __init__(self, origin: Origin, node_times: bytes, offset: int, raw: bytes, last_ns: int) -> None:
        self.origin, self.node_times, self.offset, self.raw, self.last_ns = origin, node_times, offset, raw, last_ns

    @classmethod
    def of(cls, node: str, schema: int, times: Array, values: Array) -> MetricRows:
        """From arrays: ``times`` (T,) job clock ns, ``values`` (T, S)."""
        packed = times.astype(np.int64).tobytes()
        return cls(origin(node, schema), packed, 0, values.astype(np.float64).tobytes(), first(packed[-8:]))

    @property
    def node(self) -> str:
        return self.origin.node

    @property
    def schema(self) -> int:
        return self.origin.schema

    @property
    def ticks(self) -> int:
        return len(self.node_times) // 8

    @property
    def size(self) -> int:
        return len(self.raw) // 8

    @property
    def bytes(self) -> int:
        return len(self.node_times) + len(self.raw)

    @property
    def times(self) -> Array:
        """(T,) job clock ns."""
        return eights(self.node_times) + self.offset

    @property
    def values(self) -> Array:
        """(T, S), not to be written to."""
        return eights(self.raw, np.float64).reshape(self.ticks, self.size // self.ticks)


#: No job has more ranks; a number above it is garbage that would cost memory.
RANK_LIMIT = 1 << 20
#: Characters of a name: what is longer is cut. A ring's names have 63.
NAME_LIMIT = 128
#: A tick of /proc/PID/stat, ns: USER_HZ is 100 on every Linux.
TICK_NS = 10_000_000

_I64, _I32, _U64, _F64 = np.int64, np.int32, np.uint64, np.float64
_UNKNOWN = (_I64, -1)
PHASE_COLUMNS = {name: f"{name}_ns" for name in PHASES}


def _steps_table() -> Builder:
    return Builder(
        {"kind": _I32, "offset": _I64},
        {name: (name, *_UNKNOWN) for name in ("step", "start_ns", "duration_ns", "work")},
        extras=dict.fromkeys(PHASE_COLUMNS.values(), -1),
    )


def _collectives_table() -> Builder:
    unknown = ("seq", "start_ns", "duration_ns", "bytes", "self_ns", "cpu_ns", "runqueue_ns", "enqueue_ns")
    return Builder(
        {"offset": _I64},
        {"comm": ("comm", _U64, 0), **{name: (name, *_UNKNOWN) for name in unknown}},
        {"flags": ("flags", varints, _I64, 0), "peer": ("peer", signed, _I32, -1)},
        {"step": -1},
        coded=("op", "op"),
    )


def _intervals_table() -> Builder:
    return Builder(
        {"offset": _I64},
        {
            "start_ns": ("start_ns", *_UNKNOWN),
            "duration_ns": ("duration_ns", *_UNKNOWN),
            "value": ("value", _F64, float("nan")),
        },
        coded=("name", "name"),
    )


@dataclass
class JobRows:
    """What arrived for one job since it was last taken."""

    steps: Builder = field(default_factory=_steps_table)
    collectives: Builder = field(default_factory=_collectives_table)
    intervals: Builder = field(default_factory=_intervals_table)
    in_flight: list[tuple[int, str, str, int, int, int, int, int, int]] = field(default_factory=list)
    rank_states: list[tuple[int, int, int, int, int, int, int, str]] = field(default_factory=list)
    ranks: list[tuple[Any, ...]] = field(default_factory=list)
    communicators: list[tuple[int, int, int, int, str]] = field(default_factory=list)
    clocks: list[tuple[str, str, int, int, int, int, int]] = field(default_factory=list)
    metrics: list[MetricRows] = field(default_factory=list)
    metric_bytes: int = 0
    heard: dict[str, int] = field(default_factory=dict)  # node to the job time of its newest sample
    in_order: bool = True  # no sample is older than what its node sent before
    stacks: list[tuple[int, int, str]] = field(default_factory=list)
    attachments: dict[str, list[bytes]] = field(default_factory=dict)  # by file, in parts
