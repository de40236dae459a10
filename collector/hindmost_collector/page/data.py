"""What the page is made of, as JSON: from a step history, a report and a run, live and after the end alike."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from hindmost_judge import communication
from hindmost_judge.causes.telemetry import SOURCES
from hindmost_judge.model import Run
from hindmost_judge.overview import Overview
from hindmost_judge.types import Array, Floats, Ints

from hindmost_collector.page.history import Means, StepHistory
from hindmost_collector.report import machine_tables, sections
from hindmost_collector.report.verdict_lines import with_rendered

#: Shares of a step are sent as 16-bit integers, so many to one step; the least one is "not measured".
UNIT, MISSING = 16384, -32768
#: Rows of the heat map at most, and numbers that a file holds to compute means of chosen steps from.
ROWS, CUBE = 256, 400_000
#: Columns of steps that these are kept for, however many ranks there are: fewer show no change, more are not seen.
FEWEST_COLUMNS, MOST_COLUMNS = 12, 120
#: A heat map's colours end at so much more than what the latest row has in this share of its columns, so that one slow
#: rank of thousands stands out of their noise; and at no less than this share of a step.
_TOP, _MORE, _LEAST = 95, 1.5, 0.1
#: Values that are no parts of a lane.
FIGURES = ("delay", "caused", "last", "self", "wait", "transfer")
#: Stacks are cut to so many characters.
_STACK = 4000


def base64_of(array: Array) -> str:
    """Its bytes, little-endian."""
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def integers(shares: Iterable[Floats]) -> str:
    """Shares of a step, one array after the other."""
    block = np.stack([np.asarray(floats, np.float64) for floats in shares])
    scaled = np.clip(np.nan_to_num(block) * UNIT, MISSING + 1, -MISSING - 1).round()
    return base64_of(np.where(np.isnan(block), MISSING, scaled).astype("<i2"))


def of_means(means: Means) -> dict[str, Any]:
    """Means of some steps: which, how long, and figures and parts of both lanes, for each rank."""
    named = {name: means.shares[name] for name in FIGURES if name in means.shares}
    for lane, found in means.lanes().items():
        named |= {f"{lane}:{part}": values for part, values in found.parts.items()}
    return {
        "first": means.first,
        "last": means.last,
        "steps": means.steps,
        "step_ms": means.step_ms,
        "names": list(named),
        "shares": integers(named.values()),
    }


def heat_map(history: StepHistory, order: Ints | None, step_ms: float) -> dict[str, Any] | None:
    """Delays, a byte each: 0 is not measured, 1 to 255 from none to ``top_ms``, as the square root of the delay.

    The mean step takes ``step_ms``.
    """
    heat = history.heat(ROWS, order)
    if heat is None or np.isnan(heat.ms).all():  # a single rank has no peers
        return None
    late = np.nan_to_num(heat.ms)
    latest = np.partition(late, late.shape[1] * _TOP // 100, axis=1)[:, late.shape[1] * _TOP // 100]
    top = max(_MORE * float(latest.max()), _LEAST * step_ms)
    level = 1 + 254 * np.sqrt(np.clip(np.nan_to_num(heat.ms) / top, 0.0, 1.0))
    cells = np.where(np.isnan(heat.ms), 0, level.round()).astype(np.uint8)
    return {
        "rows": len(cells),
        "per_row": heat.per_row,
        "order": heat.order.tolist(),
        "top_ms": top,
        "cells": base64_of(cells),
    }


def of_steps(
    history: StepHistory, nodes: Mapping[int, str], by: str = "node", first: int | None = None, last: int | None = None
) -> dict[str, Any] | None:
    """All that is shown by step, with the means of all and of the chosen steps; None before there is any."""
    whole = history.means()
    if whole is None:
        return None
    chosen = history.means(first, last) if first is not None or last is not None else None
    return {
        "ranks": history.ranks.tolist(),
        "role": history.cohort.tolist(),
        "columns": history.columns(),
        "heat": heat_map(history, order_of(history, nodes, by), whole.step_ms),
        "by": by,
        "whole": of_means(whole),
        "chosen": of_means(chosen) if chosen is not None else None,
    }


def order_of(history: StepHistory, nodes: Mapping[int, str], by: str) -> Ints:
    """The places of ranks from top to bottom: by node, or by stage, which is what they do alike; then by number."""
    if by == "stage":
        return np.lexsort((history.ranks, history.cohort))
    names = [nodes.get(rank, "") for rank in history.ranks.tolist()]
    number = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return np.lexsort((history.ranks, np.array([number[name] for name in names], np.int64)))


def means_cube(history: StepHistory) -> dict[str, Any] | None:
    """Figures and parts of lanes in a few columns, so that a page without a server computes means of chosen steps."""
    parts = len(FIGURES) + 16
    columns = CUBE // max(parts * len(history.ranks), 1)
    coarse = history.coarse(min(max(columns, FEWEST_COLUMNS), MOST_COLUMNS))
    found = coarse.each()
    if found is None:
        return None
    ns, means = found
    bins = coarse.columns()
    return {**of_means(means), "first": bins["first"], "count": bins["count"], "last": bins["last"], "ns": ns.tolist()}


def of_report(report: Mapping[str, Any], *, over: bool = False, path: str = "") -> dict[str, Any]:
    """The report of a job, which may be ``over``, in words, without its rows of ranks: a page has means of steps.

    ``path`` is the recording's in commands.
    """
    words = with_rendered(report, over=over, path=path)
    return {name: value for name, value in words.items() if name not in ("ranks", "sections")}


def of_ranks(report: Mapping[str, Any]) -> dict[str, Any]:
    """What does not change with the steps: where ranks run, and their figures where no steps are known."""
    rows = report.get("ranks") or []
    names = ("rank", "node", "gpu", "step_ms", "wait_ms", "caused_wait_ms", "share_last")
    return {name: [row.get(name) for row in rows] for name in names}


def gauges_of(seen: Overview) -> dict[str, Floats]:
    """Quantity to [R]: what samples of hosts and GPUs say of each rank."""
    if seen.samples is None:
        return {}
    levels = {name: seen.samples.level(name) for name in (*SOURCES, "foreign_memory")}
    return {name: level for name, level in levels.items() if level is not None}


#: What a drawer compares: quantity, its name, and how it is written.
GAUGES = (
    ("sm_clock", "GPU clock", "hertz"),
    ("power", "GPU power", "watts"),
    ("utilization", "GPU busy", "ratio"),
    ("sm_activity", "SM active", "ratio"),
    ("tensor_activity", "tensor cores active", "ratio"),
    ("dram_activity", "GPU memory active", "ratio"),
    ("used_memory", "GPU memory used", "bytes"),
    ("foreign_memory", "GPU memory of other processes", "bytes"),
    ("cpu", "CPUs used", "number"),
    ("children_cpu", "CPUs used by workers", "number"),
    ("threads_runqueue", "threads waiting for a CPU", "number"),
    ("runqueue", "waiting for a CPU", "ratio"),
    ("children_runqueue", "workers waiting for a CPU", "number"),
    ("read", "read", "bytes/s"),
    ("children_read", "read by workers", "bytes/s"),
    ("written", "written", "bytes/s"),
    ("blocked", "blocked by storage", "ratio"),
    ("children_blocked", "workers blocked by storage", "number"),
    ("children", "workers", "number"),
    ("rss", "memory", "bytes"),
    ("major_faults", "page faults from disk", "/s"),
)


def of_gauges(history: StepHistory, rank: int | None = None) -> list[dict[str, Any]]:
    """Each quantity that was measured: of one rank and its cohort's median, or of all ranks."""
    found = []
    for name, title, unit in GAUGES:
        values = history.gauges.get(name)
        if values is None or np.isnan(values).all():
            continue
        entry: dict[str, Any] = {"name": title, "unit": unit}
        if rank is None:
            entry["values"] = [None if np.isnan(one) else float(f"{one:.5g}") for one in values.tolist()]
        else:
            place = int(np.searchsorted(history.ranks, rank))
            if place >= len(history.ranks) or history.ranks[place] != rank:
                return []
            peers = (history.cohort == history.cohort[place]) & (history.ranks != rank)
            known = values[peers & ~np.isnan(values)]
            entry["value"] = None if np.isnan(values[place]) else float(values[place])
            entry["peers"] = float(np.median(known)) if known.size else None
        found.append(entry)
    return found


def stacks_of(run: Run) -> dict[str, str]:
    """The last stack of each rank whose stack was taken."""
    order = np.argsort(run.stacks["time_ns"], kind="stable")
    ranks, texts = run.stacks["rank"][order].tolist(), run.stacks["text"][order].tolist()
    return {str(rank): str(text)[:_STACK] for rank, text in zip(ranks, texts, strict=True)}


def of_communication(run: Run) -> list[dict[str, Any]]:
    """A row an operation, size and group."""
    return [one._asdict() for one in communication.find(run)]


#: Rows of a table of a section at most.
_SECTION_ROWS = 512


def of_sections(found: sections.Sections) -> list[dict[str, Any]]:
    """The tables of a report's sections, in words."""
    return [
        {
            "title": table.title,
            "about": table.about.replace("`", ""),
            "columns": [{"name": column.title, "text": column.unit == "text"} for column in table.columns],
            "rows": table.cells[:_SECTION_ROWS],
            "left_out": max(len(table.rows) - _SECTION_ROWS, 0),
        }
        for table in sections.shown(found)
    ]


def of_run(run: Run, report: Mapping[str, Any], seen: Overview | None, path: str = "") -> dict[str, Any]:
    """Everything at once, for a page that is one file; with the sections of a report that has them."""
    history = StepHistory()
    if seen is not None:
        history.add(seen, gauges_of(seen))
    nodes = dict(zip(run.ranks["rank"].tolist(), run.ranks["node"].tolist(), strict=True))
    steps, staged = of_steps(history, nodes), len(set(history.cohort.tolist())) > 1
    by_stage = (
        heat_map(history, order_of(history, nodes, "stage"), steps["whole"]["step_ms"]) if steps and staged else None
    )
    return {
        **of_stored(report, path),
        "steps": steps,
        "by_stage": by_stage,
        "cube": means_cube(history),
        "gauges": of_gauges(history),
        "stacks": stacks_of(run),
        "communication": of_communication(run),
        "machines": machine_tables.of_run(run),
        "sections": of_sections(report.get("sections") or {}),
    }


def of_stored(report: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The same of a report whose recording is not at hand."""
    job = report["job"]
    how = job.get("ended")
    state = {
        "job": job["id"],
        "command": job.get("command"),
        "state": "ended",
        "why": str(how) if how else "",
        "world_size": job.get("world_size"),
        "nodes": job.get("nodes"),
        "steps": job.get("steps"),
    }
    return {"state": state, "report": of_report(report, over=True, path=path), "ranks": of_ranks(report)}
