"""From blocks of node metrics to long rows, many nodes at once: nothing is done sample by sample."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from hindmost_collector.store import schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hindmost_collector.columns import Array
    from hindmost_collector.definitions import Definitions, Schema
    from hindmost_collector.metric_rows import MetricRows

#: Samples that are long rows in memory at one time; they take ten times the space of the blocks they come from.
_PIECE = 1 << 17
_ORIGIN, _KEY, _RAW = attrgetter("origin"), attrgetter("key"), attrgetter("raw")


class _Coded(NamedTuple):
    """Texts, each once, and of each series which one it has."""

    codes: Array
    words: Sequence[str]


class _Piece(NamedTuple):
    """Samples in the order of arrival, group by group: those of one schema of one node."""

    nodes: list[str]
    schemas: list[Schema]
    counts: Array
    blocks: list[MetricRows]


def _coded(words: Iterable[str]) -> tuple[Array, list[str]]:
    """Which of the different words each is, and those."""
    places: dict[str, int] = {}
    return np.array([places.setdefault(word, len(places)) for word in words], np.int32), list(places)


def metrics_tables(samples: Sequence[MetricRows], definitions: Definitions) -> Iterator[pa.Table]:
    """Samples as long rows, in the stored order: node by node, series after series, each by time; piece by piece."""
    origins = sorted(set(map(_ORIGIN, samples)), key=_KEY)
    numbers = {origin: number for number, origin in enumerate(origins)}
    number = np.fromiter(map(numbers.__getitem__, map(_ORIGIN, samples)), np.int32, len(samples))
    order = np.argsort(number, kind="stable")
    counts = np.bincount(number, minlength=len(origins))
    blocks = np.cumsum(counts)
    held = np.cumsum(np.fromiter(map(len, map(_RAW, samples)), np.int64, len(samples))[order])[blocks - 1] // 8
    begin = 0
    while begin < len(origins):
        before, first = (held[begin - 1], blocks[begin - 1]) if begin else (0, 0)
        end = min(int(np.searchsorted(held, before + _PIECE)) + 1, len(origins))
        yield _long_rows(
            _Piece(
                [one.node for one in origins[begin:end]],
                [definitions.schemas[one.schema] for one in origins[begin:end]],
                counts[begin:end],
                [samples[place] for place in order[first : blocks[end - 1]].tolist()],
            )
        )
        begin = end


def _long_rows(piece: _Piece) -> pa.Table:
    """Rows are gathered by index: each series has a first value and time, and its next values are a width apart."""
    values = np.frombuffer(b"".join([block.raw for block in piece.blocks]), np.float64)
    node_times = [block.node_times for block in piece.blocks]
    each = np.array(list(map(len, node_times)), np.int32) // 8
    times = np.frombuffer(b"".join(node_times), np.int64)
    times = times + np.repeat(np.array([block.offset for block in piece.blocks], np.int64), each)
    ticks = np.add.reduceat(each, _begins(piece.counts))
    width = np.array([schema.width for schema in piece.schemas], np.int32)
    order = np.concatenate([schema.order for schema in piece.schemas])
    length = np.repeat(ticks, width)
    tick = np.arange(len(values), dtype=np.int32) - np.repeat(_begins(length), length)
    stride = np.repeat(np.repeat(width, width), length)
    value = values[np.repeat(np.repeat(_begins(width * ticks), width) + order, length) + tick * stride]
    time_ns = times[np.repeat(np.repeat(_begins(ticks), width), length) + tick]
    texts = _nodes(piece, width), _names(piece, width, order), _labels(piece, width, order)
    codes = [np.repeat(one.codes, length) for one in texts]
    keep = ~np.isnan(value)  # a missing sample is an absent row
    if not keep.all():
        codes, time_ns, value = [one[keep] for one in codes], time_ns[keep], value[keep]
    arrays = [_dictionary(rows, one.words) for rows, one in zip(codes, texts, strict=True)]
    return pa.Table.from_arrays([*arrays, pa.array(time_ns), pa.array(value)], schema=schema.arrow_schema("metrics"))


def _begins(lengths: Array) -> Array:
    """Where each of consecutive pieces begins."""
    return np.cumsum(lengths, dtype=np.int32) - lengths


def _dictionary(codes: Array, words: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(words, pa.string()))


def _nodes(piece: _Piece, width: Array) -> _Coded:
    codes, words = _coded(piece.nodes)
    return _Coded(np.repeat(codes, width), words)


def _names(piece: _Piece, width: Array, order: Array) -> _Coded:
    """Names are looked up once for all schemas that have the same."""
    return _shared([schema.head.names for schema in piece.schemas], width, order)


def _labels(piece: _Piece, width: Array, order: Array) -> _Coded:
    """So are labels: all of a node's GPUs, and its ranks, have the same in several schemas."""
    word = np.concatenate([schema.word for schema in piece.schemas])
    return _shared([schema.words for schema in piece.schemas], width, word[np.repeat(_begins(width), width) + order])


def _shared(texts: Sequence[tuple[str, ...]], width: Array, place: Array) -> _Coded:
    """Of groups with these texts each and so many series, of which each has the text at its place: which that is."""
    different = dict.fromkeys(texts)
    codes, words = _coded(text for one in different for text in one)
    begins = dict(zip(different, _begins(np.array(list(map(len, different)))).tolist(), strict=True))
    begin = np.array([begins[one] for one in texts], np.int32)
    return _Coded(codes[np.repeat(begin, width) + place], words)
