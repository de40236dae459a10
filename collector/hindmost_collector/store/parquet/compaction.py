"""Compaction and retention of a store: small segments become large ones, old days go, space stays within its limit.

Compaction reads the flushes of one table of one day, merges them piece by piece of the columns that order them, writes
one sorted segment, and swaps it in with one commit of the journal. A reader that listed the old files meanwhile finds
them gone and lists again; it never sees rows twice.

A merged segment is merged again only once the data after it is as large as itself. So a row is written as many times
as its table has doubled since, and not every few minutes until the day is over.
"""

import contextlib
import heapq
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hindmost.errors import HindmostError

from hindmost_collector.store import schema
from hindmost_collector.store.arrow_tables import levels
from hindmost_collector.store.parquet import segments
from hindmost_collector.store.parquet.journal import TEMPORARY
from hindmost_collector.store.parquet.segments import Segment
from hindmost_collector.store.parquet.store import ParquetStore

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
    names = order[:-1] if table == "metrics" else order  # a cut through a series of samples would halve an interval
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


def _groups(path: Path, names: Sequence[str]) -> Iterator[_Group]:
    """The row groups of a segment that have rows; of columns that an older one lacks nothing is known."""
    with pq.ParquetFile(path) as file:
        places = [file.schema_arrow.get_field_index(name) for name in names]
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            statistics = [group.column(place).statistics if place >= 0 else None for place in places]
            if group.num_rows:
                yield _Group(path, number, group.num_rows, _least(statistics))


def _least(statistics: Sequence[Any]) -> Key:
    """The least of the first column, and of each further one while those before it are the same in all rows."""
    found: list[Any] = []
    for statistic in statistics:
        if not statistic or not statistic.has_min_max:
            break
        found.append(statistic.min)
        if statistic.min != statistic.max:
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
        column = _combined([data.column(name)])
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
    filled = [part for part in parts if len(part)]
    parts.clear()
    if not filled:
        return target.empty_table()
    columns = dict(zip(target.names, zip(*(_fitted(table, part).columns for part in filled), strict=True), strict=True))
    filled.clear()
    ordered = {name: _ranked(_combined(columns.pop(name))) for name in order}
    index = _argsort([_numbers(column) for column in ordered.values()])
    made = []
    for name in target.names:
        column = ordered.pop(name) if name in ordered else _combined(columns.pop(name))
        made.append(column if index is None else column.take(pa.array(index)))
    return pa.Table.from_arrays(made, schema=target)


def _combined(pieces: Sequence[pa.ChunkedArray]) -> pa.Array:
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


log = logging.getLogger(__name__)

#: Small segments of one table and day that are worth merging, and the most that one merge takes: it holds a row group
#: of each.
LEAST_SEGMENTS, MOST_SEGMENTS = 16, 64
#: Those that are worth merging while cores are full: a report opens each, in 1.2 ms.
MANY_SEGMENTS = 128
#: A segment of this size is large enough.
LARGE_BYTES = 32 << 20
#: This part at most of the allowed space is kept free for the data until the next round.
_MOST_AHEAD = 8
#: Between two surveys of a store that is full, s; and segments that are known, from one, to go next.
SURVEY_S, _OLDEST = 3600.0, 4096


@dataclass(frozen=True)
class Retention:
    """How long and how much; zero is without limit."""

    days: float = 0.0
    bytes: int = 0


class Upkeep:
    """What the collector does to its store between flushes; one small piece at each call.

    It looks at what flushes wrote since. The whole store is read once a day, when what is left of the day before is to
    be merged or has become too old; and for its size at most once in an hour, or each ``_OLDEST`` deletions.
    """

    def __init__(self, store: ParquetStore, retention: Retention, now: Callable[[], float] = time.time) -> None:
        self._store, self._retention, self._now = store, retention, now
        self._emptied: set[Path] = set()
        self._newer: set[Path] = set()
        self._day_merged = self._day_expired = ""  # those of which everything was looked at
        self._due: dict[Path, None] = {}  # directories of tables that may have something to merge
        self._came = 0  # bytes since the last round by size
        self._taken = 0  # bytes of all segments, and of the reports and stacks next to them
        self._surveyed_s = -math.inf
        self._oldest: deque[Segment] = deque()  # those that go next for their size

    def _follow(self) -> None:
        """Take in what flushes wrote."""
        news = self._store.news()
        tables = (one for one in news if one.parent.name == "segments")  # others hold reports and stacks
        self._due |= dict.fromkeys(table for table in tables if table.name not in schema.LEVELS)
        came = sum(news.values())
        self._came, self._taken = self._came + came, self._taken + came

    def compact(self, least: int = LEAST_SEGMENTS) -> int:
        """Merge small segments of one table, if any has at least so many of them; how many went. Raises OSError.

        A damaged one among them is set aside instead, and the others are merged at the next call.
        """
        self._follow()
        today = self._day(0)
        if today != self._day_merged:  # levels are made from the samples, and merged as they are
            every = segments.tables(self._store.root)
            self._day_merged, self._due = today, dict.fromkeys(one for one in every if one.name not in schema.LEVELS)
        for directory in list(self._due):
            del self._due[directory]
            if directory in self._newer:
                continue
            if least > LEAST_SEGMENTS:
                self._due[directory] = None  # for the call with less
            for small in mergeable(directory, today, least):
                self._due[directory] = None  # again, after all others: more may be left, or this fails
                try:
                    self._merge(directory, small)
                except HindmostError as error:
                    self._let_be(directory, error)
                    break
                except (OSError, ValueError, IndexError):
                    damaged = [one.path for one in small if segments.is_torn(one.path, whole=True)]
                    gone = sum(self._store.set_aside(path) for path in damaged)
                    if not gone:
                        raise
                    return gone
                return len(small)
        return 0

    def _let_be(self, directory: Path, error: HindmostError) -> None:
        """Merge no more of a table that a newer hindmost has written into: that one will."""
        self._newer.add(directory)
        log.warning("%s is not compacted: %s", directory, error)

    def _merge(self, directory: Path, small: list[Segment]) -> None:
        """Make one segment of several, and its coarser levels with it; all of them appear in one commit."""
        name = segments.file_name(small[0].day, small[0].flush, small[-1].last)
        tables = [directory.name, *(schema.LEVELS if directory.name == "metrics" else ())]
        made: dict[Path, Path] = {}
        writers: dict[str, segments.Writer] = {}
        try:
            for table in tables:
                final = directory.with_name(table) / name
                final.parent.mkdir(exist_ok=True)
                made[final.with_name(f".{name}{TEMPORARY}")] = final
                writers[table] = segments.Writer(table, final.with_name(f".{name}{TEMPORARY}"))
            for piece in merged(directory.name, [segment.path for segment in small]):
                writers[directory.name].add(piece)
                for table, rows in (levels(piece) if len(tables) > 1 else {}).items():
                    writers[table].add(rows)
            for writer in writers.values():
                writer.finish()
        except (OSError, pa.ArrowException, ValueError, IndexError) as error:
            for writer in writers.values():
                writer.discard()
            raise error if isinstance(error, OSError) else OSError(str(error)) from error
        replaced = [directory.with_name(table) / segment.path.name for table in tables for segment in small]
        before = _bytes(replaced)
        self._store.swap(made, replaced)
        self._taken += _bytes(made.values()) - before
        if self._oldest and _age(small[0]) <= _age(self._oldest[-1]):
            self._oldest.clear()  # the merged one is to go in its turn

    def expire(self) -> int:
        """Delete what is older or more than the retention allows; how many bytes went. Raises OSError.

        Coarser levels stay longer than samples, and are the last to go for their size.
        """
        freed = 0
        self._store.review_torn()
        self._follow()
        if self._retention.days and self._day_expired != self._day(0):
            limits = {longer: self._day(self._retention.days * longer) for longer in (1, *schema.LEVELS_KEPT.values())}
            remaining = [
                (segment, schema.LEVELS_KEPT.get(segment.path.parent.name, 1))
                for segment in _expendable(self._survey())
            ]
            freed = self._delete([one for one, longer in remaining if one.day < limits[longer]])
            self._day_expired = self._day(0) if not freed else ""  # of a job that ends so, more may go now
        freed += self._expire_by_size() if self._retention.bytes else 0
        if not self._store.single:  # a job of which nothing is left to report on goes, now or in a later round
            for job in list(self._emptied):
                reports = _report_bytes(job)
                if self._store.remove_empty(job):
                    self._emptied.remove(job)
                    self._taken -= 0 if job.exists() else reports
        return freed

    def _expire_by_size(self) -> int:
        """Delete the oldest, so that what comes until the next round fits too: as much as came since the last one."""
        limit, known = self._retention.bytes, self._surveyed_s > -math.inf
        coming, self._came = min(self._came, limit // _MOST_AHEAD) if known else 0, 0
        if known and self._taken + coming <= limit:
            return 0
        doomed, excess, with_their_job = self._first_to_go(self._taken + coming - limit)
        if excess > 0 or self._now() - self._surveyed_s >= SURVEY_S:
            self._survey()
            doomed, _, with_their_job = self._first_to_go(self._taken + coming - limit)
        for _ in doomed:
            self._oldest.popleft()
        return self._delete([*doomed, *with_their_job])

    def _first_to_go(self, excess: int) -> tuple[list[Segment], int, list[Segment]]:
        """The oldest segments that have so many bytes, the bytes that they lack, and what goes with their jobs.

        Of a job of which nothing else is left that is who was where, its reports and its stacks.
        """
        doomed: list[Segment] = []
        with_their_job: list[Segment] = []
        rest: dict[Path, set[Path]] = {}
        for one in self._oldest:
            if excess <= 0:
                break
            doomed.append(one)
            excess -= one.bytes
            job = one.path.parents[2]
            left = rest.setdefault(job, set(job.glob(f"segments/*/*{segments.SUFFIX}")))
            if self._store.single or one.path not in left:
                continue
            left.remove(one.path)
            if one.path.parent.name not in schema.IDENTITY and _says_who(left):
                who = [each for table in {path.parent for path in left} for each in segments.listed(table)]
                with_their_job += who
                excess -= sum(one.bytes for one in who) + _report_bytes(job)
        return doomed, excess, with_their_job

    def _survey(self) -> list[Segment]:
        """Every segment there is, those that were set aside too; their size, and the oldest, are kept."""
        self._follow()
        every = segments.tables(self._store.root)
        found = [one for table in every for one in (*segments.listed(table), *segments.aside(table))]
        reports = sum(map(_report_bytes, {table.parents[1] for table in every}))
        self._taken, self._surveyed_s = sum(one.bytes for one in found) + reports, self._now()
        self._oldest = deque(heapq.nsmallest(_OLDEST, _expendable(found), key=_age))
        return found

    def _day(self, ago: float) -> str:
        """The day so many days ago as names have it; 1970 at the earliest, as names of earlier years do not sort."""
        return time.strftime("%Y%m%d", time.gmtime(max(0.0, self._now() - ago * 86400)))

    def _delete(self, doomed: list[Segment]) -> int:
        freed = sum(segment.bytes for segment in doomed)
        for one in doomed:
            one.path.unlink(missing_ok=True)
        self._taken -= freed
        self._emptied |= {segment.path.parents[2] for segment in doomed}
        if doomed:
            self._store.review_torn()
            log.info("retention: %d segments, %d bytes deleted", len(doomed), freed)
        return freed


def _bytes(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.exists())


def _report_bytes(job: Path) -> int:
    return _bytes([*job.glob("report.*"), *job.glob("stacks/*")])


def _says_who(paths: Iterable[Path]) -> bool:
    """Whether all of these segments only say who is where."""
    return all(path.parent.name in schema.IDENTITY for path in paths)


def _age(one: Segment) -> tuple[bool, str, int]:
    """What goes first for its size: samples before what sums them up, the oldest before the others."""
    return one.path.parent.name in schema.LEVELS, one.day, one.flush


def _expendable(found: list[Segment]) -> list[Segment]:
    """The segments that may go: those that say who is where only where nothing else of their job is left."""
    needed = {segment.path.parents[1] for segment in found if segment.path.parent.name not in schema.IDENTITY}
    return [
        segment
        for segment in found
        if segment.path.parent.name not in schema.IDENTITY or segment.path.parents[1] not in needed
    ]


def mergeable(directory: Path, today: str, least: int = LEAST_SEGMENTS) -> list[list[Segment]]:
    """Groups of small segments of one day that are many enough to merge, at least so many if it is today.

    A group has no other segment in between, nor one that was set aside and may be repaired: the merged segment
    stands for everything from its first flush to its last.
    """
    groups: list[list[Segment]] = [[]]
    torn = segments.aside(directory)
    for one in sorted([*segments.listed(directory), *torn], key=lambda one: (one.day, one.flush)):
        apart = one in torn or (one.bytes >= LARGE_BYTES and one.level)
        if apart or (groups[-1] and groups[-1][-1].day != one.day):
            groups.append([])
        if not apart:
            groups[-1].append(one)
    return [_at_most(due) for group in groups if group and (due := _due(group, least if group[0].day >= today else 0))]


def _due(group: list[Segment], least: int) -> list[Segment]:
    """What of a group is to be merged: all of a day that is over (0), else what doubles; nothing if too little."""
    if not least:
        return group if len(group) > 1 or not group[0].level else []
    later = sum(segment.bytes for segment in group)
    while group and group[0].level and 2 * group[0].bytes > later:
        later -= group[0].bytes
        group = group[1:]
    return group if sum(segment.level == 0 for segment in group) >= least else []


def _at_most(group: list[Segment]) -> list[Segment]:
    """The first of a group that make no more than a few large segments together; two at least, if there are two."""
    total = 0
    for index, one in enumerate(group):
        total += one.bytes
        if total > 4 * LARGE_BYTES and index > 1:
            return group[:index]
    return group[:MOST_SEGMENTS]
