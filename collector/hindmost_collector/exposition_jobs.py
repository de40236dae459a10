"""Metrics of jobs and ranks: who is who, what each rank did, and the open verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hindmost_collector.exposition import Family, family, labelled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hindmost_collector.running.jobs import LiveJob

#: Counter in ``RankTotals`` to ``(metric, type, help)``.
RANK_METRICS: Mapping[str, tuple[str, str, str]] = {
    "steps_total": (
        "hindmost_rank_steps_total",
        "counter",
        "Steps that this rank finished; inferred from its collectives where it marks none.",
    ),
    "step_seconds_total": ("hindmost_rank_step_seconds_total", "counter", "Time that this rank spent in steps."),
    "collectives_total": ("hindmost_rank_collectives_total", "counter", "Collective calls that this rank finished."),
    "wait_seconds_total": (
        "hindmost_rank_wait_seconds_total",
        "counter",
        "Time in collectives beyond the shortest of the members: waiting for others.",
    ),
    "caused_wait_seconds_total": (
        "hindmost_rank_caused_wait_seconds_total",
        "counter",
        "Time that the other members waited in collectives into which this rank came last, summed over them.",
    ),
    "last_arrivals_total": (
        "hindmost_rank_last_arrivals_total",
        "counter",
        "Collectives into which this rank came last.",
    ),
    "horovod_cycles_total": (
        "hindmost_rank_horovod_cycles_total",
        "counter",
        "Cycles of Horovod's own thread, in each of which all ranks tell what they have ready.",
    ),
    "horovod_cycle_seconds_total": (
        "hindmost_rank_horovod_cycle_seconds_total",
        "counter",
        "Time that these cycles took, from the start of each to that of the next.",
    ),
    "last_step": ("hindmost_rank_last_step", "gauge", "Number of the newest step that this rank finished."),
    "events_lost_total": (
        "hindmost_rank_events_lost_total",
        "counter",
        "Probe events overwritten before the agent read them.",
    ),
}
PHASE = (
    "hindmost_rank_phase_seconds_total",
    "counter",
    "Time by phase, exclusive of nested ones; other: the rest of a step; negotiation: a part of waiting for others.",
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
        yield family(
            "hindmost_job_info",
            "gauge",
            "A job that this collector knows.",
            (({"job": job.id, "command": job.command or "", "world_size": job.world_size or ""}, 1) for job in jobs),
        )
        yield family(
            "hindmost_rank_info",
            "gauge",
            "Where a rank runs; join other series with it on job and rank.",
            ((labels, 1) for job in jobs for labels in _rank_labels(job)),
        )
        yield family(
            "hindmost_job_step_seconds",
            "gauge",
            "Step duration over the live window, all ranks.",
            (
                ({"job": job.id, "quantile": quantile}, seconds)
                for job in jobs
                for quantile, seconds in job.step_quantiles().items()
            ),
        )

    def _ranks(self, jobs: list[LiveJob]) -> Iterator[str]:
        columns: dict[str, list[tuple[str, Any]]] = {}
        for job in jobs:
            for name, values in job.counters():
                columns.setdefault(name, []).append((job.id, values))
        for name, (metric, kind, text) in RANK_METRICS.items():
            yield self._lines(
                Family(metric, kind, text), [(job, name, values) for job, values in columns.get(name, [])]
            )
        phases = [(job, name, values) for name in sorted(columns) if ":" in name for job, values in columns[name]]
        yield self._lines(Family(*PHASE), phases)

    def _lines(self, made: Family, parts: list[tuple[str, str, Any]]) -> str:
        values: list[float] = []
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


def _rank_labels(job: LiveJob) -> Iterator[dict[str, object]]:
    ranks = job.window.ranks()
    names = ("rank", "local_rank", "node", "gpu_uuid", "pid")
    for row in zip(*(ranks[name].tolist() for name in names), strict=True):
        yield {"job": job.id, **dict(zip(names, row, strict=True))}


#: Field of a verdict to ``(metric, help, factor to base units)``.
_VERDICT_VALUES: Mapping[str, tuple[str, str, float]] = {
    "cost_ratio": ("hindmost_verdict_cost_ratio", "Share of the job's time that this costs.", 1),
    "cost_ms_per_step": ("hindmost_verdict_cost_seconds_per_step", "Time that this costs in each step.", 1e-3),
    "confidence": ("hindmost_verdict_confidence_ratio", "How sure the verdict is, 0 to 1.", 1),
}


def _verdicts(jobs: list[LiveJob]) -> Iterator[str]:
    opened = [(job, verdict) for job in jobs for verdict in job.verdicts()]
    yield family(
        "hindmost_verdict_info",
        "gauge",
        "An open verdict.",
        (
            ({**_verdict_labels(job, verdict), "since_step": _shown(verdict.get("since_step"))}, 1)
            for job, verdict in opened
        ),
    )
    for name, (metric, text, factor) in _VERDICT_VALUES.items():
        yield family(metric, "gauge", text, ((labels, value * factor) for labels, value in _values(opened, name)))


def _values(opened: list[tuple[LiveJob, Mapping[str, Any]]], name: str) -> Iterator[tuple[dict[str, object], float]]:
    """One value of each series: two slowdowns of one rank and cause add their costs, with the lower of both
    confidences."""
    found: dict[tuple[object, ...], tuple[dict[str, object], float]] = {}
    for job, verdict in opened:
        labels = _verdict_labels(job, verdict)
        value = np.nan if verdict.get(name) is None else float(verdict[name])
        key = tuple(labels.values())
        if key in found:
            value = min(found[key][1], value) if name == "confidence" else found[key][1] + value
        found[key] = labels, value
    yield from found.values()


def _verdict_labels(job: LiveJob, verdict: Mapping[str, Any]) -> dict[str, object]:
    ranks = ranks_label(verdict.get("ranks") or [])
    return {"job": job.id, "kind": verdict["kind"], "cause": verdict.get("cause") or "", "ranks": ranks}


def ranks_label(ranks: Sequence[int]) -> str:
    """Ranks as a label of bounded length: ``2``, ``2,5``, ``0-63``, ``512 ranks``."""
    ordered = sorted(ranks)
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{ordered[0]}-{ordered[-1]}"
    return ",".join(map(str, ordered)) if len(ordered) <= 8 else f"{len(ordered)} ranks"


def _shown(value: object) -> object:
    return "" if value is None else value
