"""What a collector has stored, and rows as it stores them."""

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from hindmost_collector.store.parquet.store import ParquetStore
from hindmost_collector.store.schema import arrow_schema


def steps(directory: Path) -> list[tuple[int, int]]:
    """``(rank, step)`` of every row of steps, in order."""
    stored = duckdb.read_parquet(f"{directory}/segments/steps/*.parquet")
    return stored.project("rank, step").order("rank, step").fetchall()


def rows_of(table: str, other: int = -1, /, **columns: Any) -> pa.Table:
    """Rows of a table; a number of which nothing is said is ``other``, a word `train`."""
    schema = arrow_schema(table)
    values = {one.name: "train" if pa.types.is_dictionary(one.type) else other for one in schema} | columns
    shape = np.broadcast_shapes((1,), *map(np.shape, columns.values()))
    arrays = [pa.array(np.broadcast_to(values[one.name], shape).tolist(), one.type) for one in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def write(folder: Path, tables: dict[tuple[str, str], list[pa.Table]], *, single: bool = True) -> None:
    """Into the store of one job, or of several: one flush."""
    store = ParquetStore(folder, single=single)
    store.write(tables, {})
    store.close()
