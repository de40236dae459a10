"""Metrics of jobs, ranks and verdicts; and those of nodes, processes and GPUs as their agents name them."""

from __future__ import annotations

import json
from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from hindmost_proto.exposition import escaped, labelled

from hindmost_collector.serve.exposition import Family, Metric, counter, family, gauge, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hindmost_collector.ingest.columns import MetricRows, Origin
    from hindmost_collector.ingest.definitions import Definitions, Schema
    from hindmost_collector.live.jobs import LiveJob

JOB_INFO = gauge("hindmost_job_info", "1 for each job that the collector knows.", "job", "command", "world_size")
STEP_SECONDS = gauge(
    "hindmost_job_step_seconds",
    "Step duration over the live window, all ranks; quantile 0.5 and 0.99.",
    "job",
    "quantile",
)
RANK_INFO = gauge(
    "hindmost_rank_info",
    "1, with where the rank runs; join other series with it on job and rank.",
    *("job", "rank", "local_rank", "node", "gpu_uuid", "pid"),
)

_OF_RANK = ("job", "rank")
#: Counter in ``RankTotals`` to its metric.
RANK_METRICS: Mapping[str, Metric] = {
    "steps_total": counter(
        "hindmost_rank_steps_total",
        "Steps finished; inferred from the collectives where the rank marks none.",
        *_OF_RANK,
    ),
    "step_seconds_total": counter("hindmost_rank_step_seconds_total", "Time in steps.", *_OF_RANK),
    "collectives_total": counter("hindmost_rank_collectives_total", "Collective calls finished.", *_OF_RANK),
    "wait_seconds_total": counter(
        "hindmost_rank_wait_seconds_total",
        "Time in collectives beyond the shortest of the members: waiting for others.",
        *_OF_RANK,
    ),
    "caused_wait_seconds_total": counter(
        "hindmost_rank_caused_wait_seconds_total",
        "Time that the other members waited in collectives in which this rank was last to arrive, summed over them.",
        *_OF_RANK,
    ),
    "last_arrivals_total": counter(
        "hindmost_rank_last_arrivals_total", "Collectives in which this rank was last to arrive.", *_OF_RANK
    ),
    "horovod_cycles_total": counter(
        "hindmost_rank_horovod_cycles_total",
        "Cycles of Horovod's thread; in each, all ranks say which tensors are ready.",
        *_OF_RANK,
    ),
    "horovod_cycle_seconds_total": counter(
        "hindmost_rank_horovod_cycle_seconds_total",
        "Time in these cycles; divided by their number, the cycle time.",
        *_OF_RANK,
    ),
    "last_step": gauge("hindmost_rank_last_step", "Number of the newest step finished.", *_OF_RANK),
    "events_lost_total": counter(
        "hindmost_rank_events_lost_total", "Probe events overwritten before the agent read them.", *_OF_RANK
    ),
}
PHASE_SECONDS = counter(
    "hindmost_rank_phase_seconds_total",
    "Time by phase, without the phases inside it; `other` is the rest of a step, `negotiation` a part of waiting.",
    *_OF_RANK,
    "phase",
)


class JobPage:
    """Text of one job's families; rank prefixes are cached by job."""

    def __init__(self) -> None:
        self._prefixes: dict[tuple[str, str], list[str]] = {}

    def text(self, jobs: Iterable[LiveJob]) -> str:
        """All families over all jobs."""
        shown = list(jobs)
        return "".join((*self._info(shown), *self._ranks(shown), *_verdicts(shown)))

    def _info(self, jobs: list[LiveJob]) -> Iterator[str]:
        yield family(JOB_INFO, (((job.id, job.command or "", job.world_size or ""), 1) for job in jobs))
        yield family(RANK_INFO, ((labels, 1) for job in jobs for labels in _rank_labels(job)))
        yield family(
            STEP_SECONDS,
            (((job.id, quantile), seconds) for job in jobs for quantile, seconds in job.step_quantiles().items()),
        )

    def _ranks(self, jobs: list[LiveJob]) -> Iterator[str]:
        columns: dict[str, list[tuple[str, Any]]] = {}
        for job in jobs:
            for name, values in job.counters():
                columns.setdefault(name, []).append((job.id, values))
        for name, metric in RANK_METRICS.items():
            yield self._lines(metric, [(job, name, values) for job, values in columns.get(name, [])])
        phases = [(job, name, values) for name in sorted(columns) if ":" in name for job, values in columns[name]]
        yield self._lines(PHASE_SECONDS, phases)

    def _lines(self, metric: Metric, parts: list[tuple[str, str, Any]]) -> str:
        made, values = Family(metric.name, metric.kind, metric.help), list[float]()
        for job, name, column in parts:
            cached = self._prefixes.setdefault((job, name), [])
            phase = {"phase": name.partition(":")[2]} if ":" in name else {}
            for rank in range(len(cached), len(column)):
                cached.append(labelled(made.name, {"job": job, "rank": rank, **phase}))
            made.prefixes += cached[: len(column)]
            values += column.tolist()
        return made.lines(values)

    def forget(self, job: str) -> None:
        """Drop what is kept for a job that is over."""
        for key in [key for key in self._prefixes if key[0] == job]:
            del self._prefixes[key]


def _rank_labels(job: LiveJob) -> Iterator[Sequence[object]]:
    ranks = job.window.ranks()
    for row in zip(*(ranks[name].tolist() for name in RANK_INFO.labels[1:]), strict=True):
        yield job.id, *row


_OF_VERDICT = ("job", "kind", "cause", "ranks")
VERDICT_INFO = gauge("hindmost_verdict_info", "1 for each open verdict, `balanced` too.", *_OF_VERDICT, "since_step")
#: Field of a verdict to ``(metric, factor to base units)``.
VERDICT_VALUES: Mapping[str, tuple[Metric, float]] = {
    "cost_ratio": (gauge("hindmost_verdict_cost_ratio", "Share of the job's time that this costs.", *_OF_VERDICT), 1),
    "cost_ms_per_step": (
        gauge("hindmost_verdict_cost_seconds_per_step", "Time that this costs in each step.", *_OF_VERDICT),
        1e-3,
    ),
    "confidence": (
        gauge("hindmost_verdict_confidence_ratio", "Confidence that these are the ranks, 0 to 1.", *_OF_VERDICT),
        1,
    ),
}


def _verdicts(jobs: list[LiveJob]) -> Iterator[str]:
    opened = [(job, verdict) for job in jobs for verdict in job.verdicts()]
    yield family(
        VERDICT_INFO,
        (((*_verdict_labels(job, verdict), _shown(verdict.get("since_step"))), 1) for job, verdict in opened),
    )
    for name, (metric, factor) in VERDICT_VALUES.items():
        yield family(metric, ((labels, value * factor) for labels, value in _values(opened, name)))


def _values(opened: list[tuple[LiveJob, Mapping[str, Any]]], name: str) -> Iterator[tuple[Sequence[object], float]]:
    """One value of each series: two slowdowns of one rank and cause add their costs, with the lower of both
    confidences."""
    values: dict[Sequence[object], float] = {}
    for job, verdict in opened:
        labels = _verdict_labels(job, verdict)
        value = np.nan if verdict.get(name) is None else float(verdict[name])
        if labels in values:
            value = min(values[labels], value) if name == "confidence" else values[labels] + value
        values[labels] = value
    yield from values.items()


def _verdict_labels(job: LiveJob, verdict: Mapping[str, Any]) -> tuple[object, ...]:
    return job.id, verdict["kind"], verdict.get("cause") or "", ranks_label(verdict.get("ranks") or [])


def ranks_label(ranks: Sequence[int]) -> str:
    """Ranks as a label of bounded length: ``2``, ``2,5``, ``0-63``, ``512 ranks``."""
    ordered = sorted(ranks)
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{ordered[0]}-{ordered[-1]}"
    return ",".join(map(str, ordered)) if len(ordered) <= 8 else f"{len(ordered)} ranks"


def _shown(value: object) -> object:
    return "" if value is None else value


OF_JOBS = (JOB_INFO, STEP_SECONDS, RANK_INFO, *RANK_METRICS.values(), PHASE_SECONDS)
OF_VERDICTS = (VERDICT_INFO, *(metric for metric, _ in VERDICT_VALUES.values()))


Array = np.ndarray[Any, Any]

_ORIGIN = attrgetter("origin")


class _Newest(NamedTuple):
    """The newest row of one schema of one node."""

    time_ns: int
    schema: Schema
    values: Array


class NodeMetrics:
    """The newest value of every series. Adding a block costs next to nothing; text is made only for a scrape."""

    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._newest: dict[Origin, MetricRows] = {}

    def add(self, blocks: Sequence[MetricRows], *, in_order: bool = False) -> None:
        """Take blocks, but those that were replayed from a spool; ``in_order``: there are none of those."""
        newest = self._newest
        if in_order:
            newest.update(zip(map(_ORIGIN, blocks), blocks, strict=True))
            return
        for block in blocks:
            before = newest.get(block.origin)
            if before is None or block.last_ns >= before.last_ns:
                newest[block.origin] = block

    def schemas(self) -> set[int]:
        """The schemas of which there is a value."""
        return {origin.schema for origin in self._newest}

    def newest(self) -> Mapping[Origin, MetricRows]:
        """The newest block of each schema of each node, at this moment."""
        return dict(self._newest)

    def expire(self, older_than_ns: int) -> None:
        """Drop what was last seen before job time ``older_than_ns``: an agent that is gone has no value."""
        for key in [key for key, newest in self._newest.items() if newest.last_ns < older_than_ns]:
            del self._newest[key]

    def _held(self) -> dict[str, dict[int, _Newest]]:
        """Node and schema to the newest row."""
        nodes: dict[str, dict[int, _Newest]] = defaultdict(dict)
        for one, block in list(self._newest.items()):
            schema = self._definitions.schemas.get(one.schema)
            if schema is not None:
                nodes[one.node][one.schema] = _Newest(block.last_ns, schema, block.values[-1])
        return nodes

    def text(self) -> str:
        """All families; a series that two schemas of a node have is shown once, as it was last."""
        nodes = self._held()
        alike: dict[frozenset[int], list[str]] = defaultdict(list)
        for node, held in nodes.items():
            alike[frozenset(held)].append(node)
        families: dict[str, tuple[str, list[str]]] = {}
        for refs, members in alike.items():
            shared = _shared({ref: nodes[members[0]][ref].schema for ref in refs})
            for ref in refs:
                held_here = [nodes[node][ref] for node in members]
                values = np.stack([one.values for one in held_here])
                for other, mine in shared.get(ref, {}).items():
                    newer = [nodes[node][other].time_ns > nodes[node][ref].time_ns for node in members]
                    values[np.ix_(newer, mine)] = np.nan
                for name, head, lines in _lines(held_here[0].schema, members, values):
                    families.setdefault(name, (head, []))[1].extend(lines)
        return "".join(head + "".join(lines) for head, lines in families.values() if lines)


def _shared(schemas: dict[int, Schema]) -> dict[int, dict[int, list[int]]]:
    """For each schema and each other one: its places of the series that both have."""
    places: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for ref, schema in schemas.items():
        for index, series in enumerate(schema.series):
            places[series.name, series.labels].append((ref, index))
    found: dict[int, dict[int, list[int]]] = defaultdict(dict)
    for several in places.values():
        for ref, index in several if len(several) > 1 else ():
            for other, _ in several:
                if other != ref:
                    found[ref].setdefault(other, []).append(index)
    return found


def _lines(schema: Schema, nodes: list[str], values: Array) -> Iterator[tuple[str, str, list[str]]]:
    """``(name, head of the family, lines)`` of each series of a schema, for all nodes that have it."""
    starts = [escaped(node) for node in nodes]
    for index, series in enumerate(schema.series):
        kind = "counter" if series.counter else "gauge"
        family = Family(series.name, kind, series.help or "As reported by the agent.")
        labels = "".join(f',{key}="{escaped(value)}"' for key, value in json.loads(series.labels).items())
        yield (
            series.name,
            family.head,
            [
                f'{series.name}{{node="{node}"{labels}}} {number(value)}\n'
                for node, value in zip(starts, values[:, index].tolist(), strict=True)
                if value == value  # noqa: PLR0124 - false for NaN only, and far cheaper than isnan
            ],
        )
