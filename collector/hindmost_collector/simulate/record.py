"""What a probe, a GPU plugin and the node agents would have recorded of a timing: each on its own clock.

Samples of nodes, processes and GPUs come at 1 Hz or ten a run, whichever is more often.
"""

import json
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from hindmost_judge.model import GPU_TIME, UNMEASURED, Job, Run, Table

from hindmost_collector.recordings.tables import concatenate, select, table
from hindmost_collector.simulate.engine import (
    ISSUE_SHARE,
    SEEN_SECONDS,
    Array,
    Draws,
    Groups,
    Timing,
    standing,
)
from hindmost_collector.simulate.scenario import Scenario

FULL_CLOCK_HZ = 1.98e9
#: NVML's reason bits: idle, software power cap, software thermal slowdown.
POWER_CAP, THERMAL = 0x4, 0x20
OWN_BYTES = 60e9
OTHERS_BYTES = 8e9
#: Pages that a rank reads back from disk, a second in which it stands still for memory.
FAULTS_A_SECOND = 2000.0
#: Bytes that a rank writes to storage, a second in which it stands still for files; a job at work logs some.
WRITTEN_A_SECOND, LOGGED_A_SECOND = 200e6, 20e3
#: Activity of SMs, tensor cores and memory while a GPU computes: on an H200 matrix products reached 0.97, 0.94 and
#: 0.17, copies 0.99, 0 and 0.89 (bench/results/agent_gpu_1xh200.json); training has kernels of all kinds.
ACTIVITY = {"compute": (0.97, 0.55, 0.3), "memory": (0.98, 0.1, 0.8)}
_ACTIVE = tuple(f"hindmost_gpu_{what}_activity_ratio" for what in ("sm", "tensor", "dram"))


class Metric(NamedTuple):
    """A metric, and of a node's pressure the resource that tasks stand still for."""

    name: str
    resource: str = ""


_PRESSURE = {name: Metric("hindmost_node_pressure_waiting_seconds_total", name) for name in ("memory", "io")}


def telemetry(timing: Timing) -> Table:
    """Every rank's GPU clock, reasons and memory, and its process' waiting for a CPU, from true times."""
    at, series = sampled(timing)
    times = np.rint(EPOCH_NS + at[:, None] + timing.draws.clock_ns[None, :]).astype(np.int64)
    return concatenate("metrics", [_series(timing.scenario, metric, times, one) for metric, one in series.items()])


def sampled(timing: Timing) -> tuple[Array, dict[Metric, Array]]:
    """When samples are taken [T], ns from the begin on the clock that all share; and of each metric [T, R] values.

    A stopped job's nodes are sampled for as long as it was looked at.
    """
    scenario, end = timing.scenario, float(timing.finish[-1].max())
    if scenario.halts_at is not None:
        end = timing.stopped_ns + SEEN_SECONDS * 1e9
    count = int(np.clip(end / 1e9, 10, 120))
    at = np.linspace(0, end, count, endpoint=False) + end / count / 2
    step = np.clip(np.searchsorted(timing.begin[:, 0], at, side="right") - 1, 0, max(scenario.whole_steps - 1, 0))
    random = np.random.default_rng([scenario.seed, 0x54454C45])
    slow = {cause: timing.acting(cause)[step] for cause in ("gpu_throttle", "gpu_contention")}
    queued = np.cumsum(timing.host["runqueue"] + 1e5, axis=0)[step] / 1e9
    stalled, in_files = (np.cumsum(timing.host[name], axis=0)[step] / 1e9 for name in ("memory", "io"))
    written = WRITTEN_A_SECOND * in_files + LOGGED_A_SECOND * at[:, None] / 1e9
    noise = 1 + 0.003 * random.standard_normal((count, scenario.ranks))
    clock = FULL_CLOCK_HZ * noise / (1 + slow["gpu_throttle"])
    series = {
        "hindmost_gpu_sm_clock_hertz": clock,
        "hindmost_gpu_clocks_event_reasons": np.where(slow["gpu_throttle"] > 0, THERMAL, 0),
        "hindmost_gpu_utilization_ratio": np.ones_like(clock),
        "hindmost_gpu_memory_used_bytes": OWN_BYTES + np.where(slow["gpu_contention"] > 0, OTHERS_BYTES, 0),
        "hindmost_gpu_process_memory_used_bytes": np.full_like(clock, OWN_BYTES),
        "hindmost_process_runqueue_seconds_total": queued,
        "hindmost_process_major_page_faults_total": np.rint(FAULTS_A_SECOND * stalled),
        "hindmost_process_written_bytes_total": np.rint(written),
    }
    pressure = {_PRESSURE["memory"]: _of_nodes(scenario, stalled), _PRESSURE["io"]: _of_nodes(scenario, in_files)}
    series |= _activity(scenario, timing, step, noise)
    return at, {Metric(name): values for name, values in series.items()} | pressure


def _activity(scenario: Scenario, timing: Timing, step: Array, noise: Array) -> dict[str, Array]:
    """Metric to [T, R]: what GPUs do, who compute for a part of each step; empty where it is not sampled."""
    if not scenario.gpu_bound:
        return {}
    ends = timing.finish.max(axis=1)
    share = np.minimum(scenario.step_ms * 1e6 / np.diff(ends, prepend=0.0), 1.0)[step][:, None]
    return {name: share * level * noise for name, level in zip(_ACTIVE, ACTIVITY[scenario.gpu_bound], strict=True)}


def _of_nodes(scenario: Scenario, values: Array) -> Array:
    """[T, R] the most that any rank of the same node has: a node's tasks stand still together."""
    first = np.arange(0, scenario.ranks, scenario.gpus_per_node)
    most = np.maximum.reduceat(values, first, axis=1)
    return np.asarray(np.repeat(most, np.diff(np.append(first, scenario.ranks)), axis=1))


def reporting_ranks(scenario: Scenario, metric: Metric, ranks: range) -> list[int]:
    """Which of these ranks have a series of this metric: of a node's own, the first rank of each node stands for it."""
    return [rank for rank in ranks if not metric.resource or rank % scenario.gpus_per_node == 0]


def _series(scenario: Scenario, metric: Metric, times: Array, values: Array) -> Table:
    """Long rows, rank by rank."""
    count = times.shape[0]
    ranks = reporting_ranks(scenario, metric, range(scenario.ranks))
    times, values = times[:, ranks], values[:, ranks]
    labels = [json.dumps(labels_of(scenario, metric, rank)) for rank in ranks]
    return table(
        "metrics",
        node=np.repeat([node(scenario, rank) for rank in ranks], count),
        name=metric.name,
        labels=np.repeat(labels, count),
        time_ns=times.T.ravel(),
        value=values.T.ravel(),
    )


def labels_of(scenario: Scenario, metric: Metric, rank: int) -> dict[str, str]:
    if metric.resource:
        return {"resource": metric.resource}
    job = {"job": f"simulated-{scenario.seed}", "rank": str(rank)}
    uuid = {"gpu_uuid": gpu(rank)}
    if metric.name.startswith("hindmost_process"):
        return job
    return uuid | job if "process" in metric.name else uuid


#: Unix time at which simulated runs begin: nothing depends on it.
EPOCH_NS = 1_800_000_000_000_000_000
TOKENS = 4096
GRADIENT_BYTES = 64 << 20


def record(timing: Timing, metrics: bool) -> Run:
    """The run as columns; a stop ends it at its onset, what ranks were inside then in flight."""
    last = timing.scenario.whole_steps
    return replace(_but_steps(timing, metrics), steps=steps_of(timing, last), collectives=collectives_of(timing, last))


def pieces(timing: Timing, at_once: int) -> Iterator[Run]:
    """The run as :func:`record` has it, its steps in pieces of about ``at_once`` collectives; first comes the rest."""
    last = timing.scenario.whole_steps
    each = max(at_once * timing.scenario.steps // max(timing.start.size + timing.transfer_start.size, 1), 1)
    job = _but_steps(timing, metrics=True)
    yield job
    for first in range(0, last, each):
        until = min(first + each, last)
        yield Run(job.job, steps=steps_of(timing, until, first), collectives=collectives_of(timing, until, first))


def _but_steps(timing: Timing, metrics: bool) -> Run:
    """Everything but steps and collectives."""
    return Run(
        job=Job(id=f"simulated-{timing.scenario.seed}", world_size=timing.scenario.ranks, source="simulation"),
        ranks=_ranks(timing.scenario),
        communicators=communicators_of(timing.groups),
        in_flight=in_flight(timing),
        metrics=telemetry(timing) if metrics else table("metrics", node=[]),
    )


def _ranks(scenario: Scenario) -> Table:
    rank = np.arange(scenario.ranks)
    return table(
        "ranks",
        rank=rank,
        world_size=scenario.ranks,
        local_rank=rank % scenario.gpus_per_node,
        node=[node(scenario, one) for one in rank.tolist()],
        pid=1000 + rank,
        gpu_uuid=[gpu(one) for one in rank.tolist()],
        framework="torch",
        start_ns=EPOCH_NS,
    )


def node(scenario: Scenario, rank: int) -> str:
    return f"node{rank // scenario.gpus_per_node:04d}"


def gpu(rank: int) -> str:
    return f"GPU-{rank:08x}"


def on_host_clock(draws: Draws, times: Array, ranks: Any = slice(None)) -> Array:
    """What the clocks of the ranks' nodes show at these true times, ns since the run's begin."""
    shown: Array = np.rint(EPOCH_NS + draws.clock_ns[ranks] + times * draws.drift[ranks]).astype(np.int64)
    return shown


def _on_gpu_clock(draws: Draws, times: Array, ranks: Any = slice(None)) -> Array:
    shown: Array = np.rint(EPOCH_NS + draws.gpu_clock_ns[ranks] + times * draws.gpu_drift[ranks]).astype(np.int64)
    return shown


def steps_of(timing: Timing, last: int, first: int = 0) -> Table:
    """The steps from ``first`` to before ``last``, rank by rank."""
    scenario, draws, cut = timing.scenario, timing.draws, slice(first, last)
    shape = (last - first, scenario.ranks)
    until = np.vstack([timing.begin[1:], timing.finish[-1:]])[cut]
    start = on_host_clock(draws, timing.begin[cut])
    issue = ISSUE_SHARE * scenario.step_ms * 1e6 * draws.host[cut]
    runqueue = timing.host["runqueue"][cut]
    more = 1 + timing.acting("workload")[cut]
    rare = {name: timing.host[name] for name in ("checkpoint", "gc")}
    columns = {
        "rank": np.broadcast_to(np.arange(scenario.ranks), shape),
        "step": np.broadcast_to(np.arange(first, last)[:, None], shape),
        "start_ns": start,
        "duration_ns": on_host_clock(draws, until) - start,
        "work": np.rint(TOKENS * draws.lengths[cut] * more),
        "input_ns": timing.host["input"][cut],
        "h2d_ns": timing.gpu["h2d"][cut],
        "forward_ns": 0.3 * issue + runqueue + timing.host["memory"][cut],
        "backward_ns": 0.6 * issue,
        "optimizer_ns": 0.1 * issue,
        "cpu_ns": issue + timing.host["input"][cut],
        "runqueue_ns": runqueue + 0.001 * issue,
        # measured from its first sight on: a rank that never had it does not know of it
        **{f"{name}_ns": np.where(one.any(axis=0), one, UNMEASURED)[cut] for name, one in rare.items()},
        **{f"gpu_{phase}_ns": timing.gpu[phase][cut] for phase in ("forward", "backward", "optimizer")},
    }
    flat = {name: np.rint(values.T).astype(np.int64).ravel() for name, values in columns.items()}
    return table("steps", kind="train", **flat)


def numbers(keys: Sequence[Hashable]) -> tuple[Array, Array]:
    """Of each operation of a step: its place among those of the same key, and how many of these a step has."""
    place: list[int] = []
    count: Counter[Hashable] = Counter()
    for key in keys:
        place.append(count[key])
        count[key] += 1
    return np.array(place), np.array([count[key] for key in keys])


def comm_id(kind: Groups, number: Array) -> Array:
    """Communicator ids of groups by their number."""
    base = int.from_bytes(kind.name.encode().ljust(8, b"\0")[:6], "big") << 16
    return (base + number).astype(np.uint64)


def collectives_of(timing: Timing, last: int, first: int = 0) -> Table:
    """The collectives of the steps from ``first`` to before ``last``, rank by rank; then what went between two."""
    items, cut = timing.collectives, slice(first, last)
    place, count = numbers([item.groups for item in items])
    step = np.arange(first, last)[:, None, None]
    start, stop = (_on_gpu_clock(timing.draws, times[cut]) for times in (timing.start, timing.end))
    size = [round(GRADIENT_BYTES * item.share) + 512 * at for item, at in zip(items, place.tolist(), strict=True)]
    kinds = [timing.groups[item.groups] for item in items]
    columns = {
        "rank": np.arange(timing.scenario.ranks),
        "comm": np.array([comm_id(kind, kind.member) for kind in kinds]),
        "seq": step * count[:, None] + place[:, None],
        "op": np.array([item.op for item in items], "U16")[:, None],
        "start_ns": start,
        "duration_ns": stop - start,
        "bytes": np.array(size, np.int64)[:, None],
        "step": step,
    }
    by_rank = {name: np.moveaxis(np.broadcast_to(one, start.shape), -1, 0).ravel() for name, one in columns.items()}
    return concatenate(
        "collectives", [table("collectives", flags=GPU_TIME, **by_rank), _transfers(timing, last, first)]
    )


def _transfers(timing: Timing, last: int, first: int) -> Table:
    """Sends and receives of a pipeline, numbered per direction and peer."""
    if not timing.transfers:
        return table("collectives", rank=[])
    place, count = numbers(timing.transfers)
    began, ended = timing.transfer_start[first:last], timing.transfer_end[first:last]
    stages = np.arange(timing.begin.shape[1]).reshape(-1, began.shape[-1])
    ranks, step = stages[[one.stage for one in timing.transfers]], np.arange(first, last)[:, None, None]
    start = _on_gpu_clock(timing.draws, began, ranks)
    columns = {
        "rank": ranks,
        "seq": step * count[:, None] + place[:, None],
        "op": np.array([one.op for one in timing.transfers])[:, None],
        "start_ns": start,
        "duration_ns": _on_gpu_clock(timing.draws, ended, ranks) - start,
        "peer": stages[[one.peer for one in timing.transfers]],
        "step": step,
    }
    flat = {name: np.broadcast_to(one, start.shape).ravel() for name, one in columns.items()}
    return table("collectives", comm=np.uint64(1), bytes=GRADIENT_BYTES // 64, flags=GPU_TIME, **flat)


def communicators_of(known: dict[str, Groups]) -> Table:
    """Every rank's place in each of its communicators."""
    parts = []
    for kind in known.values():
        ranks = np.arange(len(kind.member))
        inside = np.empty_like(ranks)
        inside[kind.order] = ranks % kind.size
        comm = comm_id(kind, kind.member)
        parts.append(table("communicators", comm=comm, rank=ranks, rank_in=inside, size=kind.size, name=kind.name))
    return concatenate("communicators", parts)


def in_flight(timing: Timing, seen_ns: int | None = None) -> Table:
    """Where a stopped job stands: a row for each operation that a rank entered and cannot leave, by its host's clock.

    ``seen_ns`` is when it was looked at, ns since the run's begin: unless given, :data:`SEEN_SECONDS` after the stop.
    """
    scenario, draws, stops = timing.scenario, timing.draws, standing(timing.scenario)
    if not stops:
        return table("in_flight", rank=[])
    at = [one.place for one in stops]
    place, count = numbers([item.groups for item in timing.collectives])
    ranks = np.concatenate([one.ranks for one in stops])
    size = [len(one.ranks) for one in stops]
    entered = np.concatenate([timing.start[scenario.halts_at, one.place, one.ranks] for one in stops])
    seen = timing.stopped_ns + SEEN_SECONDS * 10**9 if seen_ns is None else seen_ns
    kinds = [timing.groups[timing.collectives[i].groups] for i in at]
    found = table(
        "in_flight",
        rank=ranks,
        kind="collective",
        name=np.repeat([one.op for one in stops], size),
        comm=np.concatenate([comm_id(kind, kind.member[one.ranks]) for kind, one in zip(kinds, stops, strict=True)]),
        seq=np.repeat(scenario.whole_steps * count[at] + place[at], size),
        start_ns=on_host_clock(draws, entered, ranks),
        observed_ns=on_host_clock(draws, np.full(len(ranks), float(seen)), ranks),
    )
    return select(found, np.argsort(ranks, kind="stable"))
