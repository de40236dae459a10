"""What hosts, GPUs and processes used over a run: each sampled metric as one number for each rank, GPU or node."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindmost_judge.causes.telemetry import labels_of, rises
from hindmost_judge.model import rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hindmost_judge.causes.telemetry import Metrics, MetricSamples
    from hindmost_judge.model import Run
    from hindmost_judge.overview import Overview
    from hindmost_judge.types import Array, Floats


def of_steps(run: Run, seen: Overview | None) -> tuple[int, int] | None:
    """From when to when the judged steps were, ns of the job's clock; ``None`` where that is not known."""
    table = run.steps
    if seen is None or not len(seen.steps) or not rows(table):
        return None
    held = (table["step"] >= seen.steps[0]) & (table["step"] <= seen.steps[-1]) & (table["duration_ns"] > 0)
    if not held.any():
        return None
    start = table["start_ns"][held]
    return int(start.min()), int((start + table["duration_ns"][held]).max())


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
    """Rank to the number of its process."""
    return {int(rank): value for (_, rank), value in summary(metrics, name, "rank", how).items() if rank.isdigit()}


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


def _number(found: MetricSamples, how: str) -> Floats:
    """[K] the number of each series: of a counter its rise, its rate a second, or its highest rate between two samples;
    of a gauge its mean, median, highest or lowest. NaN where it has too few samples."""
    first, count = found.first[:-1], np.diff(found.first)
    if how in ("rise", "rate", "peak_rate"):
        return _rises(found, how)
    if how == "median":
        return np.array([np.median(found.value[at : at + of]) for at, of in zip(first, count, strict=True)])
    if how == "mean":
        return np.asarray(np.add.reduceat(found.value, first) / count)
    return np.asarray((np.fmax if how == "highest" else np.fmin).reduceat(found.value, first))


def _rises(found: MetricSamples, how: str) -> Floats:
    """[K] of counters."""
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


def spread(values: Array) -> tuple[float, int, float, float, int] | None:
    """Least, where it is, median, most, where it is; ``None`` where nothing is known."""
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        return None
    held = values[known]
    low, high = int(known[held.argmin()]), int(known[held.argmax()])
    return float(values[low]), low, float(np.median(held)), float(values[high]), high
