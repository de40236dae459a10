"""From the chunks of a flush to the Arrow tables of its segments: nothing is done sample by sample, nor node by node.

What arrives are tens of thousands of blocks, ticks by series, and long rows are these turned over: series by ticks.

Coarser levels, for long ranges, have min, max, sum, count and last value of each series and interval. A level's segment
is made with one segment of ``metrics`` and has its name: what has a counterpart is in the level, what has none is still
to be taken from the samples. So nothing is counted twice, and a level is complete at any time.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

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


#: Samples that are long rows in memory at one time, in ten times the space of the blocks that they come from.
PIECE_SAMPLES = 1 << 17
#: Rows of ranks that are sorted and written at one time: a smaller piece takes longer, a larger one more memory.
PIECE_ROWS = 1 << 17


def metrics_tables(samples: Sequence[MetricRows], definitions: Definitions) -> Iterator[pa.Table]:
    """Samples as long rows, piece by piece, each of some nodes in their order; a series by time and in one piece."""
    if not samples:
        return
    origins, of = _numbered(rows.origin for rows in samples)
    schemas, kind = _numbered(definitions.schemas[origin.schema] for origin in origins)
    head = _numbered(one.head for one in schemas)[1][kind]
    nodes = sorted({origin.node for origin in origins})
    numbers = {name: number for number, name in enumerate(nodes)}
    node = np.array([numbers[origin.node] for origin in origins])
    size = np.bincount(of, np.array([len(rows.raw) for rows in samples]))
    piece, by_node = np.empty(len(origins), np.int64), np.argsort(node, kind="stable")
    piece[by_node] = _begins(size[by_node]) // (8 * PIECE_SAMPLES)
    order = np.lexsort((node, head, piece))  # most nodes send the same: what is alike compresses best
    place = np.argsort(order)[of]
    blocks, ends = np.argsort(place, kind="stable"), np.append(0, np.cumsum(np.bincount(place)))
    for begin, end in itertools.pairwise([0, *np.cumsum(np.unique(piece, return_counts=True)[1]).tolist()]):
        used, number = np.unique(kind[order[begin:end]], return_inverse=True)
        yield _long_rows(
            [samples[one] for one in blocks[ends[begin] : ends[end]].tolist()],
            np.diff(ends[begin : end + 1]),
            [schemas[one] for one in used.tolist()],
            number,
        )


def _numbered(things: Iterable[Any]) -> tuple[list[Any], Array]:
    """The different ones, and which of them each is."""
    places: dict[Any, int] = {}
    number = np.array([places.setdefault(thing, len(places)) for thing in things], np.int64)
    return list(places), number


def _begins(lengths: Array) -> Array:
    """Where each begins of several that lie one after the other."""
    begins: Array = np.cumsum(lengths) - lengths
    return begins


def _long_rows(blocks: Sequence[MetricRows], each: Array, schemas: Sequence[Schema], kind: Array) -> pa.Table:
    """Blocks in the order of their origins, ``each`` of which has so many, and one of the schemas, turned over.

    A *run* is the samples of one series. What belongs to a head, an origin or a run is looked up for each of its
    samples: nothing is done block by block.
    """
    values = np.frombuffer(b"".join([rows.raw for rows in blocks]), np.float64)
    times = np.frombuffer(b"".join([rows.node_times for rows in blocks]), np.int64)
    ticks = np.array([len(rows.node_times) for rows in blocks]) // 8
    times = times + np.repeat(np.array([rows.offset for rows in blocks], np.int64), ticks)
    ticks = np.add.reduceat(ticks, _begins(each))
    heads, head = _numbered(one.head for one in schemas)
    widths, head = np.array([one.width for one in heads]), head[kind]
    names, name = _numbered(one.names[place] for one in heads for place in one.order.tolist())
    nodes, node = _numbered(blocks[place].node for place in _begins(each).tolist())
    labels, label = _numbered(word for one in schemas for word in one.words)
    words = _begins(np.array([len(one.words) for one in schemas]))[kind]
    order = np.concatenate([one.order for one in heads])
    word = np.concatenate([one.word[one.order] for one in heads])
    width = widths[head]
    of = np.repeat(np.arange(len(kind)), width)
    series = np.arange(len(of)) + (_begins(widths)[head] - _begins(width))[of]
    first, row, length = _begins(ticks * width)[of] + order[series], _begins(ticks)[of], ticks[of]
    run = np.repeat(np.arange(len(of)), length)
    tick = np.arange(len(values)) - _begins(length)[run]
    value = values[first[run] + tick * width[of][run]]
    present = ~np.isnan(value)
    if not present.all():  # a missing sample is a missing row
        run, tick, value = run[present], tick[present], value[present]
    texts = (node[of], nodes), (name[series], names), (label[words[of] + word[series]], labels)
    columns = [_dictionary(number.astype(np.int32)[run], found) for number, found in texts]
    return pa.Table.from_arrays(
        [*columns, pa.array(times[row[run] + tick]), pa.array(value)], schema=schema.arrow_schema("metrics")
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
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(values, pa.string()), safe=False)


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
