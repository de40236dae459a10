"""Several segments as one, sorted, without ever holding all of them: piece by piece of the column that orders them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hindmost_collector.store import schema, segments

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    Array = np.ndarray[Any, Any]

#: Rows of a piece, about: what a merge holds, and sorts, at one time.
PIECE_ROWS = 1 << 20


class _Group(NamedTuple):
    """A row group: of which segment, which one, how many rows, and the range of the leading column; None: unknown."""

    path: Path
    number: int
    rows: int
    least: Any
    most: Any


def merged(table: str, paths: Sequence[Path]) -> Iterator[pa.Table]:
    """The rows of all segments in the stored order, in pieces. Raises OSError or pa.ArrowException when one is torn,
    HindmostError when one is newer than this program.
    """
    order = schema.ORDER.get(table)
    if order is None:
        yield _joined(table, [segments.read(path) for path in paths])
        return
    groups = [group for path in paths for group in _groups(path, order[0])]
    if any(group.least is None for group in groups):
        yield _sorted(_joined(table, [segments.read(path) for path in paths]), order)
        return
    below = None
    for bound in _bounds(groups, order[0]):
        parts = [
            _between(segments.read_groups(path, indices), order[0], below, bound)
            for path in paths
            if (indices := _overlapping(groups, path, below, bound))
        ]
        yield _sorted(_joined(table, parts), order)
        below = bound


def _groups(path: Path, lead: str) -> list[_Group]:
    with pq.ParquetFile(path) as file:
        about = file.metadata
        column = file.schema_arrow.get_field_index(lead)
        found = []
        for index in range(about.num_row_groups):
            group = about.row_group(index)
            told: Any = group.column(column).statistics if column >= 0 else None
            known = (told.min, told.max) if told and told.has_min_max else (None, None)
            found.append(_Group(path, index, group.num_rows, told.min if known else None, told.max if known else None))
    return found


def _bounds(groups: Sequence[_Group], lead: str) -> list[Any]:
    """Values of the leading column that cut the rows into pieces of about PIECE_ROWS; the last is the highest.

    How many rows each value has is taken from the largest segment, and what it lacks falls to the pieces beside.
    """
    total: dict[Path, int] = {}
    for group in groups:
        total[group.path] = total.get(group.path, 0) + group.rows
    largest = max(total, key=lambda path: total[path])
    counted = segments.read(largest, [lead]).column(lead).value_counts().to_pylist()
    share = sum(total.values()) / max(total[largest], 1)
    bounds, rows = [], 0.0
    for value, count in sorted((one["values"], one["counts"]) for one in counted):
        rows += count * share
        if rows >= PIECE_ROWS:
            bounds.append(value)
            rows = 0.0
    highest = max((group.most for group in groups if group.rows), default=None)
    return [*(bound for bound in bounds if bound < highest), *([] if highest is None else [highest])]


def _overlapping(groups: Sequence[_Group], path: Path, below: Any, bound: Any) -> list[int]:
    return [
        group.number
        for group in groups
        if group.path == path and group.rows and group.least <= bound and (below is None or group.most > below)
    ]


def _between(data: pa.Table, lead: str, below: Any, bound: Any) -> pa.Table:
    """Rows whose leading column is above ``below`` and at most ``bound``."""
    column = data.column(lead).combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        words = np.array([below is None or word > below for word in column.dictionary.to_pylist()], dtype=bool)
        words &= np.array([word <= bound for word in column.dictionary.to_pylist()], dtype=bool)
        mask = words[column.indices.to_numpy(zero_copy_only=False)]
    else:
        values = column.to_numpy(zero_copy_only=False)
        mask = (values <= bound) & (True if below is None else values > below)
    return data if mask.all() else data.filter(pa.array(mask))


def _joined(table: str, parts: Sequence[pa.Table]) -> pa.Table:
    target = schema.arrow_schema(table)
    fitted = [_fitted(table, part, target) for part in parts] or [target.empty_table()]
    return pa.concat_tables(fitted).unify_dictionaries().combine_chunks()


def _fitted(table: str, data: pa.Table, target: pa.Schema) -> pa.Table:
    """The columns of ``target``, strings dictionary-coded; what an older version lacked is *not measured*."""
    columns = []
    for field in target:
        if field.name in data.column_names:
            column = data.column(field.name)
        else:
            column = pa.chunked_array(
                [pa.array(schema.missing_column(schema.FILED[table][field.name], len(data)).tolist())]
            )
        if pa.types.is_dictionary(field.type) and not pa.types.is_dictionary(column.type):
            column = column.cast(pa.string()).dictionary_encode()
        columns.append(column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=target)


def _sorted(data: pa.Table, order: Sequence[str]) -> pa.Table:
    """Rows in order, words as codes whose order is that of the words."""
    for name in order:
        if pa.types.is_dictionary(data.schema.field(name).type):
            data = data.set_column(data.schema.get_field_index(name), data.schema.field(name), _ranked(data, name))
    keys = [_numbers(data, name) for name in order]
    index = _argsort(keys)
    return data.take(pa.array(index)) if index is not None else data


def _ranked(data: pa.Table, name: str) -> pa.ChunkedArray:
    """A column of words with its dictionary sorted."""
    column = data.column(name).chunk(0) if len(data) else pa.array([], pa.string()).dictionary_encode()
    by_word = np.argsort(np.array(column.dictionary.to_pylist(), dtype=np.str_), kind="stable")
    place = np.empty(len(by_word), np.int32)
    place[by_word] = np.arange(len(by_word), dtype=np.int32)
    indices = place[column.indices.to_numpy(zero_copy_only=False)] if len(data) else np.empty(0, np.int32)
    made = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), column.dictionary.take(pa.array(by_word)))
    return pa.chunked_array([made])


def _numbers(data: pa.Table, name: str) -> Array:
    column = data.column(name).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0)
    if pa.types.is_dictionary(column.type):
        column = column.indices
    numbers: Array = column.to_numpy(zero_copy_only=False)
    return numbers


def _argsort(keys: Sequence[Array]) -> Array | None:
    """What sorts by all keys; None where nothing has to move.

    Segments follow one another in time, so a stable sort by all but the last key nearly always does it, and finds long
    runs that are in order already.
    """
    series = np.zeros(len(keys[0]), np.int64)
    for key in keys[:-1]:
        if len(key):
            span = int(key.max()) - int(key.min()) + 1
            series = series * span + (key - key.min())
    index = np.argsort(series, kind="stable")
    ordered, last = series[index], keys[-1][index]
    if len(last) and ((ordered[1:] == ordered[:-1]) & (last[1:] < last[:-1])).any():
        return np.lexsort((keys[-1], series))
    return None if np.array_equal(index, np.arange(len(index))) else index
