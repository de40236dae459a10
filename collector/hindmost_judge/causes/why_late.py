"""Why a slowdown makes its rank late: what is measured in its steps, less the rank's delay without it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes import backward, interrupted, table, taking_turns
from hindmost_judge.timeline import host_lanes
from hindmost_judge.verdict.wording import ms

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.causes.table import Cause
    from hindmost_judge.findings import Habit
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Floats

#: Phases of the host, of which the GPU's queue may hide a part.
_HIDDEN = ("input", "h2d")


def of(blocks: Blocks, habit: Habit, settings: Settings) -> Cause:
    """The cause of a slowdown."""
    if habit.phase is not None:
        return table.explain(host_lanes.of_phase(blocks, habit.phase), habit.row, habit.steps(), settings)
    seen = backward.of_habit(blocks, habit, settings)
    why = table.explain(_on_top(blocks, habit, settings), habit.row, habit.steps(), settings, seen.longer)
    if seen.turn > 0 and "compute" in (why.cause, why.partial if why.remark else None):
        why = _in_turns(why, seen.turn) if not taking_turns.others_seen(blocks, habit.row, habit.steps()) else why
    if why.cause not in backward.COMPUTED:
        return why
    unseen = seen.beyond(why.beyond * habit.excess) / why.beyond
    still = interrupted.longer(blocks, habit) if why.cause == "unknown" and habit.outer is None else 0.0
    return replace(why, unseen=max(unseen, still))


def _in_turns(why: Cause, turn: float) -> Cause:
    """Another process that shows by its turns on the GPU, each so many ns, in place of what looks like computing."""
    idle = f"its GPU pauses for {ms(turn)} at changing places in a step, as if another process took turns"
    return replace(why, cause="gpu_contention", partial=None, remark=idle)


def known(parts: dict[str, Floats]) -> dict[str, Floats]:
    """The parts of self time; occasional parts count as nothing where they were not seen."""
    return {name: np.nan_to_num(part) if name in table.NOW_AND_THEN else part for name, part in parts.items()}


def _on_top(blocks: Blocks, habit: Habit, settings: Settings) -> Blocks:
    """The blocks without the rank's delay outside the slowdown, and without what its measurements are longer by then.

    No more of a phase goes than that: what was hidden then may be what comes on top.
    """
    outer, row = habit.outer, habit.row
    if outer is None:
        return blocks
    steps, usual = np.arange(habit.first, habit.stop), table.typical(blocks, row, outer.steps(), settings)
    why = table.explain(blocks, row, outer.steps(), settings).cause

    def less(block: Floats, most: float = np.inf) -> Floats:
        fixed: Floats = block.copy()
        fixed[row, steps] -= min(table.excess_of(block, row, usual), most)
        return fixed

    return replace(
        blocks,
        excess=less(blocks.excess),
        parts={
            name: less(block, outer.excess if name == why and name in _HIDDEN else np.inf)
            for name, block in known(blocks.parts).items()
        },
        computing=less(blocks.computing) if blocks.computing is not None else None,
    )
