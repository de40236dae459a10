"""What arrived for one job in one tick, as arrays on the job clock: the one shape that store, window, totals take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hindmost_judge.encoding import is_constant, joined, repeated
from hindmost_judge.model import COLLECTIVES, GPU_TIME, INTERVALS, STEPS, TABLES, Table

from hindmost_collector.ingest.row_builder import JobRows, MetricRows, Words, held_bytes, texts
from hindmost_collector.store.schema import STORED

#: Columns whose words travel as codes until they leave the collector.
CODED: Mapping[str, str] = {"steps": "kind", "collectives": "op", "intervals": "name"}


@dataclass(frozen=True)
class Chunk:
    """One tick of one job. ``coded`` tables hold codes in place of words in the columns that ``CODED`` names;
    ``heard`` is the job time of each node's newest sample; ``in_order`` says that no sample is older than those of
    its node in ticks before; ``metric_bytes`` is about what ``metrics`` hold."""

    coded: Mapping[str, Table]
    plain: Mapping[str, Table]
    metrics: Sequence[MetricRows]
    attachments: Sequence[tuple[str, bytes]]
    heard: Mapping[str, int] = field(default_factory=dict)
    in_order: bool = False
    metric_bytes: int = 0

    @property
    def bytes(self) -> int:
        """About how much memory it holds."""
        tables = (*self.coded.values(), *self.plain.values())
        return (
            sum(held_bytes(column) for table in tables for column in table.values())
            + self.metric_bytes
            + sum(len(content) for _, content in self.attachments)
        )

    @property
    def empty(self) -> bool:
        return not (self.coded or self.plain or self.metrics or self.attachments)

    def definitions(self) -> Chunk:
        """Only what says who is who: it is sent once, not with the batches that a sequence number covers."""
        return Chunk({}, {name: self.plain[name] for name in ("ranks", "communicators") if name in self.plain}, [], [])


def finish(rows: JobRows) -> Chunk:
    """Turn gathered rows into arrays; host times become job times."""
    coded: dict[str, Table] = {}
    for table, columns in (("steps", STEPS), ("collectives", COLLECTIVES), ("intervals", INTERVALS)):
        builder = getattr(rows, table)
        if builder.rows:
            coded[table] = _on_job_clock(builder.take(), columns)
    lists = ("ranks", "communicators", "in_flight", "rank_states", "clocks", "stacks")
    plain = {table: from_rows(table, found) for table in lists if (found := getattr(rows, table))}
    files = [(path, b"".join(parts)) for path, parts in rows.attachments.items()]
    return Chunk(coded, plain, rows.metrics, files, rows.heard, rows.in_order, rows.metric_bytes)


def _on_job_clock(table: Table, columns: Mapping[str, Any]) -> Table:
    offset, flags = table.pop("offset"), table.get("flags")
    for name in ("start_ns", "enqueue_ns"):
        times = table.get(name)
        if times is None or (is_constant(times) and times[0] == -1):
            continue
        known = times != -1
        if name == "start_ns" and flags is not None:
            known &= (flags & GPU_TIME) == 0
        table[name] = np.where(known, times + offset, times)
    return {name: table[name] if dtype is np.str_ else _typed(table[name], dtype) for name, dtype in columns.items()}


def _typed(column: np.ndarray[Any, Any], dtype: Any) -> np.ndarray[Any, Any]:
    """A column of that type, as one value where it was one."""
    if is_constant(column):
        return repeated(column[0], len(column), dtype)
    return column.astype(dtype, copy=False)


#: The order in which rows of the small tables are gathered, where it is not the stored one.
_GATHERED: Mapping[str, tuple[str, ...]] = {"communicators": ("comm", "rank", "rank_in", "size", "name")}


def from_rows(table: str, found: Sequence[tuple[Any, ...]]) -> Table:
    """A small table from tuples in the order of its columns."""
    names = _GATHERED.get(table) or tuple(STORED[table])
    return {name: _column([row[index] for row in found], STORED[table][name]) for index, name in enumerate(names)}


def _column(values: list[Any], dtype: Any) -> np.ndarray[Any, Any]:
    return texts(values) if dtype is np.str_ else np.array(values, dtype=dtype)


def with_words(table: str, columns: Table, words: Words) -> Table:
    """A coded table as the model wants it, codes replaced by words."""
    coded = CODED[table]
    return {name: words.of(column) if name == coded else column for name, column in columns.items()}


def concatenated(table: str, parts: Sequence[Table]) -> Table:
    """Several pieces of one table as one."""
    if len(parts) == 1:
        return parts[0]
    names = TABLES[table] if table in TABLES else STORED[table]
    return {name: joined([part[name] for part in parts]) for name in names}
