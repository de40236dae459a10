"""Metrics of jobs and ranks: who is who, what each rank did, and the open verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hindmost_proto.exposition import labelled

from hindmost_collector.serve.exposition import Family, Metric, counter, family, gauge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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
