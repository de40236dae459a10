"""What hosts, GPUs and processes used over a run: each sampled metric as one number for each rank, GPU or node.

Calls on files are counted by size. How fast GPUs computed, and moved their memory, against what they can at best is a
coarse roofline (Williams, Waterman, Patterson, 2009). It is from NVIDIA's GPU performance monitor (GPM, Hopper and
later). What tensor cores do at best is `datasheet <https://www.nvidia.com/en-us/data-center/h200/>`_ operations a cycle
times the clock that was sampled. Without the monitor nothing is known but what was counted by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hindmost_judge.blocks import Blocks
from hindmost_judge.causes.telemetry import COMMAND, Metrics, MetricSamples, labels_of, rises
from hindmost_judge.encoding import codes
from hindmost_judge.model import Run, rows
from hindmost_judge.overview import Overview
from hindmost_judge.stats.robust import or_zero
from hindmost_judge.types import Floats


def of_steps(run: Run, seen: Overview | Blocks | None) -> tuple[int, int] | None:
    """From when to when the judged steps were, ns of the job's clock; ``None`` where that is not known."""
    table = run.steps
    if seen is None or not len(seen.steps) or not rows(table):
        return None
    mask = (table["step"] >= seen.steps[0]) & (table["step"] <= seen.steps[-1]) & (table["duration_ns"] > 0)
    if not mask.any():
        return None
    start = table["start_ns"][mask]
    return int(start.min()), int((start + table["duration_ns"][mask]).max())


#: Whose a series is: a rank's number, a GPU's name or a node's.
Owner = tuple[str, str]


def summary(
    metrics: Metrics, name: str, of: str, how: str, labels: Mapping[str, str] | None = None
) -> dict[Owner, float]:
    """(node, owner) to the number, of series with these ``labels``; without those that have no sample for it.

    ``of`` is the label that names the owner: ``rank``, ``gpu_uuid``; empty: the node. Several series of one owner add
    up.
    """
    totals: dict[Owner, float] = {}
    for owner, has, value in _each(metrics, name, of, how):
        if (labels or {}).items() <= has.items():
            totals[owner] = totals.get(owner, 0.0) + value
    return totals


def by_rank(metrics: Metrics, name: str, how: str) -> dict[int, float]:
    """Rank to the number of its process. A run without ranks has its command's process as 0."""
    command = {} if metrics.has_ranks else {COMMAND: "0"}
    found = ((command.get(label, label), value) for (_, label), value in summary(metrics, name, "rank", how).items())
    return {int(rank): value for rank, value in found if rank.isdigit()}


def by_label(metrics: Metrics, name: str, of: str, how: str, label: str) -> dict[Owner, dict[str, float]]:
    """The same for each value of a label: what held clocks back, for example."""
    shown: dict[Owner, dict[str, float]] = {}
    for owner, has, value in _each(metrics, name, of, how):
        if label in has:
            of_owner = shown.setdefault(owner, {})
            of_owner[has[label]] = of_owner.get(has[label], 0.0) + value
    return shown


def _each(metrics: Metrics, name: str, of: str, how: str) -> Iterator[tuple[Owner, dict[str, str], float]]:
    """Whose each series is, its labels and its number; without series that have no owner, or no sample for it."""
    found = metrics.samples(name)
    if found is None:
        return
    for at, node, value in zip(found.label.tolist(), found.node.tolist(), _number(found, how).tolist(), strict=True):
        has = labels_of(metrics.labels[at])
        if value == value and (not of or of in has):  # noqa: PLR0124 - false for NaN only
            yield (metrics.nodes[node], has[of] if of else metrics.nodes[node]), has, value


#: CPU modes that are no work, and those that the kernel counts as user time too.
_NOT_WORK, _TWICE = frozenset({"idle", "iowait"}), frozenset({"guest", "guest_nice"})


def cpu_busy(metrics: Metrics) -> dict[str, float]:
    """Node to the share of its CPUs' time that was work."""
    found = {}
    for (node, _), modes in by_label(metrics, "hindmost_node_cpu_seconds_total", "", "rate", "mode").items():
        every = sum(rate for mode, rate in modes.items() if mode not in _TWICE)
        if every > 0 and "idle" in modes:
            found[node] = 1.0 - sum(modes.get(mode, 0.0) for mode in _NOT_WORK) / every
    return found


def pressure(metrics: Metrics, resource: str) -> dict[str, float]:
    """Node to the share of the time in which some task waited for it."""
    name = "hindmost_node_pressure_waiting_seconds_total"
    return {node: share for (node, _), share in summary(metrics, name, "", "rate", {"resource": resource}).items()}


class CpuUse(NamedTuple):
    """CPUs of a node: how many there are, and how many its ``ranks`` with their workers and all ``others`` use."""

    cpus: float
    ranks: float
    others: float


def cpu_use(metrics: Metrics) -> dict[str, CpuUse]:
    """Node to who uses its CPUs, of nodes of which all of it was sampled."""
    cpus = {node: value for (node, _), value in summary(metrics, "hindmost_node_cpus", "", "median").items()}
    ours: dict[str, float] = {}
    for whose in ("", "children_"):
        for (node, _), value in summary(metrics, f"hindmost_process_{whose}cpu_seconds_total", "rank", "rate").items():
            ours[node] = ours.get(node, 0.0) + value
    busy = {node: share * cpus[node] for node, share in cpu_busy(metrics).items() if node in cpus and node in ours}
    return {node: CpuUse(cpus[node], ours[node], max(used - ours[node], 0.0)) for node, used in busy.items()}


def used_by_others(use: Mapping[str, CpuUse]) -> str | None:
    """The node whose CPUs other processes use most, as a share; ``None`` where none was sampled."""
    return max(use, key=lambda node: use[node].others / use[node].cpus, default=None)


def _number(found: MetricSamples, how: str) -> Floats:
    """[K] the number of each series: of a counter its rise, its rate a second, or its highest rate between two samples;
    of a gauge its mean, median, highest or lowest, or its ``integral`` over seconds. NaN where samples are missing.
    """
    first, count = found.first[:-1], np.diff(found.first)
    if how in ("rise", "rate", "peak_rate"):
        return _rises(found, how)
    if how == "integral":
        spans = [slice(at, at + of) for at, of in zip(first, count, strict=True)]
        return np.array([_integral(found.value[span], found.time[span] / 1e9) for span in spans])
    if how == "median":
        return np.array([np.median(found.value[at : at + of]) for at, of in zip(first, count, strict=True)])
    if how == "mean":
        return np.asarray(np.add.reduceat(found.value, first) / count)
    return np.asarray((np.fmax if how == "highest" else np.fmin).reduceat(found.value, first))


#: A gap is longer than so many periods; an integral is not known where gaps are more than this share of the time.
_GAP, _GAPS = 5, 0.01


def _integral(value: Floats, seconds: Floats) -> float:
    between = np.diff(seconds)
    if not len(between) or between[between > _GAP * np.median(between)].sum() > _GAPS * between.sum():
        return float("nan")
    return float(np.trapezoid(value, seconds))


def _rises(found: MetricSamples, how: str) -> Floats:
    series = np.repeat(np.arange(len(found.label)), np.diff(found.first))
    number, _, rise, seconds = rises(series, found.time, found.value)
    out = np.full(len(found.label), np.nan)
    if how == "peak_rate":
        np.fmax.at(out, number, rise / seconds)
        return out
    total, lasted = (np.bincount(number, one, len(out)) for one in (rise, seconds))
    measured = lasted > 0
    out[measured] = total[measured] / (lasted[measured] if how == "rate" else 1.0)
    return out


@dataclass(frozen=True)
class Model:
    """What a GPU can: dense bf16 operations a cycle, the same a second by its datasheet, memory bytes a second."""

    cycle: float
    flops: float
    bandwidth: float


#: Dense bf16 operations that one SM completes in a clock, by generation.
_HOPPER, _BLACKWELL, _AMPERE = 4096.0, 8192.0, 2048.0
#: By the name that NVML gives; the first that matches.
MODELS: tuple[tuple[str, Model], ...] = (
    (r"H200", Model(132 * _HOPPER, 989e12, 4.8e12)),
    (r"GH200", Model(132 * _HOPPER, 989e12, 4.0e12)),
    (r"H100.*(PCIe)", Model(114 * _HOPPER, 756e12, 2.0e12)),
    (r"H100.*(NVL)", Model(132 * _HOPPER, 835e12, 3.9e12)),
    (r"H100|H800", Model(132 * _HOPPER, 989e12, 3.35e12)),
    (r"B200|GB200", Model(148 * _BLACKWELL, 2250e12, 8.0e12)),
    (r"A100.*80", Model(108 * _AMPERE, 312e12, 2.0e12)),
    (r"A100", Model(108 * _AMPERE, 312e12, 1.55e12)),
)
#: Of what GPM calls tensor cores active, so much is arithmetic. Nine kernels on an H200 (cuBLAS of five shapes, bf16,
#: fp16 and TF32, attention) had 0.857 to 0.906 of the operations that their activity and clock would be.
USED = 0.893
#: What GPM says is of the seconds before it: samples so long after the first step are of steps alone.
PERIOD_NS = 5_000_000_000
#: Tensor cores that work less than this are not what a job computes with.
_LEAST = 0.01


@dataclass(frozen=True)
class Achieved:
    """The mean GPU of one model: ``flops`` and ``bytes_per_s`` achieved of ``peak_flops`` and ``peak_bytes_per_s``.

    ``None`` is unknown. ``flops`` are of bf16 or fp16, of TF32 half. ``ridge``: with fewer operations a byte than these
    memory is the limit; ``intensity`` is what was done. ``mfu`` is of operations that were counted by hand.
    """

    gpu: str
    gpus: int
    flops: float | None
    peak_flops: float | None
    bytes_per_s: float | None
    peak_bytes_per_s: float | None
    intensity: float | None
    ridge: float | None
    mfu: float | None = None


def achieved(metrics: Metrics, gpus: set[str], span: tuple[int, int], counted: float | None = None) -> list[Achieved]:
    """A row a model of these GPUs. ``span``: of the steps, ns. ``counted``: operations a second of the whole job."""
    of_steps = metrics.during(span[0] + PERIOD_NS, span[1])
    models_of = by_label(metrics, "hindmost_gpu_info", "gpu_uuid", "highest", "model")
    named = {uuid: next(iter(of)) for (_, uuid), of in models_of.items()}
    models = sorted({named[uuid] for uuid in gpus if uuid in named})
    found = []
    for name in models:
        one = next((model for pattern, model in MODELS if re.search(pattern, name)), None)
        of = {uuid for uuid in gpus if named.get(uuid) == name}
        tensor, memory, clock = (
            _mean(of_steps, metric, of) for metric in ("tensor_activity_ratio", "dram_activity_ratio", "sm_clock_hertz")
        )
        flops = moved = None
        if one is not None and not np.isnan(tensor) and not np.isnan(clock) and tensor >= _LEAST:
            flops = tensor * USED * one.cycle * clock
        if one is not None and not np.isnan(memory):
            moved = memory * one.bandwidth
        if flops is None and moved is None and counted is None:
            continue
        found.append(
            Achieved(
                gpu=name,
                gpus=len(of),
                flops=flops,
                peak_flops=one.flops if one else None,
                bytes_per_s=moved,
                peak_bytes_per_s=one.bandwidth if one else None,
                intensity=flops / moved if flops and moved else None,
                ridge=one.flops / one.bandwidth if one else None,
                mfu=counted / (len(gpus) * one.flops) if one and counted and len(models) == 1 else None,
            )
        )
    return found


def _mean(metrics: Metrics, name: str, gpus: set[str]) -> float:
    found = summary(metrics, f"hindmost_gpu_{name}", "gpu_uuid", "mean")
    levels = [value for (_, uuid), value in found.items() if uuid in gpus]
    return float(np.mean(levels)) if levels else float("nan")


#: How calls on files begin, as the MPI shim names them.
PREFIX = "file_"


class FileCalls(NamedTuple):
    """Calls of one operation whose sizes have the same power of two above them, of all ranks.

    ``least`` and ``most`` are the smallest and the largest call, ``total`` all bytes; ``None`` where none move.
    ``bandwidth`` is bytes a second while a rank is in such a call.
    """

    operation: str
    least: int | None
    most: int | None
    ranks: int
    calls: int
    total: int | None
    took_ms: float
    longest_ms: float
    bandwidth: float | None


def file_calls(run: Run) -> list[FileCalls]:
    """Calls on files that ranks recorded, by operation and size: a row each, those that take most time first."""
    table = run.intervals
    mask = (
        np.char.startswith(table["name"].astype(np.str_), PREFIX) & (table["duration_ns"] >= 0) if rows(table) else None
    )
    if mask is None or not mask.any():
        return []
    name, names = codes(table["name"][mask].astype(np.str_))
    size = or_zero(np.maximum(table["value"][mask], 0.0))
    size_class = np.where(size > 0, np.ceil(np.log2(np.maximum(size, 1.0))), -1.0)
    kinds, which = np.unique(np.stack([name.astype(np.float64), size_class]), axis=1, return_inverse=True)
    found = []
    for at, (operation, of_class) in enumerate(kinds.T.tolist()):
        mine = which.ravel() == at
        took, moved = table["duration_ns"][mask][mine] / 1e6, size[mine]
        sized = of_class >= 0
        found.append(
            FileCalls(
                operation=names[int(operation)].removeprefix(PREFIX),
                least=int(moved.min()) if sized else None,
                most=int(moved.max()) if sized else None,
                ranks=len(np.unique(table["rank"][mask][mine])),
                calls=int(mine.sum()),
                total=int(moved.sum()) if sized else None,
                took_ms=float(took.mean()),
                longest_ms=float(took.max()),
                bandwidth=float(moved.sum() / took.sum() * 1e3) if sized and took.sum() > 0 else None,
            )
        )
    return sorted(found, key=lambda one: -one.calls * one.took_ms)
