"""From the chunks of a flush to the Arrow tables of its segments: nothing is done sample by sample, nor node by node.

Nodes of one kind send the same series, and most of them as many samples of each in the time of a flush. So what
arrives is a few dozen cubes, nodes by ticks by series, and long rows are these turned over: nodes by series by ticks.

Coarser levels, for long ranges, have min, max, sum, count and last value of each series and interval. A level's segment
is made with one segment of ``metrics`` and has its name: what has a counterpart is in the level, what has none is still
to be taken from the samples. So nothing is counted twice, and a level is complete at any time.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from hindmost_judge.encoding import chosen, is_constant, joined
from hindmost_judge.model import Table

from hindmost_collector.ingest.chunk import CODED, Chunk
from hindmost_collector.ingest.definitions import Definitions, Schema
from hindmost_collector.ingest.row_builder import Array, MetricRows, Words
from hindmost_collector.store import schema

Rows = Mapping[tuple[str, str], Iterable[pa.Table]]
Files = Mapping[tuple[str, str], bytes]
Clock = dict[str, Any]


#: Samples that are long rows in memory at one time, in ten times the space of the blocks that they come from. A piece
#: costs some milliseconds, however small it is.
PIECE_SAMPLES = 1 << 18
#: Rows of ranks that are sorted and written at one time: a smaller piece takes longer, a larger one more memory.
PIECE_ROWS = 1 << 17
_HEAD = attrgetter("head")


class _Cube(NamedTuple):
    """Samples of nodes that send the same series, ``ticks`` of each: for each node its blocks, one after the other."""

    nodes: Sequence[str]
    schemas: Sequence[Schema]
    ticks: int
    raw: Sequence[bytes]
    node_times: Sequence[bytes]
    offsets: Array

    @property
    def shape(self) -> tuple[int, int, int]:
        """Nodes, series, ticks."""
        return len(self.nodes), self.schemas[0].head.width, self.ticks

    def values(self, out: Array) -> None:
        """Write all values, series by series."""
        nodes, width, ticks = self.shape
        places = self.schemas[0].head.order[:, None] + np.arange(ticks) * width
        values = np.frombuffer(b"".join(self.raw), np.float64)
        np.take(values.reshape(nodes, -1), places.ravel(), axis=1, out=out.reshape(nodes, -1), mode="clip")

    def times(self) -> Array:
        """(N, 1, T) job clock ns."""
        times, offsets = np.frombuffer(b"".join(self.node_times), np.int64), self.offsets
        if len(times) != len(offsets):
            each = np.fromiter(map(len, self.node_times), np.int64, len(self.node_times)) // 8
            offsets = np.repeat(offsets, each)
        unix_ns: Array = times + offsets
        return unix_ns.reshape(-1, 1, self.ticks)


class _Texts:
    """Texts of a piece, each once, and which one a row has."""

    def __init__(self, rows: int) -> None:
        self._places: dict[str, int] = {}
        self._coded: dict[tuple[str, ...], list[int]] = {}
        self.codes = np.empty(rows, np.int32)

    def of(self, texts: tuple[str, ...]) -> list[int]:
        """The codes of several texts."""
        found = self._coded.get(texts)
        if found is None:
            places = self._places
            found = self._coded[texts] = [places.setdefault(text, len(places)) for text in texts]
        return found

    def column(self, keep: Array | slice) -> pa.Array:
        """The rows to keep, as codes of a dictionary."""
        words = pa.array(list(self._places), pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(self.codes[keep]), words, safe=False)


def metrics_tables(samples: Sequence[MetricRows], definitions: Definitions) -> Iterator[pa.Table]:
    """Samples as long rows, piece by piece: nodes in their order, a series of a node by time and in one piece."""
    for _, cubes in itertools.groupby(_cubes(samples, definitions), itemgetter(0)):
        yield _long_rows([cube for _, cube in cubes])


def _cubes(samples: Sequence[MetricRows], definitions: Definitions) -> Iterator[tuple[int, _Cube]]:
    """Each with the number of its piece, in their order."""
    if not samples:
        return
    raw, node_times = [rows.raw for rows in samples], [rows.node_times for rows in samples]
    offset = np.array([rows.offset for rows in samples], np.int64)
    origins, of = _numbered(rows.origin for rows in samples)
    names, schemas = [origin.node for origin in origins], [definitions.schemas[origin.schema] for origin in origins]
    heads, head = _numbered(map(_HEAD, schemas))
    size = np.bincount(of, np.fromiter(map(len, raw), np.int64, len(raw)) // 8).astype(np.int64)
    ticks = size // np.array([max(one.width, 1) for one in heads])[head]
    piece, order = _order(names, head, ticks, size)
    place = np.argsort(order)[of]
    blocks, ends = np.argsort(place, kind="stable"), np.cumsum(np.bincount(place))
    changes = np.any([np.diff(key[order]) for key in (piece, head, ticks)], axis=0)
    for begin, end in itertools.pairwise([0, *(np.flatnonzero(changes) + 1).tolist(), len(order)]):
        first, members = order[begin], order[begin:end].tolist()
        at = blocks[ends[begin - 1] if begin else 0 : ends[end - 1]]
        whose = [names[member] for member in members], [schemas[member] for member in members], int(ticks[first])
        what = [raw[one] for one in at.tolist()], [node_times[one] for one in at.tolist()], offset[at]
        if ticks[first]:
            yield int(piece[first]), _Cube(*whose, *what)


def _order(names: Sequence[str], head: Array, ticks: Array, size: Array) -> tuple[Array, Array]:
    """``(piece of each origin, what sorts origins into pieces, and those that make one cube together)``."""
    nodes, node = _numbered(names)
    node = np.argsort(np.argsort(np.array(nodes, object)))[node]
    by_node = np.lexsort((head, node))
    piece = np.empty_like(size)
    piece[by_node] = (np.cumsum(size[by_node]) - size[by_node]) // PIECE_SAMPLES
    return piece, np.lexsort((node, ticks, head, piece))


def _numbered(things: Iterable[Any]) -> tuple[list[Any], Array]:
    """The different ones, and which of them each is."""
    places: dict[Any, int] = {}
    number = np.array([places.setdefault(thing, len(places)) for thing in things], np.int64)
    return list(places), number


def _long_rows(cubes: Sequence[_Cube]) -> pa.Table:
    rows = sum(math.prod(cube.shape) for cube in cubes)
    value, time_ns = np.empty(rows), np.empty(rows, np.int64)
    node, name, labels = _Texts(rows), _Texts(rows), _Texts(rows)
    end = 0
    for cube in cubes:
        begin, end = end, end + math.prod(cube.shape)
        head, shape = cube.schemas[0].head, cube.shape
        cube.values(value[begin:end])
        time_ns[begin:end].reshape(shape)[...] = cube.times()
        node.codes[begin:end].reshape(len(cube.nodes), -1)[...] = np.array(node.of(tuple(cube.nodes)))[:, None]
        name.codes[begin:end].reshape(shape)[...] = np.array(name.of(head.names))[head.order, None]
        words = np.array([labels.of(one.words) for one in cube.schemas])
        labels.codes[begin:end].reshape(shape)[...] = words[:, head.word[head.order], None]
    present = ~np.isnan(value)  # a missing sample is a missing row
    keep = slice(None) if present.all() else present
    columns = [one.column(keep) for one in (node, name, labels)]
    return pa.Table.from_arrays(
        [*columns, pa.array(time_ns[keep]), pa.array(value[keep])], schema=schema.arrow_schema("metrics")
    )


def arrow_tables(
    chunks: Mapping[str, Sequence[Chunk]], words: Words, definitions: Definitions
) -> dict[tuple[str, str], Iterable[pa.Table]]:
    """``(job, table)`` to its rows in pieces; tables without rows are left out."""
    made: dict[tuple[str, str], Iterable[pa.Table]] = {}
    for job, parts in chunks.items():
        tables: dict[str, list[Table]] = defaultdict(list)
        for part in parts:
            for name, table in (*part.coded.items(), *part.plain.items()):
                tables[name].append(table)
        for name, pieces in tables.items():
            made[job, name] = _rows(name, pieces, words)
        samples = [metric for part in parts for metric in part.metrics]
        if samples:
            made[job, "metrics"] = metrics_tables(samples, definitions)
    return made


def _rows(name: str, parts: Sequence[Table], words: Words) -> Iterator[pa.Table]:
    """All rows in the stored order, made when asked for, some ranks' after the other: there is no memory for a copy."""
    coded, target, keys = CODED.get(name), schema.arrow_schema(name), schema.ORDER.get(name, ())
    for pieces in _by_rank(parts) if keys else (parts,):
        order = in_order(*(_joined(pieces, key) for key in keys)) if keys else None
        arrays = []
        for field in target:
            column = _joined(pieces, field.name)
            column = column if order is None or is_constant(column) else column[order]
            arrays.append(_words(column, words) if field.name == coded else _plain(column, field.type))
        yield pa.Table.from_arrays(arrays, schema=target)


def _by_rank(parts: Sequence[Table]) -> Iterator[Sequence[Table]]:
    """Tables with the rows of the first ranks, then of the next ones: about ``PIECE_ROWS`` each time."""
    count = sum(len(part["rank"]) for part in parts)
    pieces = round(count / PIECE_ROWS)
    if pieces < 2:
        yield parts
        return
    ranks = max(int(part["rank"].max(initial=0)) for part in parts) + 1
    each = sum(np.bincount(part["rank"], minlength=ranks) for part in parts)
    piece_of = (np.cumsum(each) - each) * pieces // count
    found = [(part, piece_of[part["rank"]]) for part in parts]
    for piece in np.unique(piece_of[each > 0]).tolist():
        chosen_rows = ((part, of == piece) for part, of in found)
        yield [chosen(part, mask) for part, mask in chosen_rows if mask.any()]


def in_order(owner: Array, when: Array) -> Array:
    """What sorts rows by owner, and those of one owner by when.

    An agent sends an owner's rows together and in order, so mostly it is enough to sort such runs: a tenth of the rows
    or less, and moving them is most of the work.
    """
    if not len(owner):
        return np.empty(0, np.intp)
    begins = np.flatnonzero(np.concatenate(([True], (owner[1:] != owner[:-1]) | (when[1:] < when[:-1]))))
    ends = np.append(begins[1:], len(owner))
    runs = np.lexsort((when[begins], owner[begins]))
    begins, ends = begins[runs], ends[runs]
    if ((owner[begins[1:]] == owner[begins[:-1]]) & (when[begins[1:]] < when[ends[:-1] - 1])).any():
        whole: Array = np.lexsort((when, owner))
        return whole
    lengths = ends - begins
    order: Array = np.arange(len(owner)) + np.repeat(begins - (np.cumsum(lengths) - lengths), lengths)
    return order


def _joined(parts: Sequence[Table], name: str) -> Array:
    return joined([part[name] for part in parts])


def _words(codes: Array, words: Words) -> pa.Array:
    """Codes as a dictionary of the words that occur; nothing is compared as text."""
    if is_constant(codes):
        return _dictionary(np.zeros(len(codes), np.int32), [words.words[codes[0]]])
    used, indices = np.unique(codes, return_inverse=True)
    return _dictionary(indices, [words.words[code] for code in used.tolist()])


def _dictionary(indices: Array, values: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(values, pa.string()))


def _plain(values: Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values.tolist(), pa.string()).dictionary_encode()
    # pa.repeat takes ten times as long, and half of all columns are constant
    return pa.array(np.full(len(values), values[0]) if is_constant(values) else values, kind)


_SERIES = ("node", "name", "labels")


def levels(samples: pa.Table) -> dict[str, pa.Table]:
    """``{level: its rows}`` of samples that are sorted by series and then time, words as dictionaries."""
    return {name: _table(columns, schema.arrow_schema(name)) for name, columns in reduced(samples).items()}


def _table(columns: dict[str, Any], target: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays([pa.array(columns[field.name], field.type) for field in target], schema=target)


def reduced(samples: pa.Table) -> dict[str, dict[str, Any]]:
    """The same as columns, and ``last_ns``: when each interval's last sample was taken."""
    codes = [_codes(samples.column(name)) for name in _SERIES]
    times, values = samples.column("time_ns").to_numpy(), samples.column("value").to_numpy()
    finite = np.isfinite(values)
    if not finite.all():
        codes, times, values = [column[finite] for column in codes], times[finite], values[finite]
    words = [samples.column(name).chunk(0).dictionary for name in _SERIES]
    return {name: _level(width, codes, words, times, values) for name, width in schema.LEVELS.items()}


def _codes(column: pa.ChunkedArray) -> Array:
    indices: Array = column.chunk(0).indices.to_numpy(zero_copy_only=False)
    return indices


def _level(
    width: int, codes: Sequence[Array], words: Sequence[pa.Array], times: Array, values: Array
) -> dict[str, Any]:
    starts = times - times % width
    first = np.ones(len(times), dtype=bool)
    if len(times):
        first[1:] = starts[1:] != starts[:-1]
        for column in codes:
            first[1:] |= column[1:] != column[:-1]
    at = np.flatnonzero(first)
    count = np.diff(np.append(at, len(times)))
    columns: dict[str, Any] = {
        series: pa.DictionaryArray.from_arrays(pa.array(column[at], pa.int32()), words_of)
        for series, column, words_of in zip(_SERIES, codes, words, strict=True)
    }
    last = at + count - 1
    columns |= {"time_ns": starts[at], "count": count, "last": values[last], "last_ns": times[last]}
    for statistic, reduce in (("min", np.minimum), ("max", np.maximum), ("sum", np.add)):
        columns[statistic] = reduce.reduceat(values, at) if len(at) else values
    return columns
