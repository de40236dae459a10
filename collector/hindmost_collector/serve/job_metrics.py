"""Metrics of jobs, ranks and verdicts on /metrics."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from hindmost_judge.model import Table
from hindmost_judge.verdict.schema import STOPS, UNSURE
from hindmost_proto.exposition import labelled

from hindmost_collector.ingest.definitions import Pod
from hindmost_collector.live.jobs import ENDED, LOST, STATES, Contact, LiveJob
from hindmost_collector.serve.exposition import RANK, Family, Metric, counter, family, gauge

#: By job and rank.
Pods = Mapping[str, Mapping[int, Pod]]


Array = np.ndarray[Any, Any]

JOB_INFO = gauge("hindmost_job_info", "1 for each job that the collector knows.", "job_id", "command", "world_size")
JOB_WORKLOAD = gauge(
    "hindmost_job_workload_info",
    "1 for each job whose pods say what made them: `kind` is JobSet, TrainJob, MPIJob, RayJob …, `queue` is Kueue's.",
    *("job_id", "namespace", "kind", "workload", "queue"),
)
JOB_STATE = gauge(
    "hindmost_job_state",
    "1 for the state of the job, 0 for the others: `running`; `hung`; `ended`: all ranks are gone; `lost`: no agent of "
    "it is heard. One that ended or is lost has no other series but these two.",
    "job_id",
    "state",
)
_OF_JOB = ("job_id",)
#: Metrics that a job has once, and their values; None is missing.
JOB_VALUES: Mapping[Metric, Callable[[LiveJob], float | None]] = {
    gauge(
        "hindmost_job_start_time_seconds", "When the collector first heard of the job, s since 1970.", *_OF_JOB
    ): lambda job: job.started_ns / 1e9,
    gauge("hindmost_job_ranks", "Ranks that report.", *_OF_JOB): lambda job: len(job.window.ranks()["rank"]),
    gauge(
        "hindmost_job_devices", "GPUs that the ranks compute on; the ranks, where no GPU is known.", *_OF_JOB
    ): lambda job: _devices(job.window.ranks()),
    gauge(
        "hindmost_job_wasted_ratio", "Share of the job's time that this would save, by the newest report.", *_OF_JOB
    ): lambda job: ((job.report or {}).get("what_if") or {}).get("wasted_ratio"),
    counter("hindmost_job_steps_total", "Steps finished, of the rank with most.", *_OF_JOB): lambda job: _of_all(
        job, "steps_total", np.nanmax
    ),
    counter(
        "hindmost_job_work_total",
        "Items (samples or tokens) of all ranks' steps; ranks that share a batch each count it.",
        *_OF_JOB,
    ): lambda job: _of_all(job, "work_total", np.nansum),
}
#: What ``LiveJob.step_seconds`` knows to its metric.
STEP_SECONDS: Mapping[str, Metric] = {
    "median": gauge("hindmost_job_step_median_seconds", "Median step of all ranks over the live window.", *_OF_JOB),
    "p99": gauge("hindmost_job_step_p99_seconds", "99th percentile of the same steps.", *_OF_JOB),
    "ideal": gauge(
        "hindmost_job_step_ideal_seconds", "Mean step if no rank made others wait, by the newest report.", *_OF_JOB
    ),
}
LOST_NODES = gauge("hindmost_job_lost_nodes", "Nodes of the job from which no agent is heard.", *_OF_JOB)
RANK_INFO = gauge(
    "hindmost_rank_info",
    "1, with where the rank runs; join other series with it on job_id and rank.",
    *("job_id", "rank", "local_rank", "node", "gpu_uuid", "pid"),
)

_OF_RANK = ("job_id", "rank")
#: Counter in ``RankTotals`` to its metric.
RANK_METRICS: Mapping[str, Metric] = {
    name.removeprefix("hindmost_rank_"): (counter if name.endswith("_total") else gauge)(name, text, *_OF_RANK)
    for name, text in {
        "hindmost_rank_steps_total": "Steps finished; inferred from the collectives where the rank marks none.",
        "hindmost_rank_step_seconds_total": "Time in steps.",
        "hindmost_rank_work_total": (
            "Items (samples or tokens) of the steps finished, where the job or its framework counts them."
        ),
        "hindmost_rank_collectives_total": "Collective calls finished.",
        "hindmost_rank_wait_seconds_total": (
            "Time in collectives beyond the shortest of the members: waiting for others."
        ),
        "hindmost_rank_caused_wait_seconds_total": (
            "Time that the other members waited in collectives in which this rank was last to arrive, summed over them."
        ),
        "hindmost_rank_last_arrivals_total": "Collectives in which this rank was last to arrive.",
        "hindmost_rank_horovod_cycles_total": (
            "Cycles of Horovod's thread; in each, all ranks say which tensors are ready."
        ),
        "hindmost_rank_horovod_cycle_seconds_total": "Time in these cycles; divided by their number, the cycle time.",
        "hindmost_rank_last_step": "Number of the newest step finished.",
        "hindmost_rank_events_lost_total": "Probe events overwritten before the agent read them.",
    }.items()
}
PHASE_SECONDS = counter(
    "hindmost_rank_phase_seconds_total",
    "Time by phase, without the phases inside it; `other` is the rest of a step, `negotiation` a part of waiting.",
    *_OF_RANK,
    "phase",
)


_NONE: Pods = {}


class JobPage:
    """Text of the jobs' families; rank prefixes are cached by job, and when a verdict's first step was."""

    def __init__(self) -> None:
        self._prefixes: dict[tuple[str, str], list[str]] = {}
        self._onsets: dict[tuple[str, int], float] = {}
        self._ended: set[str] = set()

    def text(self, jobs: Iterable[LiveJob], contact: Contact, level: int = RANK, pods: Pods = _NONE) -> str:
        """All families over all jobs; ``pods`` by job and rank.

        A job that has ended is shown in full once more, so that no count is lost, and then by its state alone, as one
        that is lost is at once.
        """
        states = [(job, contact.state(job)) for job in jobs]
        shown = [job for job, state in states if state != LOST and not (state == ENDED and job.id in self._ended)]
        self._ended = {job.id for job, state in states if state == ENDED}
        return "".join(
            (
                *_states(states),
                _workloads(shown, pods),
                *self._info(shown, contact),
                *self._ranks(shown, level),
                *self.of_verdicts(shown),
            )
        )

    def count(self, jobs: Iterable[LiveJob]) -> int:
        """How many series there are of ranks."""
        return sum(len(job.window.ranks()["rank"]) + sum(len(values) for _, values in job.counters()) for job in jobs)

    def _info(self, jobs: list[LiveJob], contact: Contact) -> Iterator[str]:
        for metric, value in JOB_VALUES.items():
            known = ((job.id, value(job)) for job in jobs)
            yield family(metric, (((job,), found) for job, found in known if found is not None))
        steps = [(job.id, job.step_seconds()) for job in jobs]
        for name, metric in STEP_SECONDS.items():
            yield family(metric, (((job,), known[name]) for job, known in steps if name in known))
        yield family(LOST_NODES, (((job.id,), len(contact.lost_of(job))) for job in jobs))

    def _ranks(self, jobs: list[LiveJob], level: int) -> Iterator[str]:
        if level < RANK:
            return
        yield family(RANK_INFO, ((labels, 1) for job in jobs for labels in _rank_labels(job)))
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
                cached.append(labelled(made.name, {"job_id": job, "rank": rank, **phase}))
            made.prefixes += cached[: len(column)]
            values += column.tolist()
        return made.lines(values)

    def of_verdicts(self, jobs: list[LiveJob]) -> Iterator[str]:
        opened = [(job, verdict) for job in jobs for verdict in job.verdicts()]
        yield family(
            VERDICT_INFO,
            (((*_verdict_labels(job, verdict), _shown(verdict.get("since_step"))), 1) for job, verdict in opened),
        )
        for name, (metric, factor) in VERDICT_VALUES.items():
            yield family(metric, ((labels, value * factor) for labels, value in _values(opened, name)))
        yield family(URGENCY, _urgencies(opened))
        onsets = {_worded(job, verdict): self._onset(job, verdict) for job, verdict in opened}
        yield family(ONSET, ((labels, at) for labels, at in onsets.items() if at is not None))

    def _onset(self, job: LiveJob, verdict: Mapping[str, Any]) -> float | None:
        """When the verdict's first step began; it is remembered, since the window moves on."""
        step = verdict.get("since_step")
        if step is None or verdict["kind"] == "balanced":
            return None
        if (job.id, step) not in self._onsets:
            began = job.window.began_ns(step)
            if began is None:
                return None
            self._onsets[job.id, step] = began / 1e9
        return self._onsets[job.id, step]

    def forget(self, job: str) -> None:
        """Drop what is kept for a job that is over."""
        for key in [key for key in self._prefixes if key[0] == job]:
            del self._prefixes[key]
        for at in [at for at in self._onsets if at[0] == job]:
            del self._onsets[at]


def _states(states: list[tuple[LiveJob, str]]) -> Iterator[str]:
    yield family(JOB_INFO, (((job.id, job.command or "", job.world_size or ""), 1) for job, _ in states))
    yield family(JOB_STATE, (((job.id, one), float(one == state)) for job, state in states for one in STATES))


def _workloads(jobs: list[LiveJob], pods: Pods) -> str:
    """What the lowest rank says made its pod."""
    lowest = [(job.id, of_job[min(of_job)]) for job in jobs if (of_job := dict(pods.get(job.id, {})))]
    named = [(job, pod.namespace, *_kind_and_name(pod.workload), pod.queue) for job, pod in lowest]
    return family(JOB_WORKLOAD, ((labels, 1) for labels in named))


def _kind_and_name(workload: str) -> tuple[str, str]:
    kind, slash, name = workload.partition("/")
    return (kind, name) if slash else ("", workload)


def _devices(ranks: Table) -> int:
    return len(set(ranks["gpu_uuid"].tolist()) - {""}) or len(ranks["rank"])


def _of_all(job: LiveJob, name: str, reduced: Callable[[Array], Any]) -> float | None:
    """A rank's counter over all ranks; None where no rank has it."""
    column = dict(job.counters()).get(name)
    return None if column is None or np.isnan(column).all() else float(reduced(column))


def _rank_labels(job: LiveJob) -> Iterator[Sequence[object]]:
    ranks = job.window.ranks()
    for row in zip(*(ranks[name].tolist() for name in RANK_INFO.labels[1:]), strict=True):
        yield job.id, *row


_OF_VERDICT = ("job_id", "kind", "cause", "ranks")
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
#: Urgencies of a job that stands still, of one without trouble, and of one of which that is not known.
STOPPED, WELL, UNKNOWN = 2.0, 0.0, -1.0
URGENCY = gauge(
    "hindmost_verdict_urgency",
    "What to look at first. 2: the job stands still. 0 to 1: the share of its time that this costs. 0: balanced. "
    "-1: unsure: too little data, or a rank is suspected and not proven. `verdict` is the verdict in words.",
    *_OF_VERDICT,
    "verdict",
)
ONSET = gauge(
    "hindmost_verdict_onset_time_seconds",
    "When the verdict's first step began, s since 1970; missing where that step is not known.",
    *_OF_VERDICT,
    "verdict",
)


def _urgencies(opened: list[tuple[LiveJob, Mapping[str, Any]]]) -> Iterator[tuple[Sequence[object], float]]:
    costs = {tuple(labels): value for labels, value in _values(opened, "cost_ratio")}
    found: dict[tuple[object, ...], float] = {}
    for job, verdict in opened:
        cost = costs[_verdict_labels(job, verdict)]
        urgency = (
            STOPPED if verdict["kind"] in STOPS else UNKNOWN if _unsure(verdict) else np.nan_to_num(cost, nan=WELL)
        )
        labels = _worded(job, verdict)
        found[labels] = max(found.get(labels, UNKNOWN), urgency)
    yield from found.items()


def _unsure(verdict: Mapping[str, Any]) -> bool:
    """Whether a verdict clears no rank and blames none."""
    kind, sure = verdict["kind"], verdict.get("confidence")
    return kind == "insufficient_data" or bool(kind == "balanced" and sure is not None and sure <= UNSURE)


def _worded(job: LiveJob, verdict: Mapping[str, Any]) -> tuple[object, ...]:
    return (*_verdict_labels(job, verdict), in_words(verdict))


def in_words(verdict: Mapping[str, Any]) -> str:
    """``straggler: rank 3, compute``, ``hang: rank 5``, ``balanced``, ``unsure: no rank proven`` and the like."""
    if _unsure(verdict):
        return f"unsure: {'not enough data' if verdict['kind'] == 'insufficient_data' else 'no rank proven'}"
    ranks, cause = ranks_label(verdict.get("ranks") or []), verdict.get("cause")
    named = f"rank{'' if ranks.isdigit() else 's'} {ranks}" if ranks and not ranks.endswith("ranks") else ranks
    if cause == "unknown":
        cause = "" if verdict["kind"] in STOPS else "cause unknown"
    about = ", ".join(filter(None, (named, cause and cause.replace("_", " "))))
    return f"{verdict['kind'].replace('_', ' ')}{about and f': {about}'}"


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


OF_JOBS = (
    JOB_INFO,
    JOB_WORKLOAD,
    JOB_STATE,
    *JOB_VALUES,
    *STEP_SECONDS.values(),
    LOST_NODES,
    RANK_INFO,
    *RANK_METRICS.values(),
    PHASE_SECONDS,
)
OF_VERDICTS = (VERDICT_INFO, *(metric for metric, _ in VERDICT_VALUES.values()), URGENCY, ONSET)
