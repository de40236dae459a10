"""Partial read of a recording too large for memory: periods spread over it, the same ones for every rank."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hindmost_judge.model import Run

from hindmost_collector.live.window import CAUSAL
from hindmost_collector.store.meta import is_other
from hindmost_collector.store.parquet import segments

#: Rows that are read of a table: judging takes up to 600 bytes of memory for a call, and half as much for a step.
MOST = {"collectives": 1_200_000, "steps": 1_200_000}
#: Metrics that causes are read from, up to about so many samples in all; all metrics where they are no more than that.
SAMPLES, ALL_SAMPLES = 400_000, 1_200_000
#: Periods in which a recording is read; fewer where one would hold fewer than this many steps.
PERIODS, STEPS_EACH = 24, 50
#: If collectives of fewer steps would fit, as in a very large job, more steps are read and fewer collectives: their
#: phases judge then. Shares of the most rows of each table that fit together with the other.
FEWEST, OF_STEPS, OF_CALLS = 30, 0.7, 0.4
#: By which time a row of a table is chosen; other tables are read whole.
TIME = {"collectives": "start_ns", "steps": "start_ns", "intervals": "start_ns", "metrics": "time_ns"}


class PartialRead(NamedTuple):
    """From ``first`` on, the first ``kept_ns`` of every ``every_ns``; ``steps`` that there are in all, if known.

    For collectives the first ``calls_ns`` only, where that is less.
    """

    first: int
    every_ns: int
    kept_ns: int
    steps: int | None
    sample_every: int
    calls_ns: int | None = None

    @property
    def note(self) -> str:
        length, every = self.kept_ns / 1e9, self.every_ns / 1e9
        calls = "" if self.calls_ns is None else f" ({self.calls_ns / 1e9:.3g} s of collectives)"
        return f"to stay in memory, {length:.3g} s of every {every:.3g} s{calls} were read; `hindmost query` reads all"

    def kept_of(self, table: str) -> int:
        """Ns of each period that are kept of a table."""
        return self.calls_ns if table == "collectives" and self.calls_ns is not None else self.kept_ns

    def covers(self, table: str, low: int, high: int) -> bool:
        """Whether anything of a table from ``low`` to ``high`` is kept."""
        since = (low - self.first) % self.every_ns
        return high - low >= self.every_ns or since < self.kept_of(table) or since + high - low >= self.every_ns

    def keeps(
        self, table: str, time: np.ndarray[tuple[int], np.dtype[np.int64]]
    ) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Row mask of a table."""
        return np.asarray((time - self.first) % self.every_ns < self.kept_of(table))


def plan(root: Path) -> PartialRead | None:
    """What to read of ``root/segments``; ``None``: all of it, it is small enough."""
    counts = {table: sum(group.num_rows for group in _groups(root / table)) for table in (*MOST, "metrics")}
    if not too_large(counts):
        return None
    times = [found for table in MOST for found in _ranges(root / table, "start_ns")]
    return spread(counts, times, list(_ranges(root / "steps", "step")))


def of_samples(root: Path) -> PartialRead | None:
    """What to read of the samples of ``root/segments`` where all else is read; ``None``: all of them, they are few."""
    count = sum(group.num_rows for group in _groups(root / "metrics"))
    return None if count <= ALL_SAMPLES else PartialRead(0, 1, 1, None, count // SAMPLES)


def too_large(counts: Mapping[str, int]) -> bool:
    """Whether tables of so many rows are not to be read whole."""
    return _ratio(counts) > 1


def _ratio(counts: Mapping[str, int]) -> float:
    return max(counts[table] / most for table, most in MOST.items())


def spread(
    counts: Mapping[str, int], times: Sequence[tuple[int, int]], numbers: Sequence[tuple[int, int]]
) -> PartialRead | None:
    """The part of tables to read of so many rows, over these times (ns) and numbers of steps, each as (first, last).

    ``None`` where no row has a time to choose it by.
    """
    if not times:
        return None
    ratio, of_calls = _ratio(counts), None
    first, last = min(low for low, _ in times), max(high for _, high in times)
    steps = max(high for _, high in numbers) - min(low for low, _ in numbers) + 1 if numbers else None
    if steps is not None and counts["steps"] and steps / ratio < FEWEST:
        ratio, of_calls = max(counts["steps"] / MOST["steps"] / OF_STEPS, 1.0), ratio / OF_CALLS
    periods = PERIODS if steps is None else int(np.clip(steps / ratio / STEPS_EACH, 1, PERIODS))
    every = max((last - first) // periods, 1)
    calls = int(every / of_calls) + 1 if of_calls is not None else None
    sampled = max(1, int(counts["metrics"] / ratio / SAMPLES))
    return PartialRead(first, every, int(every / ratio) + 1, steps, sampled, calls)


def said_of(run: Run, part: PartialRead | None) -> Run:
    """A run that was read in part, saying so; as it is where it was read whole."""
    if part is None:
        return run
    job = replace(run.job, steps=part.steps, skipped_ns=part.every_ns - part.kept_ns)
    return replace(run, job=job, notes=(*run.notes, part.note))


def read(path: Path, table: str, part: PartialRead) -> pa.Table:
    """The rows of a segment that belong to the part. Raises one of ``segments.TEARS`` when it is torn."""
    column = TIME.get(table)
    if column is None:
        return segments.read(path)
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        schema = file.schema_arrow
        batches = (_of(batch, table, column, part) for batch in _batches(file, table, column, part))
        filled = [piece for piece in batches if piece.num_rows]
        return pa.Table.from_batches(filled, schema) if filled else schema.empty_table()


def _batches(file: pq.ParquetFile, table: str, column: str, part: PartialRead) -> Iterator[pa.RecordBatch]:
    """Row groups that may hold something of the part, piece by piece."""
    place = file.schema_arrow.get_field_index(column)
    for number in range(file.num_row_groups):
        known = file.metadata.row_group(number).column(place).statistics
        if known is None or not known.has_min_max or part.covers(table, known.min, known.max):
            yield from file.iter_batches(1 << 16, row_groups=[number])


def _of(batch: pa.RecordBatch, table: str, column: str, part: PartialRead) -> pa.RecordBatch:
    time = batch.column(column).to_numpy(zero_copy_only=False)
    mask = part.keeps(table, time)
    if table == "metrics":
        names = batch.column("name").dictionary_encode() if pa.types.is_string(batch.column("name").type) else None
        coded = names if names is not None else batch.column("name")
        causal = np.array([name.startswith(CAUSAL) for name in coded.dictionary.to_pylist()] or [False])
        mask &= causal[coded.indices.to_numpy(zero_copy_only=False)]
        mask &= time // 1_000_000_000 % part.sample_every == 0
    return batch.filter(pa.array(mask))


def _groups(directory: Path) -> Iterator[pq.RowGroupMetaData]:
    """The row groups of a table's segments that are whole."""
    for segment in segments.listed(directory):
        if is_other(segment.path):
            continue
        try:
            found = pq.read_metadata(segment.path)
        except segments.TEARS:
            continue  # torn: the reader of the rows reports it
        yield from (found.row_group(number) for number in range(found.num_row_groups))


def _ranges(directory: Path, column: str) -> Iterator[tuple[int, int]]:
    """Least and greatest value of a column in each row group, as far as known."""
    for group in _groups(directory):
        place = next((i for i in range(group.num_columns) if group.column(i).path_in_schema == column), None)
        known = None if place is None else group.column(place).statistics
        if known is not None and known.has_min_max and known.min >= 0:
            yield known.min, known.max
