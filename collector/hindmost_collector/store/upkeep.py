"""Upkeep of a store: small segments become large ones, old days go, and no more space is taken than allowed.

Compaction reads the flushes of one table of one day, writes them as one sorted segment, and swaps them in one commit of
the journal. A reader that listed the old files meanwhile finds them gone and lists again; it never sees rows twice.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from hindmost_collector.store import schema, segments
from hindmost_collector.store.journal import TEMPORARY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hindmost_collector.store.parquet import ParquetStore
    from hindmost_collector.store.segments import Segment

log = logging.getLogger(__name__)

#: Small segments of one table and day that are worth merging, and the most that one merge takes.
FEW, MANY = 16, 256
#: A segment of this size is large enough.
LARGE_BYTES = 64 << 20


@dataclass(frozen=True)
class Retention:
    """How long and how much; zero is without limit."""

    days: float = 0.0
    bytes: int = 0


class Upkeep:
    """What the collector does to its store between flushes; one small piece at each call."""

    def __init__(self, store: ParquetStore, retention: Retention, now: Callable[[], float] = time.time) -> None:
        self._store, self._retention, self._now = store, retention, now

    def compact(self) -> int:
        """Merge the small segments of one table, if any has enough of them; how many went. Raises OSError."""
        for directory in sorted(self._store.root.rglob("segments/*")):
            for small in _mergeable(directory):
                self._merge(directory.name, small)
                return len(small)
        return 0

    def _merge(self, table: str, small: list[Segment]) -> None:
        first = small[0]
        final = first.path.with_name(segments.file_name(first.day, first.flush, 1))
        temporary = final.with_name(f".{final.name}{TEMPORARY}")
        parts = [segments.read(one.path).replace_schema_metadata(None) for one in small]
        merged = pa.concat_tables(parts, promote_options="default").unify_dictionaries()
        order = schema.ORDER.get(table)
        if order:
            merged = _decoded(merged).sort_by([(name, "ascending") for name in order])
        target = schema.arrow_schema(table)
        segments.write(table, [_fitted(table, merged, target)], temporary)
        self._store.swap((temporary, final), [one.path for one in small])

    def expire(self) -> int:
        """Delete what is older or more than the retention allows; how many bytes went. Raises OSError."""
        freed = 0
        if self._retention.days:
            limit = time.strftime("%Y%m%d", time.gmtime(self._now() - self._retention.days * 86400))
            freed += self._delete([one for one in self._all() if one.day < limit])
        if self._retention.bytes:
            held = sorted(self._all(), key=lambda one: (one.day, one.flush))
            excess, doomed = sum(one.bytes for one in held) - self._retention.bytes, []
            for one in held:
                if excess <= 0:
                    break
                doomed.append(one)
                excess -= one.bytes
            freed += self._delete(doomed)
        return freed

    def _all(self) -> list[Segment]:
        return [one for directory in self._store.root.rglob("segments/*") for one in segments.listed(directory)]

    def _delete(self, doomed: list[Segment]) -> int:
        freed = sum(one.bytes for one in doomed)
        for one in doomed:
            one.path.unlink(missing_ok=True)
        for job in {one.path.parents[2] for one in doomed}:
            if not self._store.single and not any(_segment_files(job)):
                self._store.remove(job)  # nothing is left to report on
        if doomed:
            log.info("retention: %d segments, %d bytes deleted", len(doomed), freed)
        return freed


def _segment_files(job: Path) -> Iterator[Path]:
    return job.glob(f"segments/*/*{segments.SUFFIX}")


def _mergeable(directory: Path) -> list[list[Segment]]:
    """Groups of small segments of one day that are many enough to merge."""
    days: dict[str, list[Segment]] = defaultdict(list)
    for one in segments.listed(directory):
        if one.bytes < LARGE_BYTES:
            days[one.day].append(one)
    return [group[:MANY] for group in days.values() if sum(one.level == 0 for one in group) >= FEW]


def _decoded(data: pa.Table) -> pa.Table:
    """Dictionaries as plain text, which sorts by itself and not by code."""
    columns = [column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column for column in data.columns]
    return pa.table(columns, names=data.column_names)


def _fitted(table: str, data: pa.Table, target: pa.Schema) -> pa.Table:
    """The columns of ``target``, strings dictionary-coded; what an older version lacked is *not measured*."""
    count = data.num_rows
    columns = []
    for field in target:
        if field.name in data.column_names:
            column = data.column(field.name).combine_chunks()
        else:
            column = pa.array(schema.missing_column(schema.STORED[table][field.name], count).tolist())
        if pa.types.is_dictionary(field.type):
            column = column if pa.types.is_dictionary(column.type) else column.cast(pa.string()).dictionary_encode()
        else:
            column = column.cast(field.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=target)
