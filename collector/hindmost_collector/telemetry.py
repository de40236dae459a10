"""Node and process metrics by rank: the join that a metric's labels and the rank table allow."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.align import codes
from hindmost_collector.model import Run, rows

if TYPE_CHECKING:
    from hindmost_collector.align import Array, Floats

Series = tuple["Array", "Floats"]


def per_rank(run: Run, name: str) -> dict[int, list[Series]]:
    """Rank to the series (times, values) of one metric that are its own: of its process, of its GPU, or of its node.

    A series that says no rank and no GPU is the node's, and so every rank's there.
    """
    table = run.metrics
    if rows(table) == 0:
        return {}
    chosen = np.flatnonzero(table["name"] == name)
    if len(chosen) == 0:
        return {}
    label, texts = codes(table["labels"][chosen])
    node, nodes = codes(table["node"][chosen])
    found: dict[int, list[Series]] = {}
    for one in np.unique(label * len(nodes) + node).tolist():
        held = chosen[(label == one // len(nodes)) & (node == one % len(nodes))]
        held = held[np.argsort(table["time_ns"][held], kind="stable")]
        series = (table["time_ns"][held], table["value"][held].astype(np.float64))
        for rank in _owners(run, _labels(texts[one // len(nodes)]), nodes[one % len(nodes)]):
            found.setdefault(rank, []).append(series)
    return found


def _labels(text: str) -> dict[str, str]:
    try:
        parsed = json.loads(text or "{}")
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in parsed.items()} if isinstance(parsed, dict) else {}


def _owners(run: Run, labels: dict[str, str], node: str) -> list[int]:
    ranks = run.ranks
    if "rank" in labels:
        return [int(labels["rank"])] if labels["rank"].lstrip("-").isdigit() else []
    mask = (ranks["node"] == node) | (node == "")
    if "gpu_uuid" in labels:
        mask &= ranks["gpu_uuid"] == labels["gpu_uuid"]
    return [int(rank) for rank in ranks["rank"][mask]]


def level(series: list[Series], start_ns: int | None = None, end_ns: int | None = None) -> float:
    """Mean of a gauge's samples in a time window; NaN where there is none."""
    values = [v[_inside(t, start_ns, end_ns)] for t, v in series]
    known = np.concatenate(values) if values else np.empty(0)
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) else float("nan")


def rate(series: list[Series], start_ns: int | None = None, end_ns: int | None = None) -> float:
    """Increase per second of counters, summed over their series; a reset counts from zero. NaN where unmeasured."""
    total, seen = 0.0, False
    for times, values in series:
        inside = _inside(times, start_ns, end_ns) & ~np.isnan(values)
        t, v = times[inside], values[inside]
        if len(t) < 2 or t[-1] == t[0]:
            continue
        rises = np.diff(v)
        total += float(np.where(rises < 0, v[1:], rises).sum() / ((t[-1] - t[0]) / 1e9))
        seen = True
    return total if seen else float("nan")


def _inside(times: Array, start_ns: int | None, end_ns: int | None) -> Array:
    mask = np.ones(len(times), bool)
    if start_ns is not None:
        mask &= times >= start_ns
    if end_ns is not None:
        mask &= times <= end_ns
    return mask
