"""Node, process and GPU samples of a simulated run, at 1 Hz or ten a run, whichever is more often."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindmost_collector.formats.tables import concatenate, table
from hindmost_collector.simulate.engine import SEEN_SECONDS, acting, stopped_ns

if TYPE_CHECKING:
    from hindmost_judge.model import Table

    from hindmost_collector.simulate.engine import Draws, Timing
    from hindmost_collector.simulate.layout import Array
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
#: 0.17, copies 0.99, 0 and 0.89 (bench/gpu/agent_gpu.py); training has kernels of all kinds.
ACTIVITY = {"compute": (0.97, 0.55, 0.3), "memory": (0.98, 0.1, 0.8)}
_ACTIVE = tuple(f"hindmost_gpu_{what}_activity_ratio" for what in ("sm", "tensor", "dram"))


class Metric(NamedTuple):
    """A metric, and of a node's pressure the resource that tasks stand still for."""

    name: str
    resource: str = ""


_PRESSURE = {name: Metric("hindmost_node_pressure_waiting_seconds_total", name) for name in ("memory", "io")}


def telemetry(scenario: Scenario, draws: Draws, timing: Timing, epoch_ns: int) -> Table:
    """Every rank's GPU clock, reasons and memory, and its process' waiting for a CPU, from true times."""
    at, series = sampled(scenario, draws, timing)
    times = np.rint(epoch_ns + at[:, None] + draws.clock_ns[None, :]).astype(np.int64)
    return concatenate("metrics", [_series(scenario, metric, times, values) for metric, values in series.items()])


def sampled(scenario: Scenario, draws: Draws, timing: Timing) -> tuple[Array, dict[Metric, Array]]:
    """When samples are taken [T], ns from the begin on the clock that all share; and of each metric [T, R] values.

    A stopped job's nodes are sampled for as long as it was looked at.
    """
    end = float(timing.finish[-1].max())
    if scenario.halts_at is not None:
        end = stopped_ns(scenario, timing) + SEEN_SECONDS * 1e9
    count = int(np.clip(end / 1e9, 10, 120))
    at = np.linspace(0, end, count, endpoint=False) + end / count / 2
    step = np.clip(np.searchsorted(timing.begin[:, 0], at, side="right") - 1, 0, max(scenario.whole_steps - 1, 0))
    random = np.random.default_rng([scenario.seed, 0x54454C45])
    slow = {cause: acting(scenario, draws, cause)[step] for cause in ("gpu_throttle", "gpu_contention")}
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


def told_by(scenario: Scenario, metric: Metric, ranks: range) -> list[int]:
    """Which of these ranks have a series of this metric: of a node's own, the first rank of each node stands for it."""
    return [rank for rank in ranks if not metric.resource or rank % scenario.gpus_per_node == 0]


def _series(scenario: Scenario, metric: Metric, times: Array, values: Array) -> Table:
    """Long rows, rank by rank."""
    count = times.shape[0]
    ranks = told_by(scenario, metric, range(scenario.ranks))
    times, values = times[:, ranks], values[:, ranks]
    labels = [json.dumps(labels_of(scenario, metric, rank)) for rank in ranks]
    return table(
        "metrics",
        node=np.repeat([f"node{rank // scenario.gpus_per_node:04d}" for rank in ranks], count),
        name=metric.name,
        labels=np.repeat(labels, count),
        time_ns=times.T.ravel(),
        value=values.T.ravel(),
    )


def labels_of(scenario: Scenario, metric: Metric, rank: int) -> dict[str, str]:
    """Labels of a rank's series of this metric."""
    if metric.resource:
        return {"resource": metric.resource}
    job = {"job": f"simulated-{scenario.seed}", "rank": str(rank)}
    uuid = {"gpu_uuid": f"GPU-{rank:08x}"}
    if metric.name.startswith("hindmost_process"):
        return job
    return uuid | job if "process" in metric.name else uuid
