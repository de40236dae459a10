"""Maintenance of a store: small segments become large ones, old days go, and space stays within its limit.

Compaction reads the flushes of one table of one day, writes them as one sorted segment, and swaps them in one commit of
the journal. A reader that listed the old files meanwhile finds them gone and lists again; it never sees rows twice.

A merged segment is merged again only once the data after it is as large as itself. So a row is written as many times
as its table has doubled since, and not every few minutes until the day is over.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from hindmost.errors import HindmostError

from hindmost_collector.store import schema
from hindmost_collector.store.downsample import levels
from hindmost_collector.store.parquet import segments
from hindmost_collector.store.parquet.merge import merged
from hindmost_collector.store.parquet.segments import TEMPORARY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hindmost_collector.store.parquet.segments import Segment
    from hindmost_collector.store.parquet.store import ParquetStore

log = logging.getLogger(__name__)

#: Small segments of one table and day that are worth merging, and the most that one merge takes: it holds a row group
#: of each.
FEW, MANY = 16, 64
#: A segment of this size is large enough.
LARGE_BYTES = 32 << 20
#: This part at most of the allowed space is kept free for the data until the next round.
_MOST_AHEAD = 8


@dataclass(frozen=True)
class Retention:
    """How long and how much; zero is without limit."""

    days: float = 0.0
    bytes: int = 0


class Upkeep:
    """What the collector does to its store between flushes; one small piece at each call."""

    def __init__(self, store: ParquetStore, retention: Retention, now: Callable[[], float] = time.time) -> None:
        self._store, self._retention, self._now = store, retention, now
        self._emptied: set[Path] = set()
        self._newer: set[Path] = set()
        self._left: int | None = None  # bytes of all segments after the last round by size

    def compact(self) -> int:
        """Merge the small segments of one table, if any has enough of them; how many went. Raises OSError.

        A damaged one among them is set aside instead, and the others are merged at the next call.
        """
        today = time.strftime("%Y%m%d", time.gmtime(self._now()))
        for directory in sorted(self._store.root.rglob("segments/*")):
            if directory.name in schema.LEVELS or directory in self._newer:
                continue  # levels are made from the samples, and merged as they are
            for small in _mergeable(directory, today):
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
            for piece in merged(directory.name, [one.path for one in small]):
                writers[directory.name].add(piece)
                for table, rows in (levels(piece) if len(tables) > 1 else {}).items():
                    writers[table].add(rows)
            for writer in writers.values():
                writer.finish()
        except (OSError, pa.ArrowException, ValueError, IndexError) as error:
            for writer in writers.values():
                writer.discard()
            raise error if isinstance(error, OSError) else OSError(str(error)) from error
        self._store.swap(made, [directory.with_name(table) / one.path.name for table in tables for one in small])

    def expire(self) -> int:
        """Delete what is older or more than the retention allows; how many bytes went. Raises OSError.

        Coarser levels stay longer than samples, and are the last to go for their size.
        """
        freed = 0
        self._store.review_torn()
        if self._retention.days:
            limits = {longer: self._day(self._retention.days * longer) for longer in (1, *schema.LEVELS_KEPT.values())}
            kept = [(one, schema.LEVELS_KEPT.get(one.path.parent.name, 1)) for one in _expendable(self._segments())]
            freed += self._delete([one for one, longer in kept if one.day < limits[longer]])
        return freed + (self._expire_by_size() if self._retention.bytes else 0)

    def _expire_by_size(self) -> int:
        """Delete the oldest, so that what comes until the next round fits too: as much as came since the last one."""
        limit, found = self._retention.bytes, self._segments()
        total = sum(one.bytes for one in found)
        coming = 0 if self._left is None else min(max(total - self._left, 0), limit // _MOST_AHEAD)
        excess, doomed = total + coming - limit, []
        for one in sorted(
            _expendable(found), key=lambda one: (one.path.parent.name in schema.LEVELS, one.day, one.flush)
        ):
            if excess <= 0:
                break
            doomed.append(one)
            excess -= one.bytes
        freed = self._delete(doomed)
        self._left = total - freed
        return freed

    def _day(self, ago: float) -> str:
        """The day so many days ago as names have it; 1970 at the earliest, as names of earlier years do not sort."""
        return time.strftime("%Y%m%d", time.gmtime(max(0.0, self._now() - ago * 86400)))

    def _segments(self) -> list[Segment]:
        """Every segment there is, those that were set aside too."""
        tables = list(self._store.root.rglob("segments/*"))
        return [one for table in tables for one in (*segments.listed(table), *segments.aside(table))]

    def _delete(self, doomed: list[Segment]) -> int:
        freed = sum(one.bytes for one in doomed)
        for one in doomed:
            one.path.unlink(missing_ok=True)
        if not self._store.single:  # a job of which nothing is left to report on goes, now or in a later round
            self._emptied |= {one.path.parents[2] for one in doomed}
            self._emptied = {job for job in self._emptied if not self._store.remove_empty(job)}
        if doomed:
            self._store.review_torn()
            log.info("retention: %d segments, %d bytes deleted", len(doomed), freed)
        return freed


def _expendable(found: list[Segment]) -> list[Segment]:
    """The segments that may go: those that say who is where only where nothing else of their job is left."""
    needed = {one.path.parents[1] for one in found if one.path.parent.name not in schema.IDENTITY}
    return [one for one in found if one.path.parent.name not in schema.IDENTITY or one.path.parents[1] not in needed]


def _mergeable(directory: Path, today: str) -> list[list[Segment]]:
    """Groups of small segments of one day that are many enough to merge.

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
    return [_at_most(due) for group in groups if group and (due := _due(group, over=group[0].day < today))]


def _due(group: list[Segment], *, over: bool) -> list[Segment]:
    """What of a group is to be merged: all of a day that is over, else what doubles; nothing if that is too little."""
    if over:
        return group if len(group) > 1 or not group[0].level else []
    later = sum(one.bytes for one in group)
    while group and group[0].level and 2 * group[0].bytes > later:
        later -= group[0].bytes
        group = group[1:]
    return group if sum(one.level == 0 for one in group) >= FEW else []


def _at_most(group: list[Segment]) -> list[Segment]:
    """The first of a group that make no more than a few large segments together; two at least, if there are two."""
    total = 0
    for index, one in enumerate(group):
        total += one.bytes
        if total > 4 * LARGE_BYTES and index > 1:
            return group[:index]
    return group[:MANY]
