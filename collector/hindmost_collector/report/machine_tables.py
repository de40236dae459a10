"""Tables of ranks, nodes and GPUs: which metrics stand in which column, for ``hindmost top``, the page and its file.

Metrics are added up to a cell of a table: a rank's CPU time is that of its process and its descendants (DataLoader
workers), a node's disk traffic is that of all its disks. Counters are shown as rates. Not measured is ``None``.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from hindmost_judge.causes.telemetry import Metrics, with_gpus
from hindmost_judge.encoding import chosen
from hindmost_judge.model import Run
from hindmost_judge.types import Array, Floats

_PROCESS, _GPU, _NODE = "hindmost_process_", "hindmost_gpu_", "hindmost_node_"
#: Metric to the column that it is added to, by table.
RANKS: Mapping[str, str] = {
    f"{_PROCESS}cpu_seconds_total": "cpu",
    f"{_PROCESS}children_cpu_seconds_total": "cpu",
    f"{_PROCESS}runqueue_seconds_total": "cpu_wait",
    f"{_PROCESS}children_runqueue_seconds_total": "cpu_wait",
    f"{_PROCESS}resident_memory_bytes": "memory",
    f"{_PROCESS}children_resident_memory_bytes": "memory",
    f"{_PROCESS}read_bytes_total": "read",
    f"{_PROCESS}children_read_bytes_total": "read",
    f"{_PROCESS}written_bytes_total": "written",
    f"{_PROCESS}children": "children",
    f"{_GPU}process_memory_used_bytes": "gpu_memory",
}
NODES: Mapping[str, str] = {
    f"{_NODE}cpu_seconds_total": "cpu",
    f"{_NODE}cpus": "cpus",
    f"{_NODE}load1": "load",
    f"{_NODE}pressure_waiting_seconds_total": "wait",  # after its resource: cpu_wait, memory_wait, io_wait
    f"{_NODE}memory_used_bytes": "memory",
    f"{_NODE}memory_total_bytes": "memory_total",
    f"{_NODE}disk_read_bytes_total": "read",
    f"{_NODE}disk_written_bytes_total": "written",
    f"{_NODE}network_receive_bytes_total": "received",
    f"{_NODE}network_transmit_bytes_total": "sent",
    f"{_NODE}infiniband_receive_bytes_total": "received",
    f"{_NODE}infiniband_transmit_bytes_total": "sent",
}
GPUS: Mapping[str, str] = {
    f"{_GPU}utilization_ratio": "busy",
    f"{_GPU}sm_activity_ratio": "sm",
    f"{_GPU}memory_used_bytes": "memory",
    f"{_GPU}memory_total_bytes": "memory_total",
    f"{_GPU}sm_clock_hertz": "clock",
    f"{_GPU}sm_clock_max_hertz": "clock_max",
    f"{_GPU}temperature_celsius": "temperature",
    f"{_GPU}power_watts": "power",
    f"{_GPU}power_limit_watts": "power_limit",
}
_RANK_OF_GPU, _INFO = f"{_GPU}rank_info", f"{_GPU}info"
#: CPU modes that are no work; guest time is in that of users too.
_NOT_WORK = frozenset({"idle", "iowait", "guest", "guest_nice"})
#: Devices whose traffic is none, or is counted on the devices below them too.
NOT_A_WIRE = re.compile(r"lo$|docker|br-|virbr|bond|team|cni|flannel")


class Cell(NamedTuple):
    """Where a series goes: its ``key`` is ``(job, rank)``, a node, or a GPU's UUID."""

    table: str
    key: Any
    column: str


#: Values of tables by key and column.
Cells: TypeAlias = "dict[str, dict[Any, dict[str, Any]]]"


@functools.lru_cache(maxsize=1 << 17)
def cell(node: str, name: str, labels: str) -> Cell | None:
    """The cell of a series, whose labels are JSON; None for what no table has."""
    if name in RANKS or name == _RANK_OF_GPU:
        known = json.loads(labels)
        if not str(known.get("rank", "")).isdigit():
            return None
        key = known.get("job"), int(known["rank"])
        return Cell("ranks", key, RANKS[name] if name in RANKS else f"gpu:{known['gpu_uuid']}")
    if name in GPUS or name == _INFO:
        known = json.loads(labels)
        shown = f"info:{known.get('gpu', '')}:{known.get('model', '')}" if name == _INFO else GPUS[name]
        return Cell("gpus", (node, known["gpu_uuid"]), shown)
    if name not in NODES:
        return None
    known = json.loads(labels)
    wire = not name.startswith(f"{_NODE}network_") or not NOT_A_WIRE.match(known.get("device", ""))
    if known.get("mode") in _NOT_WORK or not wire:
        return None
    return Cell("nodes", node, f"{known['resource']}_{NODES[name]}" if "resource" in known else NODES[name])


def added_up(values: Iterable[tuple[Cell, float]]) -> Cells:
    """The tables' cells from the value of each series, a counter's as its rate."""
    found: Cells = {"ranks": {}, "nodes": {}, "gpus": {}}
    for (table, key, column), value in values:
        row = found[table].setdefault(key, {})
        kind, colon, rest = column.partition(":")
        if kind == "gpu" and colon:
            row["gpu"] = min(row.get("gpu", rest), rest)
        elif kind == "info":
            row["index"], _, row["model"] = rest.partition(":")
        else:
            row[column] = row.get(column, 0.0) + value
    return found


def machines(cells: Cells, ranks: Iterable[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of nodes and of GPUs, each with those of ``ranks`` (rows of rank, node and gpu) that run there."""
    on: dict[Any, list[int]] = {}
    for row in ranks:
        for where in (row["node"], (row["node"], row["gpu"])):
            on.setdefault(where, []).append(row["rank"])
    nodes = sorted({*cells["nodes"], *(where for where in on if isinstance(where, str))})
    gpus = sorted({*cells["gpus"], *(where for where in on if isinstance(where, tuple) and where[1])})
    return (
        [{"node": node, "ranks": on.get(node), **cells["nodes"].get(node, {})} for node in nodes],
        [{"node": key[0], "gpu": key[1], "ranks": on.get(key), **cells["gpus"].get(key, {})} for key in gpus],
    )


#: Samples of a series of a recording that its value is the median of, or the rate over: the newest ones.
_NEWEST, _NEWEST_NS = 30, 120_000_000_000


def of_run(run: Run) -> dict[str, Any]:
    """What the page's file shows of nodes and GPUs: as their newest samples in a recording have it."""
    run = with_gpus(run)
    table = run.metrics
    newest = table["time_ns"] >= table["time_ns"].max(initial=0) - _NEWEST_NS
    metrics = Metrics(replace(run, metrics=chosen(table, newest)))
    values = []
    for name in (*NODES, *GPUS):
        for one in metrics.series(name):
            where = cell(one.node, name, json.dumps(one.labels))
            if where is not None:
                values.append((where, _level(one.times, one.values, name)))
    columns = [run.ranks[name].tolist() for name in ("rank", "node", "gpu_uuid")]
    ranks = [{"rank": rank, "node": node, "gpu": gpu} for rank, node, gpu in zip(*columns, strict=True)]
    nodes, gpus = machines(added_up(values), ranks)
    return shown(nodes, gpus)


def _level(times: Array, values: Floats, metric: str) -> float:
    times, values = times[-_NEWEST:], values[-_NEWEST:]
    if not metric.endswith("_total"):
        return float(np.median(values))
    seconds = (int(times[-1]) - int(times[0])) / 1e9
    return float((values[-1] - values[0]) / seconds) if seconds > 0 else float("nan")


#: What the page shows of nodes and GPUs: title, column, how it is written.
_OF_NODES = (
    ("CPUs", "cpus", "number"),
    ("CPUs used", "cpu", "number"),
    ("wait for CPU", "cpu_wait", "ratio"),
    ("wait for memory", "memory_wait", "ratio"),
    ("wait for I/O", "io_wait", "ratio"),
)
_OF_GPUS = (
    ("busy", "busy", "ratio"),
    ("SM active", "sm", "ratio"),
    ("clock", "clock", "hertz"),
    ("power", "power", "watts"),
    ("memory", "memory", "bytes"),
    ("temperature", "temperature", "celsius"),
)


def shown(nodes: Iterable[Mapping[str, Any]], gpus: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What the page shows of rows of nodes and GPUs: those of its job's ranks, and columns with any value."""
    return {"nodes": _shown(nodes, _OF_NODES), "gpus": _shown(gpus, _OF_GPUS)}


def _shown(machines: Iterable[Mapping[str, Any]], wanted: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    rows = [row for row in machines if row["ranks"] and row["node"]]
    columns = []
    for title, name, unit in wanted:
        values = [row.get(name) for row in rows]
        known = [None if value is None or value != value else float(f"{value:.5g}") for value in values]  # noqa: PLR0124 - NaN
        if any(one is not None for one in known):
            columns.append({"name": title, "unit": unit, "values": known})
    names = {name: [row.get(name) for row in rows] for name in ("node", "gpu", "ranks")}
    return {**names, "columns": columns}
