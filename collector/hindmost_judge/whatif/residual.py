"""A slowdown shared by all ranks, besides slow ranks: steps less what verdicts cost, where those began elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.blocks import Blocks
    from hindmost_judge.types import Floats
    from hindmost_judge.verdict.schema import Verdict

#: Kinds of verdicts whose cost is known by step.
_KINDS = ("straggler", "intermittent", "slow_link", "uneven_workload")
#: A change that begins or ends within this many steps of a verdict may be caused by that verdict.
_NEAR = 16


def period(blocks: Blocks, found: Sequence[Verdict]) -> Floats:
    """[S] ns of each step without what these cost."""
    left: Floats = blocks.period.copy()
    for one in found:
        if one.kind in _KINDS:
            left[slice(*span(one, blocks))] -= (one.cost_ms_per_step or 0.0) * 1e6
    return left


def apart(blocks: Blocks, found: Sequence[Verdict], first: int, stop: int) -> bool:
    """Whether none of these began or ended in steps [first, stop), by index, or near them."""
    borders = [edge for one in found for edge in span(one, blocks) if 0 < edge < len(blocks.steps)]
    return not any(first - _NEAR < edge < stop + _NEAR for edge in borders)


def span(one: Verdict, blocks: Blocks) -> tuple[int, int]:
    """The steps [first, stop), by index, that a verdict's cost is a mean over."""
    until = blocks.steps[-1] + 1 if one.until_step is None else one.until_step
    first, stop = np.searchsorted(blocks.steps, [one.since_step or 0, until])
    return int(first), int(stop)
