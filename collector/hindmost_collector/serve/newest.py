"""The newest state of a job's ranks, of nodes and GPUs as tables: what ``hindmost top`` shows, of a collector or a run.

Metrics are added up to a cell of a table: a rank's CPU time is that of its process and its descendants (DataLoader
workers), a node's disk traffic is that of all its disks. Counters are shown as rates. Not measured is ``None``.
"""

from __future__ import annotations

import functools
import json
import re
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from hindmost_judge.verdict.schema import STOPS

from hindmost_collector.report import columns
from hindmost_collector.report.verdict_lines import of_verdict, rendered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from hindmost_collector.components import Components
    from hindmost_collector.ingest.definitions import Schema
    from hindmost_collector.ingest.row_builder import MetricRows, Origin
    from hindmost_collector.live.jobs import LiveJob

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
    f"{_NODE}pressure_waiting_seconds_total": "cpu_wait",
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
_NOT_A_WIRE = re.compile(r"lo$|docker|br-|virbr|bond|team|cni|flannel")


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
    left_out = (
        known.get("mode") in _NOT_WORK
        or known.get("resource", "cpu") != "cpu"
        or (name.startswith(f"{_NODE}network_") and _NOT_A_WIRE.match(known.get("device", "")))
    )
    return None if left_out else Cell("nodes", node, NODES[name])


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


def picture(
    report: Mapping[str, Any] | None,
    places: Mapping[str, Sequence[Any]],
    last_steps: Sequence[float],
    cells: Cells,
    **more: Any,
) -> dict[str, Any]:
    """All tables of one job. ``places`` are its ranks as in the table ``ranks`` of a run, ``last_steps`` by rank."""
    judged = {row["rank"]: row for row in (report or {}).get("ranks") or ()}
    job = more["job"]
    rows = []
    for rank, node, uuid in zip(places["rank"], places["node"], places["gpu_uuid"], strict=True):
        known = cells["ranks"].get((job, rank), {})
        gpu = known.get("gpu") or uuid or (judged.get(rank) or {}).get("gpu")
        step = last_steps[rank] if rank < len(last_steps) else np.nan
        of_node = cells["nodes"].get(node, {})
        net = [of_node[one] for one in ("received", "sent") if one in of_node]
        rows.append(
            {
                **{name: (judged.get(rank) or {}).get(name) for name in ("self_ms", "wait_ms", "caused_wait_ms")},
                **{f"gpu_{name}": value for name, value in cells["gpus"].get((node, gpu), {}).items()},
                **known,
                "rank": rank,
                "node": node,
                "gpu": gpu,
                "step": step,
                "node_net": sum(net) if net else None,
            }
        )
    ranks_on: dict[Any, list[int]] = {}
    for row in rows:
        for where in (row["node"], (row["node"], row["gpu"])):
            ranks_on.setdefault(where, []).append(row["rank"])
    known_nodes = sorted({*cells["nodes"], *places["node"]})
    nodes = [{"node": node, "ranks": ranks_on.get(node), **cells["nodes"].get(node, {})} for node in known_nodes]
    gpus = [
        {"node": key[0], "gpu": key[1], "ranks": ranks_on.get(key), **row} for key, row in sorted(cells["gpus"].items())
    ]
    verdicts = rendered(report) if report else []
    shown = [
        {**vars(words), "ranks": list(one["ranks"])}
        for words, one in zip(verdicts, (report or {}).get("verdicts") or (), strict=True)
        if one.get("until_step") is None
    ]
    shown.sort(key=lambda one: one["kind"] not in STOPS)  # a job that stands still has no other cost
    tables = {"ranks": rows, "nodes": nodes, "gpus": gpus, "jobs": more.pop("jobs", [])}
    return {
        **more,
        "title": columns.title(report) if report else f"hindmost · {job}",
        "judged": report is not None,
        "verdicts": shown,
        "tables": {name: _by_column(found) for name, found in tables.items()},
    }


def _by_column(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns, with None for what is missing or no number."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [_plain(row.get(name)) for row in rows] for name in names}


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value


class _Held(NamedTuple):
    """The newest row of one schema of one node, and its rates since the row before."""

    last_ns: int
    values: np.ndarray[Any, Any]
    rates: np.ndarray[Any, Any]


class Newest:
    """Tables of a running collector, for threads that serve HTTP. Rows are remembered between two calls, for rates."""

    def __init__(self, parts: Components) -> None:
        self._parts = parts
        self._held: dict[Origin, _Held] = {}
        self._plans: dict[tuple[str, int], tuple[Schema, list[tuple[int, Cell, str, bool]]]] = {}
        self._one_at_a_time = threading.Lock()

    def picture(self, name: str | None) -> dict[str, Any] | None:
        """The tables of a job, or of the only one; without a job those of nodes and GPUs. None for a job not known."""
        jobs = list(self._parts.jobs.values())
        job = next((one for one in jobs if name in (None, one.id)), None)
        if job is None and name:
            return None
        with self._one_at_a_time:
            cells = added_up(self._values())
        now = self._parts.clock.now()
        shown = [_job(one, now) for one in jobs]
        if job is None:
            return picture(None, {"rank": (), "node": (), "gpu_uuid": ()}, (), cells, job="", jobs=shown, time_ns=now)
        places = {key: column.tolist() for key, column in job.window.ranks().items()}
        counters = dict(job.counters())
        steps = counters.get("last_step", counters.get("steps_total", np.empty(0))).tolist()
        more = {"over": job.over, "jobs": shown, "time_ns": now, **self._contact(job, set(places["node"]), now)}
        return picture(job.report, places, steps, cells, job=job.id, **more)

    def _contact(self, job: LiveJob, nodes: set[str], now_ns: int) -> dict[str, Any]:
        """For how long no agent of a job's nodes was heard, and the nodes whose agents have no stream."""
        agents = [agent for agent in list(self._parts.ingest.agents.values()) if agent.node in nodes]
        connected = {agent.node for agent in agents if agent.outbox is not None}
        heard_ns = max([job.heard_ns, *(agent.last_heard_ns for agent in agents)])
        return {"age_s": (now_ns - heard_ns) / 1e9, "lost": sorted(nodes - connected)}

    def _values(self) -> Iterable[tuple[Cell, float]]:
        """The value of each series that has a cell: of two schemas with one series, that which came last."""
        newest = self._parts.nodes.newest()
        self._held = {origin: held for origin, held in self._held.items() if origin in newest}
        found: dict[tuple[str, Cell, str], float] = {}
        for origin, block in sorted(newest.items(), key=lambda item: item[1].last_ns):
            schema = self._parts.definitions.schemas.get(origin.schema)
            if schema is None:
                continue
            held = self._updated(origin, block)
            for at, where, series, counter in self._plan(origin.node, origin.schema, schema):
                value = held.rates[at] if counter else held.values[at]
                if value == value:  # noqa: PLR0124 - false for NaN only
                    found[origin.node, where, series] = float(value)
        return [(where, value) for (_, where, _), value in found.items()]

    def _updated(self, origin: Origin, block: MetricRows) -> _Held:
        before = self._held.get(origin)
        if before is not None and before.last_ns == block.last_ns:
            return before
        values = block.values
        if before is not None and block.last_ns > before.last_ns and len(before.values) == len(values[-1]):
            earlier, seconds = before.values, (block.last_ns - before.last_ns) / 1e9
        else:
            times = block.times
            earlier, seconds = values[0], (int(times[-1]) - int(times[0])) / 1e9
        rates = (values[-1] - earlier) / seconds if seconds > 0 else np.full(len(values[-1]), np.nan)
        rates[rates < 0] = np.nan  # a counter began anew
        made = self._held[origin] = _Held(block.last_ns, values[-1].copy(), rates)
        return made

    def _plan(self, node: str, ref: int, schema: Schema) -> list[tuple[int, Cell, str, bool]]:
        """Place, cell, series and whether it is a counter, of each series of a schema that has a cell."""
        known = self._plans.get((node, ref))
        if known is None or known[0] is not schema:
            if len(self._plans) > _PLANS:
                self._plans.clear()
            made = [
                (at, where, one.name + one.labels, one.counter)
                for at, one in enumerate(schema.series)
                if (where := cell(node, one.name, one.labels)) is not None
            ]
            known = self._plans[node, ref] = (schema, made)
        return known[1]


#: Schemas of nodes whose cells are remembered.
_PLANS = 1 << 15


def _job(job: LiveJob, now_ns: int) -> dict[str, Any]:
    """A row of the table of jobs."""
    first = next(iter((job.report or {}).get("verdicts") or ()), None)
    words = of_verdict(first) if first else None
    typical = ((job.report or {}).get("job") or {}).get("step_ms") or {}
    return {
        "job": job.id,
        "verdict": words.sentence if words else None,
        "cost": (first or {}).get("cost_ratio"),
        "size": job.world_size,
        "step": job.window.last_step if job.window.last_step >= 0 else None,
        "step_ms": typical.get("p50"),
        "age_s": (now_ns - job.heard_ns) / 1e9,
    }


#: Samples so much older than a recording's newest, ns, are not shown as its newest.
_RECENT_NS = 60_000_000_000
_NEWEST_SAMPLES = """
select node, name, labels, max(value) filter (n = 1), max(value) filter (n = 2),
  (max(time_ns) filter (n = 1) - max(time_ns) filter (n = 2)) / 1e9
from (
  select node, name, labels, value, time_ns,
    row_number() over (partition by node, name, labels order by time_ns desc) as n
  from metrics where not isnan(value) and time_ns > (select max(time_ns) from metrics) - {recent}
    and (name like 'hindmost_process_%' or name like 'hindmost_gpu_%' or name like 'hindmost_node_%')
) where n <= 2 group by all
"""


def recorded(path: Path, report: Mapping[str, Any] | None, now_ns: int) -> dict[str, Any]:
    """The same of a run directory, as its newest rows have it, also while it is written. Raises as ``open`` does."""
    from hindmost_collector.recording_api import Recording  # noqa: PLC0415 - loads DuckDB

    run = Recording(path)
    values = []
    for node, name, labels, value, before, seconds in _rows(run.sql(_NEWEST_SAMPLES.format(recent=_RECENT_NS))):
        where = cell(node, name, labels)
        if where is None:
            continue
        if not name.endswith("_total"):
            values.append((where, value))
        elif before is not None and seconds > 0 and value >= before:
            values.append((where, (value - before) / seconds))
    job = str(run.meta.get("job_id") or path.name)
    known = {rank: (node, uuid) for rank, node, uuid in _rows(run.sql("select rank, node, gpu_uuid from ranks"))}
    ranks = sorted(known)
    places = {"rank": ranks, "node": [known[rank][0] for rank in ranks], "gpu_uuid": [known[rank][1] for rank in ranks]}
    newest = dict(_rows(run.sql("select rank, max(step) from steps group by rank")))
    steps = [float(newest.get(rank, np.nan)) for rank in range(max(ranks, default=-1) + 1)]
    over = run.meta.get("ended_ns") is not None
    ((newest_ns,),) = _rows(run.sql("select max(time_ns) from metrics"))
    age = {} if newest_ns is None else {"age_s": max(now_ns - newest_ns, 0) / 1e9}
    return picture(report, places, steps, added_up(values), job=job, over=over, **age)


def _rows(table: Any) -> Iterable[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
