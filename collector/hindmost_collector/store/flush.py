"""From the chunks of a flush to the Arrow tables of its segments."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hindmost_collector.chunk import CODED, concatenated
from hindmost_collector.columns import Words
from hindmost_collector.store import schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hindmost_collector.chunk import Chunk
    from hindmost_collector.columns import Array
    from hindmost_collector.decode import MetricRows
    from hindmost_collector.definitions import Definitions
    from hindmost_collector.model import Table

    #: Of ``(job, table)``, in pieces.
    Rows = Mapping[tuple[str, str], Iterable[pa.Table]]
    #: Of ``(job, name)``.
    Files = Mapping[tuple[str, str], bytes]
    #: The job clock, as the collector that made it wants it back.
    Clock = dict[str, Any]


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
            made[job, name] = [_arrow(name, concatenated(name, pieces), words)]
        samples = [one for part in parts for one in part.metrics]
        if samples:
            made[job, "metrics"] = metrics_tables(samples, definitions)
    return made


def _arrow(name: str, columns: Table, words: Words) -> pa.Table:
    coded, target = CODED.get(name), schema.arrow_schema(name)
    arrays = [
        _words(columns[field.name], words) if field.name == coded else _plain(columns[field.name], field.type)
        for field in target
    ]
    data = pa.Table.from_arrays(arrays, schema=target)
    order = schema.ORDER.get(name)
    return data.take(_sorted(columns, order)) if order else data


def _sorted(columns: Table, order: Sequence[str]) -> Array:
    return np.lexsort([columns[name] for name in reversed(order)])


def _words(codes: Array, words: Words) -> pa.Array:
    """Codes as a dictionary of the words that occur; nothing is compared as text."""
    used, indices = np.unique(codes, return_inverse=True)
    return _dictionary(indices, [words.words[code] for code in used.tolist()])


def _dictionary(indices: Array, values: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(values, pa.string()))


def _plain(values: Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values.tolist(), pa.string()).dictionary_encode()
    return pa.array(values, kind)


#: Samples that are long rows in memory at one time; they take ten times the space of the matrices they come from.
_PIECE = 1 << 17

Groups = dict[tuple[str, int], "list[MetricRows]"]


def metrics_tables(samples: Sequence[MetricRows], definitions: Definitions) -> Iterator[pa.Table]:
    """Samples as long rows, in the stored order: node by node, series after series, each by time; piece by piece."""
    groups: Groups = defaultdict(list)
    for one in samples:
        groups[one.node, one.schema].append(one)
    piece: Groups = {}
    held = 0
    for key in sorted(groups):
        piece[key] = groups.pop(key)
        held += sum(block.values.size for block in piece[key])
        if held >= _PIECE:
            yield _long_rows(piece, definitions)
            piece, held = {}, 0
    if piece:
        yield _long_rows(piece, definitions)


def _long_rows(groups: Groups, definitions: Definitions) -> pa.Table:
    nodes, names, labels = Words(), Words(), Words()
    columns: dict[str, list[Array]] = {name: [] for name in ("node", "name", "labels", "time_ns", "value")}
    layout: dict[int, tuple[Array, Array, Array]] = {}
    for node, ref in sorted(groups):
        blocks = groups[node, ref]
        if ref not in layout:
            layout[ref] = _layout(definitions, ref, names, labels)
        order, name_codes, label_codes = layout[ref]
        times = np.concatenate([block.times for block in blocks])
        values = np.concatenate([block.values for block in blocks])[:, order]
        ticks, width = values.shape
        columns["node"].append(np.full(ticks * width, nodes.code(node), dtype=np.int32))
        columns["name"].append(np.repeat(name_codes, ticks))
        columns["labels"].append(np.repeat(label_codes, ticks))
        columns["time_ns"].append(np.tile(times, width))
        columns["value"].append(values.T.ravel())
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    keep = ~np.isnan(joined["value"])  # a missing sample is an absent row
    if not keep.all():
        joined = {name: column[keep] for name, column in joined.items()}
    return pa.Table.from_arrays(
        [
            _dictionary(joined["node"], nodes.words),
            _dictionary(joined["name"], names.words),
            _dictionary(joined["labels"], labels.words),
            pa.array(joined["time_ns"]),
            pa.array(joined["value"]),
        ],
        schema=schema.arrow_schema("metrics"),
    )


def _codes(words: Words, of: Iterable[str]) -> Array:
    return np.array([words.code(word) for word in of], dtype=np.int32)


def _layout(definitions: Definitions, ref: int, names: Words, labels: Words) -> tuple[Array, Array, Array]:
    """``(order of the series by name and labels, their name codes, their label codes)``."""
    series = definitions.schemas[ref].series
    order = sorted(range(len(series)), key=lambda index: (series[index].name, series[index].labels))
    return (
        np.array(order, dtype=np.int64),
        _codes(names, (series[index].name for index in order)),
        _codes(labels, (series[index].labels for index in order)),
    )
