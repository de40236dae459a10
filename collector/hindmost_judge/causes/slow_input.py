"""A rank whose host gets its input later than its peers in every step: where nothing is queued, it is late by that.

Where its GPU still works on what was queued before, the host fetches meanwhile, and slow input costs nothing yet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes.table import MEASURES
from hindmost_judge.stats.robust import lower_median, median, peers_median
from hindmost_judge.timeline import cohorts
from hindmost_judge.verdict.whole_job import input_share
from hindmost_judge.verdict.wording import ms, names
from hindmost_judge.whatif.savings import stall_saving

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.blocks import Blocks, Habit
    from hindmost_judge.causes.table import Cause
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Array, Floats, Ints
    from hindmost_judge.verdict.schema import Verdict

#: Extra input time of one rank that overlaps with computing and gets a note: faster GPUs would expose it (of the
#: step).
_HIDDEN_INPUT_RANK = 0.05
#: The same for all ranks; input that all ranks have is more common (of the step).
_HIDDEN_INPUT_ALL = 0.15
#: A rank that is late by this share of its longer input does not hide it (of the longer input).
_HIDDEN_INPUT_SHOWS = 0.25

#: A rank's input is persistently slow if it is slow in this share of the steps.
_NEARLY_ALL = 0.9
#: Causes that are phases of the host, of which what is queued hides now more and now less.
_ON_HOST = ("input", "h2d")


def _longer_input(blocks: Blocks) -> Floats | None:
    """[R, S] ns by which each rank's input took longer than its peers', where GPUs may hide it; else ``None``."""
    inputs = blocks.parts.get("input")
    if inputs is None or not any(name.startswith("gpu_") for name in blocks.parts):
        return None
    return _beyond_peers(inputs)


def _beyond_peers(part: Floats) -> Floats:
    return np.asarray(np.nan_to_num(part - peers_median(part)))


def throughout(blocks: Blocks) -> Array:
    """[R] whether a rank's input is longer in nearly all steps."""
    more = _longer_input(blocks)
    if more is None:
        return np.zeros(len(blocks.ranks), bool)
    return np.asarray(np.mean(more > _HIDDEN_INPUT_RANK * blocks.step_ns, axis=1) >= _NEARLY_ALL)


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


def stalls_sentence(habits: list[Habit], cause: Cause) -> list[str]:
    """The steps in which a slowdown's cause shows by far more than usual: nothing was queued then."""
    found = [ns for habit in habits for _, ns in habit.stalls]
    if not found:
        return []
    times = "1 step" if len(found) == 1 else f"{len(found)} steps"
    return [f"another {ms(float(np.median(found)))} late in {times} in which nothing hid its {MEASURES[cause.cause]}"]


def hidden_input_notes(blocks: Blocks, verdicts: Sequence[Verdict], settings: Settings) -> list[str]:
    """A sentence on input that costs nothing while GPUs hide it, and would if they became faster."""
    inputs = blocks.parts.get("input")
    on_gpu = any(name.startswith("gpu_") for name in blocks.parts)
    shown = any(one.kind in ("input_bound", "host_bound") for one in verdicts)
    if inputs is None or not on_gpu or len(blocks.ranks) < 2 or shown:
        return []
    level = np.nan_to_num(median(inputs, axis=1))[:, None]
    longer = cohorts.beyond_peers(level, blocks.role)[:, 0]  # of a whole stage nothing tells whether it hides
    late = np.nan_to_num(median(blocks.excess, axis=1))
    blamed = {rank for one in verdicts if one.cause == "input" for rank in one.ranks}
    least = _HIDDEN_INPUT_RANK * blocks.step_ns
    rows = np.flatnonzero(
        (longer > least) & (late < _HIDDEN_INPUT_SHOWS * longer) & ~np.isin(blocks.ranks, list(blamed))
    )
    typical = float(lower_median(level, axis=0)[0])
    shows = np.array([_shows(blocks, row, settings) for row in rows.tolist()], bool)
    found = [
        _longer(blocks, waiting, float(median(longer[waiting])), hides)
        for waiting, hides in ((rows[~shows], _HIDDEN), (rows[shows], _UNSURE))
        if len(waiting)
    ]
    covered = typical - float(np.nan_to_num(input_share(inputs, blocks))) * blocks.step_ns
    if not blamed and covered > _HIDDEN_INPUT_ALL * blocks.step_ns:
        part = f"{ms(covered)} of it" if covered < _ALL * typical else "it"
        found.append(f"every rank waits {ms(typical)} per step for input; {part} {_HIDDEN}")
    return found


def _shows(blocks: Blocks, row: int, settings: Settings) -> bool:
    """Whether a rank was late in some steps by what is worth a repair, though too few of them to name it for that."""
    more = _longer_input(blocks)
    if more is None:
        return False
    stalled = np.flatnonzero(blocks.excess[row] >= _HIDDEN_INPUT_SHOWS * np.maximum(more[row], 1.0))
    return float(stall_saving(blocks, [row], stalled).mean()) >= settings.min_cost * blocks.step_ns


#: From this share of the input on, the covered part is called all.
_ALL = 0.9


_HIDDEN = "costs nothing now: queued work or a wait for others hides it"
_UNSURE = "queued work hides it in most steps"


def _longer(blocks: Blocks, rows: Ints, longer: float, hides: str) -> str:
    waits = f"wait{'s' if len(rows) == 1 else ''} {ms(longer)} longer per step for input than the rest"
    return f"{names(blocks.ranks[rows].tolist())} {waits}; {'it ' if hides == _HIDDEN else ''}{hides}"
