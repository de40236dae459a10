"""Several segments as one, sorted, without ever holding all of them: piece by piece of the columns that order them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hindmost_collector.store import schema
from hindmost_collector.store.parquet import segments

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    Array = np.ndarray[Any, Any]
    Key = tuple[Any, ...]

#: Rows of a piece, about: what a merge holds, and sorts, at one time.
PIECE_ROWS = 1 << 17


class _Group(NamedTuple):
    """A row group: of which segment, which one, how many rows, and what its rows' keys begin with at least.

    That is as long as is known: empty where nothing is.
    """

    path: Path
    number: int
    rows: int
    least: Key


def merged(table: str, paths: Sequence[Path]) -> Iterator[pa.Table]:
    """The rows of all segments in the stored order, in pieces. Raises OSError or pa.ArrowException when one is torn,
    HindmostError when one is newer than this program.
    """
    order = schema.ORDER.get(table)
    if order is None:
        yield _joined(table, [segments.read(path) for path in paths])
        return
    names = _cut_by(table, order)
    groups = {path: list(_groups(path, names)) for path in paths}
    bounds = _bounds(table, [group for found in groups.values() for group in found], names)
    with contextlib.ExitStack() as opened:
        sources = [_Source(opened.enter_context(segments.opened(path)), table, groups[path]) for path in paths]
        below: Key | None = None
        for bound in [*bounds, None]:
            piece = _sorted(table, [part for source in sources for part in source.between(names, below, bound)], order)
            if len(piece):
                yield piece
            below = bound


class _Source:
    """A segment that is read from front to back: of a row group that two pieces share, the rest is held."""

    def __init__(self, file: pq.ParquetFile, table: str, groups: Sequence[_Group]) -> None:
        self._file, self._table, self._groups = file, table, list(groups)
        self._held: tuple[int, pa.Table] | None = None

    def between(self, names: Sequence[str], below: Key | None, bound: Key | None) -> list[pa.Table]:
        """Rows whose key is above ``below`` and at most ``bound``, asked for in that order. Raises OSError or
        pa.ArrowException.
        """
        parts, left = [], []
        for group in self._groups:
            if bound is not None and group.least > bound[: len(group.least)]:
                left.append(group)
                continue
            data = self._rest(group.number, names, below)
            later = np.zeros(len(data), dtype=bool) if bound is None else _above(data, names, bound)
            parts.append(_where(data, ~later))
            if later.any():
                left.append(group)
                self._held = group.number, _where(data, later)
        self._groups = left
        return parts

    def _rest(self, number: int, names: Sequence[str], below: Key | None) -> pa.Table:
        """The rows of a row group that no piece has had."""
        if self._held and self._held[0] == number:
            data, self._held = self._held[1], None
            return data
        data = _fitted(self._table, segments.read_group(self._file, number))
        return data if below is None else _where(data, _above(data, names, below))


def _where(data: pa.Table, wanted: Array) -> pa.Table:
    """The rows for which ``wanted`` holds; those that follow one another are not copied."""
    at = np.flatnonzero(wanted)
    if len(at) and at[-1] - at[0] + 1 == len(at):
        return data.slice(at[0], len(at))
    return data.filter(pa.array(wanted))


def _cut_by(table: str, order: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that a cut between two pieces is made by: one through a series of samples would halve an interval."""
    return order[:-1] if table == "metrics" else order


def _groups(path: Path, names: Sequence[str]) -> Iterator[_Group]:
    """The row groups of a segment that have rows; of columns that an older one lacks nothing is known."""
    with pq.ParquetFile(path) as file:
        places = [file.schema_arrow.get_field_index(name) for name in names]
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            told = [group.column(place).statistics if place >= 0 else None for place in places]
            if group.num_rows:
                yield _Group(path, number, group.num_rows, _least(told))


def _least(told: Sequence[Any]) -> Key:
    """The least of the first column, and of each further one while those before it are the same in all rows."""
    found: list[Any] = []
    for one in told:
        if not one or not one.has_min_max:
            break
        found.append(one.min)
        if one.min != one.max:
            break
    return tuple(found)


def _bounds(table: str, groups: Sequence[_Group], names: Sequence[str]) -> list[Key]:
    """Keys that cut the rows into pieces of about PIECE_ROWS, as the largest segment has them, which is in order."""
    total: dict[Path, int] = {}
    for group in groups:
        total[group.path] = total.get(group.path, 0) + group.rows
    pieces = round(sum(total.values()) / PIECE_ROWS)
    if pieces < 2:
        return []
    largest = max(total, key=lambda path: total[path])
    wanted = [total[largest] * number // pieces for number in range(1, pieces)]
    found: set[Key] = set()
    first = 0
    for group in (one for one in groups if one.path == largest):
        at = [row - first for row in wanted if first <= row < first + group.rows]
        if at:
            with segments.opened(largest) as file:
                keys = _fitted(table, segments.read_group(file, group.number, names), names).take(at)
            found |= {tuple(row.values()) for row in keys.to_pylist()}
        first += group.rows
    return sorted(found)


def _above(data: pa.Table, names: Sequence[str], key: Key) -> Array:
    """Row mask: in the order of the columns, what comes after ``key``."""
    above = np.zeros(len(data), dtype=bool)
    tied = np.arange(len(data))
    for name, limit in zip(names, key, strict=True):
        column = _one([data.column(name)])
        if pa.types.is_dictionary(column.type):
            signs = [(word > limit) - (word < limit) for word in column.dictionary.to_pylist()]
            sign = np.array(signs, np.int8)[column.indices.to_numpy(zero_copy_only=False)[tied]]
        else:
            values = column.to_numpy(zero_copy_only=False)[tied]
            sign = (values > limit).astype(np.int8) - (values < limit)
        above[tied[sign > 0]] = True
        tied = tied[sign == 0]
        if not len(tied):
            break
    return above


def _joined(table: str, parts: Sequence[pa.Table]) -> pa.Table:
    fitted = [_fitted(table, part) for part in parts] or [schema.arrow_schema(table).empty_table()]
    return pa.concat_tables(fitted).unify_dictionaries().combine_chunks()


def _fitted(table: str, data: pa.Table, names: Sequence[str] | None = None) -> pa.Table:
    """The stored columns, or those named, strings dictionary-coded; what an older version lacked is *not measured*."""
    target = schema.arrow_schema(table)
    target = target if names is None else pa.schema([target.field(name) for name in names])
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


def in_order(table: str, data: pa.Table) -> pa.Table:
    """The stored columns of ``data`` in the table's order, words as dictionaries."""
    return _sorted(table, [data], schema.ORDER[table])


def _sorted(table: str, parts: list[pa.Table], order: Sequence[str]) -> pa.Table:
    """The rows of all parts in order, words as codes whose order is that of the words.

    Columns are joined and sorted one after the other, and the parts are let go of: there is memory for one copy.
    """
    target = schema.arrow_schema(table)
    held = [part for part in parts if len(part)]
    parts.clear()
    if not held:
        return target.empty_table()
    columns = dict(zip(target.names, zip(*(_fitted(table, part).columns for part in held), strict=True), strict=True))
    held.clear()
    ordered = {name: _ranked(_one(columns.pop(name))) for name in order}
    index = _argsort([_numbers(column) for column in ordered.values()])
    made = []
    for name in target.names:
        column = ordered.pop(name) if name in ordered else _one(columns.pop(name))
        made.append(column if index is None else column.take(pa.array(index)))
    return pa.Table.from_arrays(made, schema=target)


def _one(pieces: Sequence[pa.ChunkedArray]) -> pa.Array:
    """Pieces of a column as one; there is one at least."""
    whole = pa.chunked_array([chunk for piece in pieces for chunk in piece.chunks])
    joined = whole.unify_dictionaries().combine_chunks()
    return joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined


def _ranked(column: pa.Array) -> pa.Array:
    """A column of words with its dictionary sorted; any other as it is."""
    if not pa.types.is_dictionary(column.type):
        return column
    by_word = np.argsort(np.array(column.dictionary.to_pylist(), dtype=np.str_), kind="stable")
    place = np.empty(len(by_word), np.int32)
    place[by_word] = np.arange(len(by_word), dtype=np.int32)
    indices = place[column.indices.to_numpy(zero_copy_only=False)]
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), column.dictionary.take(pa.array(by_word)))


def _numbers(column: pa.Array) -> Array:
    whole = column.indices if pa.types.is_dictionary(column.type) else column
    numbers: Array = whole.to_numpy(zero_copy_only=False)
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
    if len(series) and series.max() < 1 << 16:
        series = series.astype(np.uint16)  # numpy sorts these by their bytes, in a quarter of the time
    index = np.argsort(series, kind="stable")
    ordered, last = series[index], keys[-1][index]
    if len(last) and ((ordered[1:] == ordered[:-1]) & (last[1:] < last[:-1])).any():
        return np.lexsort((keys[-1], series))
    return None if np.array_equal(index, np.arange(len(index))) else index
