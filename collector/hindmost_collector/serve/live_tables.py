"""The tables of ranks, nodes, GPUs and jobs now (``/api/newest``): of a running collector, or of a run directory.

``hindmost top`` shows them, and the page those of nodes and GPUs.
"""

import shlex
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hindmost_judge.verdict.schema import STOPS, plain

from hindmost_collector.components import Components
from hindmost_collector.ingest.definitions import Schema
from hindmost_collector.ingest.row_builder import MetricRows, Origin
from hindmost_collector.live.jobs import Contact, LiveJob
from hindmost_collector.report import columns, machine_tables
from hindmost_collector.report.machine_tables import Cell, Cells, added_up, cell, machines
from hindmost_collector.report.verdict_lines import of_verdict, rendered


def picture(
    report: Mapping[str, Any] | None,
    places: Mapping[str, Sequence[Any]],
    last_steps: Sequence[float],
    cells: Cells,
    **more: Any,
) -> dict[str, Any]:
    """All tables of one job. ``places`` are its ranks as in the table ``ranks`` of a run, ``last_steps`` by rank."""
    job, path = more["job"], more.pop("path", "")
    rows = _ranks(report, places, last_steps, cells, job)
    nodes, gpus = machines(cells, rows)
    verdicts = rendered(report, path or f"hindmost-runs/{job}") if report else []
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


def _ranks(
    report: Mapping[str, Any] | None,
    places: Mapping[str, Sequence[Any]],
    last_steps: Sequence[float],
    cells: Cells,
    job: str,
) -> list[dict[str, Any]]:
    judged = {row["rank"]: row for row in (report or {}).get("ranks") or ()}
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
    return rows


def _by_column(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns, with None for what is missing or no number."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [plain(row.get(name)) for row in rows] for name in names}


class _NewestRow(NamedTuple):
    """The newest row of one schema of one node, and its rates since the row before."""

    last_ns: int
    values: np.ndarray[Any, Any]
    rates: np.ndarray[Any, Any]


class LiveTables:
    """Tables of a running collector, for threads that serve HTTP. Rows are remembered between two calls, for rates."""

    def __init__(self, parts: Components) -> None:
        self._parts = parts
        self._held: dict[Origin, _NewestRow] = {}
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
        contact = Contact(list(self._parts.ingest.agents.values()), now)
        shown = [_job(one, contact) for one in jobs]
        if job is None:
            return picture(None, {"rank": (), "node": (), "gpu_uuid": ()}, (), cells, job="", jobs=shown, time_ns=now)
        heard = {"age_s": _seconds(contact.age_ns(job)), "lost": sorted(contact.lost_of(job))}
        more: dict[str, Any] = {"over": job.over, "jobs": shown, "time_ns": now, **heard, "judged_s": job.judged_s(now)}
        return picture(job.report_until_now(), *_of(job), cells, job=job.id, path=self.path(job.id), **more)

    def path(self, job: str) -> str:
        """Where a job is recorded, as commands take it; empty where it is not."""
        store = self._parts.recorder.store
        return shlex.quote(store.place(job)) if store else ""

    def machines(self, job: LiveJob) -> dict[str, Any]:
        """What the page shows of the nodes and GPUs of a job."""
        with self._one_at_a_time:
            cells = added_up(self._values())
        return machine_tables.shown(*machines(cells, _ranks(job.report, *_of(job), cells, job.id)))

    def _values(self) -> Iterable[tuple[Cell, float]]:
        """The value of each series that has a cell: of two schemas with one series, that which came last."""
        newest = self._parts.nodes.newest()
        self._held = {origin: row for origin, row in self._held.items() if origin in newest}
        found: dict[tuple[str, Cell, str], float] = {}
        for origin, block in sorted(newest.items(), key=lambda item: item[1].last_ns):
            schema = self._parts.definitions.schemas.get(origin.schema)
            if schema is None:
                continue
            row = self._updated(origin, block)
            for at, where, series, counter in self._plan(origin.node, origin.schema, schema):
                value = row.rates[at] if counter else row.values[at]
                if value == value:  # noqa: PLR0124 - false for NaN only
                    found[origin.node, where, series] = float(value)
        return [(where, value) for (_, where, _), value in found.items()]

    def _updated(self, origin: Origin, block: MetricRows) -> _NewestRow:
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
        made = self._held[origin] = _NewestRow(block.last_ns, values[-1].copy(), rates)
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


def _of(job: LiveJob) -> tuple[Mapping[str, Sequence[Any]], Sequence[float]]:
    """Where the ranks of a job are, and the last step of each."""
    counters = dict(job.counters())
    steps: Sequence[float] = counters.get("last_step", counters.get("steps_total", np.empty(0))).tolist()
    return {key: column.tolist() for key, column in job.window.ranks().items()}, steps


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e9


def _job(job: LiveJob, contact: Contact) -> dict[str, Any]:
    """A row of the table of jobs."""
    first = next(iter((job.report or {}).get("verdicts") or ()), None)
    words = of_verdict(first) if first else None
    length = ((job.report or {}).get("job") or {}).get("step_ms") or {}
    return {
        "job": job.id,
        "verdict": words.sentence if words else None,
        "cost": (first or {}).get("cost_ratio"),
        "size": job.world_size,
        "step": job.window.last_step if job.window.last_step >= 0 else None,
        "mean_step_ms": length.get("mean"),
        "age_s": _seconds(contact.age_ns(job)),
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
    return picture(report, places, steps, added_up(values), job=job, over=over, path=shlex.quote(str(path)), **age)


def _rows(table: Any) -> Iterable[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
