"""Steps that a profiler recorded, began or wrote in: it slows them, so that others are judged where there are some."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.model import PROFILED, Table, rows

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Array, Ints


def undisturbed(table: Table, numbers: Ints, least: int) -> Array:
    """[S] mask of the steps that no rank's profiler disturbed; of all steps where fewer than ``least`` are left."""
    calm = ~np.isin(numbers, table["step"][table["kind"] == PROFILED])
    return calm if calm.sum() >= least else np.ones(len(numbers), bool)


def of_few(blocks: Blocks, table: Table, settings: Settings) -> Settings:
    """The thresholds for steps that were all profiled and are few: there will be no more of them.

    A rank is named if it is the latest in each of these, by more than any healthy rank is; a running job waits for
    more.
    """
    few = settings.min_steps_when_profiled <= len(blocks.steps) < settings.min_steps
    if not few or not rows(table):
        return settings
    theirs = np.isin(table["step"], blocks.steps)
    if not np.isin(blocks.steps, table["step"][theirs]).all() or (table["kind"][theirs] != PROFILED).any():
        return settings
    return replace(
        settings,
        large_effect=min(settings.profiled_effect, settings.large_effect),
        min_steps_when_large=len(blocks.steps),
        min_latest=1.0,
        min_consistency=1.0,
    )


def notes(blocks: Blocks | None, table: Table) -> list[str]:
    """What it means for the report that a profiler was at work."""
    if not rows(table) or blocks is None:
        return []
    steps = np.unique(table["step"][table["kind"] == PROFILED])
    judged = np.isin(blocks.steps, steps)
    if judged.all() and len(judged):
        return ["a profiler recorded all steps and slowed them: times are those of profiled steps"]
    if len(steps) and not judged.any():
        slowed = f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
        return [f"a profiler slowed {slowed}, which are not judged"]
    return []
