"""Horovod's cycles as a run records them: how long each cycle took, in which ranks negotiate what is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.model import rows

if TYPE_CHECKING:
    from hindmost_judge.model import Run

#: Intervals of this name are series of cycles; their value is how many.
CYCLES = "horovod_cycle"


def notes(run: Run) -> list[str]:
    """One sentence on the cycle time, which adds to the wait for every tensor; none where it was not measured."""
    cycle = cycle_ms(run)
    if cycle is None:
        return []
    return [f"a Horovod cycle takes {cycle:.1f} ms; ready tensors wait for the next one"]


def cycle_ms(run: Run) -> float | None:
    """Mean time from the start of a cycle to that of the next, over all ranks; ``None`` unmeasured."""
    table = run.intervals
    if not rows(table):
        return None
    held = (table["name"] == CYCLES) & (table["duration_ns"] > 0) & (table["value"] > 0)
    if not held.any():
        return None
    return float(np.sum(table["duration_ns"][held]) / np.sum(table["value"][held]) / 1e6)
