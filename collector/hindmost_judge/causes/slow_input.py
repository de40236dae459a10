"""A rank whose host gets its input later than its peers in every step: where nothing is queued, it is late by that."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes.table import MEASURES
from hindmost_judge.stats.robust import peers_median
from hindmost_judge.verdict.wording import ms

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.causes.table import Cause
    from hindmost_judge.findings import Habit
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Array, Floats

#: A rank's input is persistently slow if it is slow in this share of the steps.
NEARLY_ALL = 0.9
#: Causes that are phases of the host, of which what is queued hides now more and now less.
_ON_HOST = ("input", "h2d")


def longer(blocks: Blocks) -> Floats | None:
    """[R, S] ns by which each rank's input took longer than its peers', where GPUs may hide it; else ``None``."""
    inputs = blocks.parts.get("input")
    if inputs is None or not any(name.startswith("gpu_") for name in blocks.parts):
        return None
    return _beyond_peers(inputs)


def _beyond_peers(part: Floats) -> Floats:
    return np.asarray(np.nan_to_num(part - peers_median(part)))


def throughout(blocks: Blocks, settings: Settings) -> Array:
    """[R] whether a rank's input is longer in nearly all steps."""
    more = longer(blocks)
    if more is None:
        return np.zeros(len(blocks.ranks), bool)
    return np.asarray(np.mean(more > settings.hidden_input_rank * blocks.step_ns, axis=1) >= NEARLY_ALL)


def with_stalls(blocks: Blocks, habit: Habit, cause: Cause, settings: Settings) -> Habit:
    """A slowdown with those of its steps in which its input, or its copies, made its rank far later than usual.

    A job that waits for its GPUs every so many steps has nothing queued then. A step is late by at most its own
    input, since the delay of the step before is over.
    """
    part = blocks.parts.get(cause.cause)
    if cause.cause not in _ON_HOST or part is None:
        return habit
    usual, outer = habit.excess, habit.outer
    while outer is not None:
        usual, outer = usual + outer.excess, outer.outer
    more = _beyond_peers(part)[habit.row]
    stalled = np.fmin(np.nan_to_num(blocks.excess[habit.row]), more) - usual
    steps = habit.steps()
    steps = steps[stalled[steps] >= settings.stall_effect * blocks.step_ns]
    return replace(habit, stalls=tuple(zip(steps.tolist(), stalled[steps].tolist(), strict=True)))


def told_of_stalls(habits: list[Habit], cause: Cause) -> list[str]:
    """The steps in which a slowdown's cause shows by far more than usual: nothing was queued then."""
    found = [ns for habit in habits for _, ns in habit.stalls]
    if not found:
        return []
    times = "1 step" if len(found) == 1 else f"{len(found)} steps"
    return [f"another {ms(float(np.median(found)))} late in {times} in which nothing hid its {MEASURES[cause.cause]}"]
