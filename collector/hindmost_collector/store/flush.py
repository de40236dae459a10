"""From the chunks of a flush to the Arrow tables of its segments."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from hindmost_judge.encoding import is_constant, joined

from hindmost_collector.ingest.chunk import CODED
from hindmost_collector.store import schema
from hindmost_collector.store.samples import metrics_tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hindmost_judge.model import Table

    from hindmost_collector.ingest.chunk import Chunk
    from hindmost_collector.ingest.columns import Array, Words
    from hindmost_collector.ingest.definitions import Definitions

    #: By ``(job, table)``, in pieces.
    Rows = Mapping[tuple[str, str], Iterable[pa.Table]]
    #: By ``(job, name)``.
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
            made[job, name] = _rows(name, pieces, words)
        samples = [one for part in parts for one in part.metrics]
        if samples:
            made[job, "metrics"] = metrics_tables(samples, definitions)
    return made


def _rows(name: str, parts: Sequence[Table], words: Words) -> Iterator[pa.Table]:
    """All rows in the stored order, made when asked for, one column after the other: there is memory for one copy."""
    coded, target = CODED.get(name), schema.arrow_schema(name)
    keys = [_joined(parts, key) for key in schema.ORDER.get(name, ())]
    order = in_order(*keys) if keys else None
    arrays = []
    for field in target:
        column = _joined(parts, field.name)
        column = column if order is None or is_constant(column) else column[order]
        arrays.append(_words(column, words) if field.name == coded else _plain(column, field.type))
    yield pa.Table.from_arrays(arrays, schema=target)


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
    return pa.repeat(pa.scalar(values[0].item(), kind), len(values)) if is_constant(values) else pa.array(values, kind)
