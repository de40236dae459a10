"""Coarser levels of the samples, for long ranges: min, max, sum, count and last value of each series and interval.

A level's segment is made with one segment of ``metrics`` and has its name: what has a counterpart is in the level, what
has none is still to be taken from the samples. So nothing is counted twice, and a level is complete at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hindmost_collector.store import schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    Array = np.ndarray[Any, Any]

_SERIES = ("node", "name", "labels")


def levels(samples: pa.Table) -> dict[str, pa.Table]:
    """``{level: its rows}`` of samples that are sorted by series and then time, words as dictionaries."""
    return {name: _table(columns, schema.arrow_schema(name)) for name, columns in reduced(samples).items()}


def _table(columns: dict[str, Any], target: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays([pa.array(columns[field.name], field.type) for field in target], schema=target)


def reduced(samples: pa.Table) -> dict[str, dict[str, Any]]:
    """The same as columns, and ``last_ns``: when each interval's last sample was taken."""
    codes = [_codes(samples.column(name)) for name in _SERIES]
    times, values = samples.column("time_ns").to_numpy(), samples.column("value").to_numpy()
    kept = np.isfinite(values)
    if not kept.all():
        codes, times, values = [column[kept] for column in codes], times[kept], values[kept]
    words = [samples.column(name).chunk(0).dictionary for name in _SERIES]
    return {name: _level(width, codes, words, times, values) for name, width in schema.LEVELS.items()}


def _codes(column: pa.ChunkedArray) -> Array:
    indices: Array = column.chunk(0).indices.to_numpy(zero_copy_only=False)
    return indices


def _level(
    width: int, codes: Sequence[Array], words: Sequence[pa.Array], times: Array, values: Array
) -> dict[str, Any]:
    starts = times - times % width
    first = np.ones(len(times), dtype=bool)
    if len(times):
        first[1:] = starts[1:] != starts[:-1]
        for column in codes:
            first[1:] |= column[1:] != column[:-1]
    at = np.flatnonzero(first)
    count = np.diff(np.append(at, len(times)))
    columns: dict[str, Any] = {
        series: pa.DictionaryArray.from_arrays(pa.array(column[at], pa.int32()), told)
        for series, column, told in zip(_SERIES, codes, words, strict=True)
    }
    last = at + count - 1
    columns |= {"time_ns": starts[at], "count": count, "last": values[last], "last_ns": times[last]}
    for statistic, reduce in (("min", np.minimum), ("max", np.maximum), ("sum", np.add)):
        columns[statistic] = reduce.reduceat(values, at) if len(at) else values
    return columns
