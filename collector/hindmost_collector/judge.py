"""From a run to a report: blocks, detectors, causes, costs, verdicts. The same call live, after the run, and on
foreign recordings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector import blocks as blocks_of
from hindmost_collector import pipeline, summary, whatif
from hindmost_collector.detectors import hang, intermittent, slow_link, straggler
from hindmost_collector.model import Run, rows
from hindmost_collector.settings import DEFAULT, Settings
from hindmost_collector.verdict import Report, Verdict
from hindmost_collector.verdicts import (
    balanced,
    insufficient,
    of_habits,
    of_hang,
    of_job,
    of_links,
    of_stalls,
)

if TYPE_CHECKING:
    from hindmost_collector.blocks import Blocks


def judge(run: Run, settings: Settings = DEFAULT) -> Report:
    """Say which ranks hold the run back, why, since when and at what cost, or that nobody does.

    Never raises for missing or contradictory data: what cannot be judged is ``insufficient_data``, and says why.
    """
    if rows(run.operations):
        return pipeline.judge(run, settings)
    blocks = blocks_of.build(run, settings)
    p99 = float(np.nanpercentile(blocks.period, 99)) if blocks is not None and blocks.period.size else float("nan")
    found: list[Verdict] = []
    notes = list(run.notes)
    stop = hang.find(run, p99, settings)
    if stop is not None:
        found.append(of_hang(stop, run))
    if blocks is not None:
        slow, hidden = _slow(blocks, settings)
        found += slow
        notes += hidden
    if not found:
        found.append(_nothing(run, blocks, settings))
    return Report(
        job=summary.job(run, blocks),
        verdicts=tuple(sorted(found, key=_weight)),
        ranks=summary.ranks(run, blocks),
        what_if=summary.what_if(run, blocks),
        notes=tuple(notes),
    )


def _weight(verdict: Verdict) -> tuple[bool, float]:
    """A stopped job first, then the most costly."""
    return verdict.kind not in ("hang", "desync"), -(verdict.cost_ratio or 0.0)


def _slow(blocks: Blocks, settings: Settings) -> tuple[list[Verdict], list[str]]:
    habits = straggler.find(blocks, settings)
    found, notes = of_habits(habits, blocks, settings)
    stalls = [one for one in intermittent.find(blocks, settings) if not any(habit.row == one.row for habit in habits)]
    found += of_stalls(stalls, blocks, settings)
    found += of_links(slow_link.find(blocks, settings), blocks, settings)
    found += of_job(blocks, settings)
    return found, notes


def _nothing(run: Run, blocks: Blocks | None, settings: Settings) -> Verdict:
    """Nobody to name: because all is well, or because too little was seen."""
    ranks = len(blocks.ranks) if blocks is not None else rows(run.ranks)
    if blocks is None or ranks < 2 or len(blocks.steps) < settings.min_steps:
        return insufficient(run, blocks, settings)
    return balanced(blocks, whatif.waste(blocks))
