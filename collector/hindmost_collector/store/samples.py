"""From blocks of node metrics to long rows, many nodes at once: nothing is done sample by sample."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from hindmost_collector.store import schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hindmost_collector.columns import Array
    from hindmost_collector.decode import MetricRows
    from hindmost_collector.definitions import Definitions, Schema

#: Samples that are long rows in memory at one time; they take ten times the space of the blocks they come from.
_PIECE = 1 << 17


class _Group(NamedTuple):
    """Samples of one schema of one node, in the order of arrival."""

    node: str
    schema: Schema
    blocks: list[MetricRows]


class _Coded(NamedTuple):
    """Texts, each once, and of each series which one it has."""

    codes: Array
    words: Sequence[str]


def _coded(words: Iterable[str]) -> tuple[Array, list[str]]:
    """Which of the different words each is, and those."""
    places: dict[str, int] = {}
    return np.array([places.setdefault(word, len(places)) for word in words], np.int32), list(places)


def metrics_tables(samples: Sequence[MetricRows], definitions: Definitions) -> Iterator[pa.Table]:
    """Samples as long rows, in the stored order: node by node, series after series, each by time; piece by piece."""
    groups: dict[tuple[str, int], list[MetricRows]] = defaultdict(list)
    for one in samples:
        groups[one.node, one.schema].append(one)
    piece: list[_Group] = []
    held = 0
    for node, ref in sorted(groups):
        blocks = groups.pop((node, ref))
        piece.append(_Group(node, definitions.schemas[ref], blocks))
        held += sum([block.size for block in blocks])
        if held >= _PIECE:
            yield _long_rows(piece)
            piece, held = [], 0
    if piece:
        yield _long_rows(piece)


def _long_rows(groups: Sequence[_Group]) -> pa.Table:
    """Rows are gathered by index: each series has a first value and time, and its next values are a width apart."""
    blocks = [block for group in groups for block in group.blocks]
    values = np.frombuffer(b"".join([block.raw for block in blocks]), np.float64)
    times = np.frombuffer(b"".join([block.node_times for block in blocks]), np.int64)
    times = times + np.repeat([block.offset for block in blocks], [block.ticks for block in blocks])
    ticks = np.array([sum([block.ticks for block in group.blocks]) for group in groups], np.int32)
    width = np.array([group.schema.width for group in groups], np.int32)
    order = np.concatenate([group.schema.order for group in groups])
    length = np.repeat(ticks, width)
    tick = np.arange(len(values), dtype=np.int32) - np.repeat(_begins(length), length)
    stride = np.repeat(np.repeat(width, width), length)
    value = values[np.repeat(np.repeat(_begins(width * ticks), width) + order, length) + tick * stride]
    time_ns = times[np.repeat(np.repeat(_begins(ticks), width), length) + tick]
    texts = _nodes(groups, width), _names(groups, width, order), _labels(groups, width, order)
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


def _nodes(groups: Sequence[_Group], width: Array) -> _Coded:
    codes, words = _coded(group.node for group in groups)
    return _Coded(np.repeat(codes, width), words)


def _names(groups: Sequence[_Group], width: Array, order: Array) -> _Coded:
    """Names are looked up once for all schemas that have the same."""
    heads = {id(group.schema.head): group.schema.head for group in groups}
    codes, words = _coded(name for head in heads.values() for name in head.names)
    begins = dict(zip(heads, _begins(np.array([len(one.names) for one in heads.values()])).tolist(), strict=True))
    begin = np.array([begins[id(group.schema.head)] for group in groups])
    return _Coded(codes[np.repeat(begin, width) + order], words)


def _labels(groups: Sequence[_Group], width: Array, order: Array) -> _Coded:
    codes, words = _coded(word for group in groups for word in group.schema.words)
    begin = _begins(np.array([len(group.schema.words) for group in groups]))
    word = np.concatenate([group.schema.word for group in groups]) + np.repeat(begin, width)
    return _Coded(codes[word][np.repeat(_begins(width), width) + order], words)
