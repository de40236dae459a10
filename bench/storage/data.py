"""Simulated nodes, steps and collectives, with the entropy of real ones, as they arrive: ten seconds at a time."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from hindmost_collector.ingest.definitions import Definitions, Schema, Series
from hindmost_collector.ingest.row_builder import MetricRows
from hindmost_collector.store import schema
from hindmost_judge.model import PHASES

FLUSH_S = 10
SECOND = 1_000_000_000
SERIES = 340
#: One sample in so many could not be read: series of one length would make some encodings look better than they are.
MISSING = 1000
MEASURED = ("input", "forward", "backward", "sync", "optimizer")

#: Kinds of series and their share, as an agent on a Linux host had them: (share, name, what changes in a second).
KINDS = (
    (0.45, "constant", None),
    (0.14, "cpu_seconds_total", ("ticks", 0.01, 40)),
    (0.08, "runqueue_seconds_total", ("ticks", 1e-9, 30_000_000)),
    (0.20, "bytes_total", ("ticks", 1.0, 3_000_000)),
    (0.08, "memory_bytes", ("walk", 4096.0, 2000)),
    (0.05, "gauge", ("level", 1.0, 12)),
)


def definitions() -> tuple[Definitions, np.ndarray[Any, Any]]:
    """A schema of SERIES series, and the kind of each as an index into KINDS."""
    counts = [round(share * SERIES) for share, _, _ in KINDS]
    counts[0] += SERIES - sum(counts)
    kinds = np.repeat(np.arange(len(KINDS)), counts)
    series = tuple(
        Series(f"hindmost_bench_{KINDS[kind][1]}_{number // 8}", False, "", f'{{"device":"d{number % 8}"}}')
        for number, kind in enumerate(kinds)
    )
    made = Definitions()
    made.schemas[1] = Schema(series)
    return made, kinds


def metrics(
    nodes: int, seconds: int, start_ns: int, kinds: np.ndarray[Any, Any], seed: int = 1
) -> Iterator[list[MetricRows]]:
    """What all nodes send in each ten seconds."""
    random = np.random.default_rng(seed)
    state = random.integers(0, 1 << 30, (nodes, SERIES)).astype(np.int64)
    busy = random.random((nodes, SERIES)) ** 3  # most devices have little to do
    units = np.array([1.0 if change is None else change[1] for _, _, change in KINDS])[kinds]
    for first in range(0, seconds, FLUSH_S):
        values = np.empty((nodes, FLUSH_S, SERIES))
        for tick in range(FLUSH_S):
            state = _next(state, busy, kinds, random)
            values[:, tick] = state * units
        jitter = random.integers(0, 2_000_000, (nodes, FLUSH_S))
        times = start_ns + (first + np.arange(FLUSH_S)) * SECOND + jitter
        values[random.random(values.shape) < 1 / MISSING] = np.nan
        yield [MetricRows.of(f"node{node:05}", 1, times[node], values[node]) for node in range(nodes)]


def _next(state: Any, busy: Any, kinds: Any, random: np.random.Generator) -> Any:
    state = state.copy()
    for index, (_, _, change) in enumerate(KINDS):
        if change is None:
            continue
        what, _, size = change
        mine = kinds == index
        drawn = random.integers(0, size, state[:, mine].shape)
        if what == "level":
            state[:, mine] = drawn
        else:
            active = random.random(drawn.shape) < busy[:, mine] * 2
            state[:, mine] += np.where(active, drawn - (size // 2 if what == "walk" else 0), 0)
    return state


def steps(ranks: int, count: int, start_ns: int, seed: int = 2) -> Iterator[pa.Table]:
    """Steps of about a second in which rank 3 computes longer, in flushes of FLUSH_S steps of every rank."""
    random = np.random.default_rng(seed)
    own = 1.0 + 0.02 * random.random(ranks)
    own[3] += 0.08
    for first in range(0, count, FLUSH_S):
        number = np.arange(first, min(first + FLUSH_S, count))
        shape = ranks, len(number)
        phases = {
            name: (share * SECOND * own[:, None] * (1 + 0.01 * random.standard_normal(shape))).astype(np.int64)
            for name, share in zip(MEASURED, (0.03, 0.25, 0.5, 0.1, 0.05), strict=True)
        }
        total = sum(phases.values())
        duration = np.broadcast_to(total.max(axis=0), shape) + random.integers(0, 200_000, shape)
        begin = start_ns + number * SECOND + random.integers(0, 300_000, shape)
        columns = {
            "rank": np.repeat(np.arange(ranks, dtype=np.int32), len(number)),
            "step": np.tile(number, ranks),
            "start_ns": begin.ravel(),
            "duration_ns": duration.ravel(),
            **{f"{name}_ns": values.ravel() for name, values in phases.items()},
        }
        yield _table("steps", columns, {"kind": "train"})


def collectives(ranks: int, count: int, each: int, start_ns: int, seed: int = 3) -> Iterator[pa.Table]:
    """``each`` all-reduces a step of every rank, in flushes of FLUSH_S steps."""
    random = np.random.default_rng(seed)
    for first in range(0, count, FLUSH_S):
        number = np.arange(first * each, min(first + FLUSH_S, count) * each)
        shape = ranks, len(number)
        late = random.integers(0, 4_000_000, shape)
        columns = {
            "rank": np.repeat(np.arange(ranks, dtype=np.int32), len(number)),
            "comm": np.full(ranks * len(number), 77, np.uint64),
            "seq": np.tile(number, ranks),
            "start_ns": (start_ns + number * (SECOND // each) + late).ravel(),
            "duration_ns": (9_000_000 - late + random.integers(0, 50_000, shape)).ravel(),
            "bytes": np.tile((1 << 20) << (number % 4), ranks),
            "self_ns": (SECOND // each - 9_000_000 + late).ravel(),
            "flags": np.zeros(ranks * len(number), np.int32),
            "step": np.tile(number // each, ranks),
        }
        yield _table("collectives", columns, {"op": "all_reduce"})


def ranks(count: int) -> pa.Table:
    """Who is where, eight ranks a node."""
    target = schema.arrow_schema("ranks")
    columns: dict[str, Any] = {field.name: [""] * count for field in target if pa.types.is_dictionary(field.type)}
    columns |= {"rank": range(count), "node": [f"node{rank // 8:05}" for rank in range(count)]}
    arrays = [pa.array(list(columns.get(field.name, [count] * count)), field.type) for field in target]
    return pa.Table.from_arrays(arrays, schema=target)


def _table(name: str, columns: dict[str, Any], words: dict[str, str]) -> pa.Table:
    target = schema.arrow_schema(name)
    rows = len(columns["rank"])
    arrays = []
    for field in target:
        if field.name in words:
            codes = pa.array(np.zeros(rows, np.int32))
            arrays.append(pa.DictionaryArray.from_arrays(codes, pa.array([words[field.name]])))
        else:
            values = columns.get(field.name)
            arrays.append(pa.array(np.full(rows, -1) if values is None else values, field.type))
    return pa.Table.from_arrays(arrays, schema=target)


assert {f"{name}_ns" for name in MEASURED} <= {f"{name}_ns" for name in PHASES}
