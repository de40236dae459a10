"""The ClickHouse side of a stored table: columns, codecs, sort order, retention; on one server or on a cluster.

Each table of the store is three objects there, so that no reader ever sees half a flush:

``TABLE_rows``
    every row that was sent, with the number of its flush; on a cluster a Distributed table over ``TABLE_local``, which
    is replicated.
``flushes``
    the flushes that are complete. A flush's row is inserted last, and makes its rows valid.
``TABLE``
    the view that people and hindmost read: the rows of complete flushes.

The engine adds up the coarser levels of samples: their rows are inserted when their flush is complete, and then
merge, across flushes, into one a series and interval.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from hindmost_collector.store.schema import IDENTITY, LEVEL, LEVELS, LEVELS_KEPT, STORED

#: A flush's number is its start in Unix ms times 2**20, plus a random part: unique among collectors, ordered in time.
FLUSH_BITS = 20
_WRITTEN = f"toDateTime(intDiv(bitShiftRight(flush, {FLUSH_BITS}), 1000), 'UTC')"

#: Tables that are the store's own: what flushes, agents and files there are.
OWN: Mapping[str, Mapping[str, Any]] = {
    "agents": {"identity": np.str_, "sequence": np.uint64, "slot": np.uint64},
    "files": {"name": np.str_, "content": bytes},
    "lines": {"name": np.str_, "line": bytes},
}
TABLES: Mapping[str, Mapping[str, Any]] = {**STORED, **OWN, **dict.fromkeys(LEVELS, LEVEL)}
#: Tables whose rows are valid without their flush; a repeated row counts once.
ALONE = frozenset({"files", "lines", *IDENTITY, *LEVELS})
#: How many times as long as the rest tables are kept that say more with few rows.
LONGER: Mapping[str, int] = {**LEVELS_KEPT, **dict.fromkeys(IDENTITY, max(LEVELS_KEPT.values()))}
#: How a level's rows of the same series and interval become one; the last value is a pair, with its time before it.
MERGED: Mapping[str, tuple[str, str]] = {
    "count": ("sum", "Int64"),
    "min": ("min", "Float64"),
    "max": ("max", "Float64"),
    "sum": ("sum", "Float64"),
    "last": ("max", "Tuple(Int64, Float64)"),
    "flush": ("max", "UInt64"),
}
#: Days that flushes and agents' sequences are kept for beyond the rows: an agent may come back late, and replay.
MARGIN_DAYS = 7.0

ORDER: Mapping[str, tuple[str, ...]] = {
    "steps": ("job", "rank", "step"),
    "collectives": ("job", "rank", "start_ns"),
    "intervals": ("job", "rank", "start_ns"),
    "metrics": ("job", "node", "name", "labels", "time_ns"),
    **dict.fromkeys(LEVELS, ("job", "node", "name", "labels", "time_ns")),
    "operations": ("job", "rank", "step"),
    "agents": ("identity", "slot"),
    "files": ("job", "name", "flush"),
    "lines": ("job", "name", "flush"),
}

#: Columns that go up by about the same from row to row of the sort order.
_STEADY = frozenset({"step", "seq"})
_TEXT = frozenset({"text", "line", "content"})


class Place(NamedTuple):
    """Where the tables are: a database, and the cluster that it is spread over (empty: one server)."""

    database: str
    cluster: str = ""


def quoted(name: str) -> str:
    """An identifier."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def of_flush(flush: int) -> str:
    """The condition for the rows of a flush; only the day's partition is looked through."""
    return f"flush = {flush} AND written = toDateTime({(flush >> FLUSH_BITS) // 1000}, 'UTC')"


def columns(table: str) -> Iterator[tuple[str, str, str]]:
    """``(name, type, codec)`` of each column as inserted."""
    yield "job", "LowCardinality(String)", "ZSTD(1)"
    for name, dtype in {**TABLES[table], "flush": np.uint64}.items():
        kind, codec = _kind(name, dtype)
        if table in LEVELS and name in MERGED:
            kind = f"SimpleAggregateFunction({', '.join(MERGED[name])})"
            codec = "ZSTD(1)" if name == "last" else codec
        yield name, kind, codec


def _kind(name: str, dtype: Any) -> tuple[str, str]:
    if dtype is bytes or name in _TEXT:
        return "String", "ZSTD(3)"
    if dtype is np.str_:
        return "LowCardinality(String)", "ZSTD(1)"
    if dtype is np.float64:
        return "Float64", "Delta, ZSTD(1)"  # smaller than Gorilla on an agent's samples: most are counters of integers
    integer = ("UInt" if np.dtype(dtype).kind == "u" else "Int") + str(np.dtype(dtype).itemsize * 8)
    return integer, _codec(name, dtype)


def _codec(name: str, dtype: Any) -> str:
    if name in _STEADY:
        return "DoubleDelta, ZSTD(1)"
    if name.endswith("start_ns") or name in {"observed_ns", "time_ns", "flush"}:
        return "Delta, ZSTD(1)"
    low_cardinality = dtype is np.uint64 or name in {"rank", "flags", "peer"}
    return "ZSTD(1)" if low_cardinality else "T64, ZSTD(1)"


def statements(place: Place, retention_days: float = 0.0) -> Iterator[str]:
    """All statements that create the missing parts of the store, in order."""
    on = _on(place)
    database = quoted(place.database)
    yield f"CREATE DATABASE IF NOT EXISTS {database}{on}"
    flushes = (
        "flush UInt64 CODEC(Delta, ZSTD(1)), collector LowCardinality(String), clock String CODEC(ZSTD(1)), void UInt8"
    )
    yield from _stored(place, "flushes", flushes, "flush", kept_days("flushes", retention_days), "rand()")
    for table in TABLES:
        listed = ", ".join(f"{quoted(name)} {kind} CODEC({codec})" for name, kind, codec in columns(table))
        order = ", ".join(ORDER.get(table, ("job", *(["rank"] if "rank" in TABLES[table] else []))))
        spread = next((one for one in ("rank", "node", "identity") if one in TABLES[table]), "name")
        days = kept_days(table, retention_days)
        yield from _stored(place, f"{table}_rows", listed, order, days, f"cityHash64(job, {spread})")
        yield f"CREATE OR REPLACE VIEW {database}.{quoted(table)}{on} AS {_shown(database, table)}"


def _shown(database: str, table: str) -> str:
    """What a table's view selects."""
    if table in LEVELS:
        keys = ", ".join(ORDER[table])
        found = ", ".join(f"{how}(part.{name}) AS {name}" for name, (how, _) in MERGED.items() if name != "last")
        last = "tupleElement(max(part.last), 2) AS last"
        return f"SELECT {keys}, {found}, {last} FROM {database}.{table}_rows AS part GROUP BY {keys}"
    whole = f" WHERE flush GLOBAL IN (SELECT flush FROM {database}.flushes GROUP BY flush HAVING max(void) = 0)"
    shown = ", ".join(quoted(name) for name, _, _ in columns(table))
    return f"SELECT {shown} FROM {database}.{table}_rows{'' if table in ALONE else whole}"


def _on(place: Place) -> str:
    return f" ON CLUSTER {quoted(place.cluster)}" if place.cluster else ""


def _stored(place: Place, name: str, listed: str, order: str, days: float, spread: str) -> Iterator[str]:
    """A table that holds rows: one, or a replicated one on each shard and one that spreads rows over them."""
    on, database = _on(place), quoted(place.database)
    local = name.removesuffix("_rows") + "_local" if place.cluster else name
    newest = name == "agents_rows"  # of each slot the newest row is enough, whatever its day
    level = name.removesuffix("_rows") in LEVELS
    merging = "Replacing" if newest else "Aggregating" if level else ""
    partition = "" if newest else f" PARTITION BY toYYYYMM{'' if level else 'DD'}(written)"
    replicated = "'/clickhouse/tables/{shard}/{database}/{table}', '{replica}'" if place.cluster else ""
    arguments = ", ".join(one for one in (replicated, "flush" if newest else "") if one)
    engine = f"{'Replicated' if place.cluster else ''}{merging}MergeTree({arguments})"
    written = f"written DateTime('UTC') MATERIALIZED {_WRITTEN} CODEC(Delta, ZSTD(1))"
    yield (
        f"CREATE TABLE IF NOT EXISTS {database}.{local}{on} ({listed}, {written}) ENGINE = {engine}"
        f"{partition} ORDER BY ({order}){ttl(days)}"
        # acknowledged means that it survives a power cut; a repeated insert is one insert
        f" SETTINGS fsync_after_insert = 1, fsync_part_directory = 1, ttl_only_drop_parts = {0 if newest else 1},"
        f" {'replicated' if place.cluster else 'non_replicated'}_deduplication_window = 10000"
    )
    if place.cluster:
        yield (
            f"CREATE TABLE IF NOT EXISTS {database}.{name}{on} AS {database}.{local}"
            f" ENGINE = Distributed({quoted(place.cluster)}, {database}, {local}, {spread})"
        )


def ttl(days: float) -> str:
    """The clause that lets rows go after ``days``; empty for never."""
    return f" TTL written + toIntervalSecond({round(days * 86400)})" if days else ""


def kept_days(table: str, days: float) -> float:
    """For how long a table's rows are kept where data is kept for ``days``; zero for ever."""
    return days + MARGIN_DAYS if days and table in {"agents", "flushes"} else days * LONGER.get(table, 1)


def retention(place: Place, days: float) -> Iterator[tuple[str, str, str]]:
    """``(table that holds rows, its retention's clause, statement that sets it)``, for one made with another."""
    for table in (*TABLES, "flushes"):
        name = table if table == "flushes" else f"{table}_rows"
        local = f"{table}_local" if place.cluster else name
        clause = ttl(kept_days(table, days))
        change = f"MODIFY{clause}" if clause else "REMOVE TTL"
        yield local, clause, f"ALTER TABLE {quoted(place.database)}.{local}{_on(place)} {change}"


def additions(place: Place, present: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """What adds the columns that ``present`` (columns by table) lacks: older rows read as *not measured*."""
    for table in TABLES:
        for name, kind, codec in columns(table):
            for holder in (f"{table}_local", f"{table}_rows"):
                if holder in present and name not in present[holder]:
                    compressed = "" if place.cluster and holder.endswith("_rows") else f" CODEC({codec})"
                    yield (
                        f"ALTER TABLE {quoted(place.database)}.{holder}{_on(place)}"
                        f" ADD COLUMN IF NOT EXISTS {quoted(name)} {kind}{_missing(kind)}{compressed}"
                    )


def _missing(kind: str) -> str:
    if kind == "Float64":
        return " DEFAULT nan"
    return " DEFAULT -1" if kind.startswith("Int") else ""
