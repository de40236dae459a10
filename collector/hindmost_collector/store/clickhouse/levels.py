"""Coarser levels of samples on their way into ClickHouse, where the engine adds up what flush after flush brings.

Rows that were added up cannot be taken back. So a flush's levels are inserted after it has become whole, under tokens
of its own: however often they are inserted, they count once.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from hindmost_collector.store import schema
from hindmost_collector.store.clickhouse import ddl
from hindmost_collector.store.downsample import reduced
from hindmost_collector.store.parquet.merge import in_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hindmost_collector.store.clickhouse.client import Server


class Insert(NamedTuple):
    """Rows of a level, all of one flush."""

    table: str
    data: pa.Table
    token: str


class LevelsOfFlush:
    """Takes the levels of the samples that pass through."""

    def __init__(self) -> None:
        self._parts: dict[str, list[pa.Table]] = defaultdict(list)

    def passing(self, samples: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """The same pieces, which have a column ``job``."""
        for piece in samples:
            if len(piece):
                self._add(piece["job"][0].as_py(), in_order("metrics", piece))
            yield piece

    def _add(self, job: str, piece: pa.Table) -> None:
        for level, columns in reduced(piece).items():
            last = pa.StructArray.from_arrays(
                [pa.array(columns["last_ns"]), pa.array(columns["last"])], ["ns", "value"]
            )
            made = {name: pa.array(columns[name]) for name in schema.LEVEL} | {"last": last}
            jobs = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(last), np.int32)), pa.array([job]))
            self._parts[level].append(pa.table({"job": jobs, **made}))

    def inserts(self, flush: int) -> list[Insert]:
        """What to insert once the flush is whole."""
        joined = {level: pa.concat_tables(parts).unify_dictionaries() for level, parts in self._parts.items()}
        return [_insert(level, rows, flush) for level, rows in joined.items() if len(rows)]


def of_stored(server: Server, flush: int) -> list[Insert]:
    """The levels of a flush whose samples are there."""
    database = ddl.quoted(server.target.place.database)
    found = []
    for level, width in schema.LEVELS.items():
        query = (
            f"SELECT job, node, name, labels, time_ns - time_ns % {width} AS begin, count() AS found,"
            " min(value) AS least, max(value) AS most, sum(value) AS total, max((time_ns, value)) AS newest"
            f" FROM {database}.metrics_rows WHERE {ddl.of_flush(flush)} AND isFinite(value)"
            " GROUP BY job, node, name, labels, begin"
        )
        rows = server.rows(query)
        if len(rows):
            found.append(_insert(level, rows.rename_columns(["job", *schema.LEVEL]), flush))
    return found


def _insert(level: str, rows: pa.Table, flush: int) -> Insert:
    numbered = rows.append_column("flush", pa.repeat(pa.scalar(flush, pa.uint64()), len(rows)))
    return Insert(f"{level}_rows", numbered, f"{flush}-{level}")
