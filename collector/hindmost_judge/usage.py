"""What hosts, GPUs and processes used over a run: each sampled metric as one number for each rank, GPU or node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes.telemetry import labels_of
from hindmost_judge.model import rows

if TYPE_CHECKING:
    from collections.abc import Mapping

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

#: How samples of a metric become one number: rise of a counter, its rate a second, its highest rate between two
#: samples, mean, median, highest and lowest of a gauge.
SUMMARIES = ("rise", "rate", "peak_rate", "mean", "median", "highest", "lowest")


def summary(
    metrics: Metrics, name: str, of: str, how: str, labels: Mapping[str, str] | None = None, between: str = ""
) -> dict[Owner, float]:
    """(node, owner) to the number, of series with these ``labels``; without those that have no sample for it.

    ``of`` is the label that names the owner: ``rank``, ``gpu_uuid``; empty: the node. Several series of one owner add
    up; ``between`` names a label of which only the largest series counts.
    """
    found = metrics.samples(name)
    if found is None:
        return {}
    values = _number(found, how)
    totals: dict[Owner, float] = {}
    each: dict[tuple[str, str, str], float] = {}
    whose = zip(found.label.tolist(), found.node.tolist(), values.tolist(), strict=True)
    for label, node, value in whose:
        has = labels_of(metrics.labels[label])
        if value != value or (of and of not in has) or not (labels or {}).items() <= has.items():  # noqa: PLR0124
            continue
        owner = (metrics.nodes[node], has[of] if of else metrics.nodes[node])
        if between:
            each[owner[0], owner[1], has.get(between, "")] = value
        else:
            totals[owner] = totals.get(owner, 0.0) + value
    for (node, owner_, _), value in each.items():
        totals[node, owner_] = max(totals.get((node, owner_), -np.inf), value)
    return totals


def by_rank(metrics: Metrics, name: str, how: str) -> dict[int, float]:
    """Rank to the number of its process."""
    return {int(rank): value for (_, rank), value in summary(metrics, name, "rank", how).items() if rank.isdigit()}


def by_label(metrics: Metrics, name: str, of: str, how: str, label: str) -> dict[Owner, dict[str, float]]:
    """The same for each value of a label: what held clocks back, for example."""
    found = metrics.samples(name)
    if found is None:
        return {}
    values, shown = _number(found, how), dict[Owner, dict[str, float]]()
    for at, node, value in zip(found.label.tolist(), found.node.tolist(), values.tolist(), strict=True):
        has = labels_of(metrics.labels[at])
        if value == value and label in has and (not of or of in has):  # noqa: PLR0124 - false for NaN only
            owner = (metrics.nodes[node], has[of] if of else metrics.nodes[node])
            of_owner = shown.setdefault(owner, {})
            of_owner[has[label]] = of_owner.get(has[label], 0.0) + value
    return shown


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


def _number(found: MetricSamples, how: str) -> Floats:
    """[K] the number of each series; NaN where it has too few samples."""
    first, count = found.first[:-1], np.diff(found.first)
    if how in ("rise", "rate", "peak_rate"):
        return _rises(found, how)
    if how == "median":
        return np.array([np.median(found.value[at : at + of]) for at, of in zip(first, count, strict=True)])
    if how == "mean":
        return np.asarray(np.add.reduceat(found.value, first) / count)
    return np.asarray((np.fmax if how == "highest" else np.fmin).reduceat(found.value, first))


def _rises(found: MetricSamples, how: str) -> Floats:
    """[K] of counters; one that begins again counts from zero."""
    series = np.repeat(np.arange(len(found.label)), np.diff(found.first))
    same = series[1:] == series[:-1]
    rise, seconds = np.diff(found.value), np.diff(found.time) / 1e9
    rise = np.where(rise < 0, found.value[1:], rise)[same]
    held, seconds, number = seconds[same] > 0, seconds[same], series[1:][same]
    out = np.full(len(found.label), np.nan)
    if how == "peak_rate":
        np.fmax.at(out, number[held], rise[held] / seconds[held])
        return out
    total, lasted = (np.bincount(number[held], one[held], len(out)) for one in (rise, seconds))
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
