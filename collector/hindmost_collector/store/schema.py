"""What a stored table looks like: Arrow schemas made from the run model, how each column is encoded, and versions.

One table exists only in the store, because it says how good the rest is: ``clocks`` (how each node's clock was mapped
to the job clock, and how surely).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from hindmost_judge.encoding import thinned
from hindmost_judge.model import TABLES, UNMEASURED, Table

from hindmost_collector.ingest.row_builder import texts

#: Version of the stored columns, written into every segment; a reader refuses what is newer than itself.
VERSION = 1
VERSION_KEY = b"hindmost.schema"

CLOCKS: Mapping[str, Any] = {
    "node": np.str_,
    "boot_id": np.str_,
    "time_ns": np.int64,
    "offset_ns": np.int64,
    "drift_ppb": np.int64,
    "uncertainty_ns": np.int64,
    "round_trip_ns": np.int64,
}

STORED: Mapping[str, Mapping[str, Any]] = {**TABLES, "clocks": CLOCKS}

#: Tables that are sent once, and to which all others refer: a job keeps them for as long as it has anything else.
IDENTITY = frozenset({"ranks", "communicators"})

#: Coarser levels of ``metrics`` and the width of their intervals, ns.
LEVELS: Mapping[str, int] = {
    "metrics_30s": 30_000_000_000,
    "metrics_5m": 300_000_000_000,
    "metrics_1h": 3_600_000_000_000,
}

#: How many times as long as samples each level is kept.
LEVELS_KEPT: Mapping[str, int] = {"metrics_30s": 4, "metrics_5m": 16, "metrics_1h": 64}

#: A row a series and interval; ``time_ns`` is where the interval starts, ``last`` its newest value, for counters.
LEVEL: Mapping[str, Any] = {
    "node": np.str_,
    "name": np.str_,
    "labels": np.str_,
    "time_ns": np.int64,
    "count": np.int64,
    "min": np.float64,
    "max": np.float64,
    "sum": np.float64,
    "last": np.float64,
}

#: Every table that there are segments of.
FILED: Mapping[str, Mapping[str, Any]] = {**STORED, **dict.fromkeys(LEVELS, LEVEL)}

#: Columns that a table did not have from the beginning: segments of older runs lack them.
ADDED: Mapping[str, tuple[str, ...]] = {
    "steps": ("negotiation_ns", "device_wait_ns", "device_copy_ns"),
    "collectives": ("enqueue_ns",),
    "in_flight": ("peer", "flags"),
    "rank_states": ("ended_ns", "exit_status", "last_words"),
}

#: Columns that order a segment's rows: neighbours alike compress best and are read together.
ORDER: Mapping[str, tuple[str, ...]] = {
    "steps": ("rank", "step"),
    "collectives": ("rank", "start_ns"),
    "intervals": ("rank", "start_ns"),
    "metrics": ("node", "name", "labels", "time_ns"),
    **dict.fromkeys(LEVELS, ("node", "name", "labels", "time_ns")),
}

_STRING = pa.dictionary(pa.int32(), pa.string())


def arrow_type(dtype: Any) -> pa.DataType:
    """The Arrow type that keeps a model column; strings are dictionary-coded."""
    return _STRING if dtype is np.str_ else pa.from_numpy_dtype(np.dtype(dtype))


def arrow_schema(table: str) -> pa.Schema:
    """The schema of a stored table, with its version in the metadata."""
    columns = [pa.field(name, arrow_type(dtype), nullable=False) for name, dtype in FILED[table].items()]
    return pa.schema(columns, metadata={VERSION_KEY: str(VERSION).encode()})


def encodings(table: str, *, passing: bool = False) -> tuple[list[str], dict[str, str]]:
    """``(dictionary columns, encoding by other column)`` for the Parquet writer, as measured smallest.

    Integers are deltas. In samples, all series of a node have the same times, which zstd finds in whole integers:
    deltas hide it, and so do codes, which are cut into bits, wherever a series lacks a sample. It also finds more in
    whole doubles of counters than in their bytes split apart.
    """
    columns = FILED[table]
    samples = table == "metrics" or table in LEVELS
    plain: dict[str, str] = {}
    for name, dtype in columns.items():
        if samples and name == "time_ns":
            plain[name] = "PLAIN"
        elif dtype is np.float64:
            plain[name] = "PLAIN" if samples and not passing else "BYTE_STREAM_SPLIT"
        elif dtype not in {np.str_, np.uint64} and not samples:  # communicator ids are few and random: a dictionary
            plain[name] = "DELTA_BINARY_PACKED"
    return [name for name in columns if name not in plain], plain


def compression(table: str, *, passing: bool = False) -> tuple[dict[str, str], dict[str, int]]:
    """``(codec by column, level by column)`` for the Parquet writer: zstd for what stays.

    A flush, which is to be merged, is written in two thirds of the time with LZ4. It is hardly larger as long as
    measured values, which LZ4 leaves half as large again, are under zstd.
    """
    columns = FILED[table]
    if not passing:
        return dict.fromkeys(columns, "zstd"), dict.fromkeys(columns, 3)
    codecs = {name: "zstd" if dtype is np.float64 else "lz4" for name, dtype in columns.items()}
    return codecs, {name: 1 for name, codec in codecs.items() if codec == "zstd"}


def noted(table: str, *, passing: bool = False) -> list[str] | bool:
    """The columns whose least and greatest value in each row group the Parquet writer notes: rows are found and merged
    by them.

    The others are never searched, and noting them takes as long as writing them. Small tables note all columns.
    """
    order = ORDER.get(table)
    if order is None:
        return True
    times = [name for name in FILED[table] if name in {"time_ns", "start_ns", "step"}]
    wanted = order[:1] if passing else [name for name in order if name != "labels"]
    return list(dict.fromkeys((*wanted, *times)))


def missing_column(dtype: Any, count: int) -> np.ndarray[Any, Any]:
    """What a column holds where a segment of an older version lacks it: not measured."""
    if dtype is np.str_:
        return np.full(count, "", dtype=np.str_)
    if dtype is np.float64:
        return np.full(count, np.nan)
    return np.zeros(count, dtype) if dtype is np.uint64 else np.full(count, UNMEASURED, dtype)


def to_numpy(table: str, data: pa.Table) -> Table:
    """Arrow columns as the model's numpy columns; columns unknown here are dropped, missing ones are *not measured*."""
    present, pointed = set(data.column_names), table == "metrics"
    return {
        name: thinned(_column(data.column(name), dtype, pointed=pointed))
        if name in present
        else thinned(missing_column(dtype, data.num_rows))
        for name, dtype in STORED[table].items()
    }


def _column(column: pa.ChunkedArray, dtype: Any, *, pointed: bool) -> np.ndarray[Any, Any]:
    """A column as the model has it; words ``pointed`` at where they are long and repeat, as in the live windows."""
    if dtype is not np.str_:
        return np.asarray(column.to_numpy(), dtype=dtype)
    if len(column) == 0:
        return np.empty(0, dtype=np.str_)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    joined = column.unify_dictionaries().combine_chunks()
    whole = joined.chunk(0) if isinstance(joined, pa.ChunkedArray) else joined
    entries = whole.dictionary.to_pylist()
    words = np.array(entries, object) if pointed else texts(entries)
    indices: np.ndarray[Any, Any] = whole.indices.to_numpy(zero_copy_only=False)
    return np.asarray(words[indices])
