"""Phases of work of which some ranks have more of one and as much less of another: they wait for each other in these.

A tensor-parallel job's forward, or an optimizer that reduces gradients, holds collectives that a log of the steps does
not tell of. What a rank is slow by there is in all of its group's forward, and the others wait as long elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import median
from hindmost_judge.verdict.schema import Verdict
from hindmost_judge.verdict.wording import ms, names

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.types import Floats

#: Phases taken for work, both timed by one clock.
_PAIRS = (("gpu_forward", "gpu_optimizer"), ("forward", "optimizer"))
#: Share of the step by which ranks differ in each of the two phases; healthy ranks of recorded jobs differed by 0.001
#: to 0.003.
_APART = 0.03
#: … and the share of that difference which is left in the sum of both.
_EVEN = 0.25


def inside(blocks: Blocks) -> Verdict | None:
    """Inconclusive, with the ranks that have more of each phase; ``None`` where no two phases trade."""
    for first, second in _PAIRS:
        if first in blocks.parts and second in blocks.parts:
            told = _told(blocks, first, second)
            if told is not None:
                return Verdict(kind="insufficient_data", evidence=(told,), advice=(_ADVICE,))
    return None


_ADVICE = "record waits, too: `hindmost run -- COMMAND`, or NCCL Inspector's logs of the same steps"


def _told(blocks: Blocks, first: str, second: str) -> str | None:
    """The sentence for two phases; ``None`` where they do not trade."""
    one, two = (_typical(blocks.parts[name]) for name in (first, second))
    known = ~np.isnan(one + two)
    if np.count_nonzero(known) < 2:
        return None
    apart = min(float(np.ptp(one[known])), float(np.ptp(two[known])))
    if apart < _APART * blocks.step_ns or float(np.ptp((one + two)[known])) > _EVEN * apart:
        return None
    middle = (float(one[known].max()) + float(one[known].min())) / 2
    longer, shorter = (blocks.ranks[known & side].tolist() for side in (one > middle, one <= middle))
    phase, other = (name.removeprefix("gpu_") for name in (first, second))
    more = f"{names(longer)} {_take(longer)} {ms(apart)} longer in {phase} than {names(shorter)}, and less in {other}"
    return f"{more}: they wait there for each other; a log of steps does not show for which rank"


def _take(ranks: list[int]) -> str:
    return "takes" if len(ranks) == 1 else "take"


def _typical(block: Floats) -> Floats:
    return np.asarray(median(block, axis=1))
