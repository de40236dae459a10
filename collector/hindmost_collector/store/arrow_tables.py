"""From the chunks of a flush to the Arrow tables of its segments: nothing is done sample by sample, nor node by node.

What arrives are tens of thousands of blocks, ticks by series, and long rows are these turned over: series by ticks.

Coarser levels, for long ranges, have min, max, sum, count and last value of each series and interval. A level's segment
is made with one segment of ``metrics`` and has its name: what has a counterpart is in the level, what has none is still
to be taken from the samples. So nothing is counted twice, and a level is complete at any time.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
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
#: Runs of so many rows are copied whole: each costs as much as moving so many rows one by one.
LONG_RUN = 128


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
    for column_of in _pieces(parts, keys) if keys else (partial(_joined, parts),):
        columns = ((field, column_of(field.name)) for field in target)
        arrays = [_words(one, words) if field.name == coded else _plain(one, field.type) for field, one in columns]
        yield pa.Table.from_arrays(arrays, schema=target)


def _pieces(parts: Sequence[Table], keys: Sequence[str]) -> Iterator[Callable[[str], Array]]:
    """What gives each column of a piece of the rows, in order: by runs as they came or, if short, by rows."""
    runs = _long_runs(parts, *keys)
    if runs is None:
        for pieces in _by_rank(parts):
            yield partial(_gathered, pieces, in_order(*(_joined(pieces, key) for key in keys)))
        return
    ends = np.cumsum(runs[:, 2] - runs[:, 1])
    cuts = np.searchsorted(ends, np.arange(PIECE_ROWS, ends[-1] - PIECE_ROWS // 2, PIECE_ROWS))
    for piece in np.split(runs, cuts):
        if len(piece):  # a run may be longer than one
            yield partial(_sliced, parts, piece.tolist())


def _sliced(parts: Sequence[Table], runs: Sequence[Sequence[int]], name: str) -> Array:
    return joined([parts[part][name][begin:end] for part, begin, end in runs])


def _gathered(parts: Sequence[Table], order: Array, name: str) -> Array:
    column = _joined(parts, name)
    return column if is_constant(column) else column[order]


def _long_runs(parts: Sequence[Table], owner: str, when: str) -> Array | None:
    """The runs in order [N, 3]: of which table, from where to where. None where it takes less to move rows one by one,
    or where rows of a run belong between those of another."""
    found = [_runs(part[owner], part[when]) for part in parts]
    begin, end = map(np.concatenate, zip(*found, strict=True))
    if (end - begin).sum() <= LONG_RUN * len(begin):
        return None
    keys = [(one[owner][at], one[when][at], one[when][to - 1]) for one, (at, to) in zip(parts, found, strict=True)]
    order = _disjoint(*map(np.concatenate, zip(*keys, strict=True)))
    part = np.repeat(np.arange(len(parts)), [len(at) for at, _ in found])
    return None if order is None else np.stack((part, begin, end), axis=1)[order]


def _runs(owner: Array, when: Array) -> tuple[Array, Array]:
    """Where rows of one owner that are in order begin and end."""
    new = (owner[1:] != owner[:-1]) | (when[1:] < when[:-1])
    begins = np.flatnonzero(np.concatenate((np.ones(len(owner[:1]), bool), new)))
    return begins, np.append(begins[1:], len(owner))[: len(begins)]


def _disjoint(owner: Array, first: Array, last: Array) -> Array | None:
    """What sorts runs by owner and time; None where one begins before another of its owner has ended."""
    order: Array = np.lexsort((first, owner))
    owner, first, last = owner[order], first[order], last[order]
    return None if ((owner[1:] == owner[:-1]) & (first[1:] < last[:-1])).any() else order


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
    begins, ends = _runs(owner, when)
    runs = _disjoint(owner[begins], when[begins], when[ends - 1])
    if runs is None:
        whole: Array = np.lexsort((when, owner))
        return whole
    begins, ends = begins[runs], ends[runs]
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
        words, codes = _numbered(values.tolist())  # Arrow's own coding loads its compute functions: 40 ms
        return _dictionary(codes, words)
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
