"""Slow input without waiting: the host fetches while its GPU still works on what was queued before."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes import slow_input
from hindmost_judge.stats.robust import lower_median, median
from hindmost_judge.timeline import cohorts
from hindmost_judge.verdict.whole_job import input_share
from hindmost_judge.verdict.wording import ms, names
from hindmost_judge.whatif.savings import stall_saving

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.blocks import Blocks
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Floats, Ints
    from hindmost_judge.verdict.schema import Verdict


def notes(blocks: Blocks, verdicts: Sequence[Verdict], settings: Settings) -> list[str]:
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
    least = settings.hidden_input_rank * blocks.step_ns
    rows = np.flatnonzero(
        (longer > least) & (late < settings.hidden_input_shows * longer) & ~np.isin(blocks.ranks, list(blamed))
    )
    typical = float(lower_median(level, axis=0)[0])
    shows = np.array([_shows(blocks, row, settings) for row in rows.tolist()], bool)
    found = [
        _longer(blocks, some, float(median(longer[some])), told)
        for some, told in ((rows[~shows], _HIDDEN), (rows[shows], _UNSURE))
        if len(some)
    ]
    covered = typical - float(np.nan_to_num(input_share(inputs, blocks))) * blocks.step_ns
    if not blamed and covered > settings.hidden_input_all * blocks.step_ns:
        part = f"{ms(covered)} of it" if covered < _ALL * typical else "it"
        found.append(f"every rank waits {ms(typical)} per step for input; {part} {_HIDDEN}")
    return found


def _shows(blocks: Blocks, row: int, settings: Settings) -> bool:
    """Whether a rank was late in some steps by what is worth a repair, though too few of them to name it for that."""
    more = slow_input.longer(blocks)
    if more is None:
        return False
    stalled = np.flatnonzero(blocks.excess[row] >= settings.hidden_input_shows * np.maximum(more[row], 1.0))
    return float(stall_saving(blocks, [row], stalled).mean()) >= settings.min_cost * blocks.step_ns


def told_of_stalls(blocks: Blocks, found: Sequence[Verdict], settings: Settings) -> list[Verdict]:
    """The verdicts, such as are on stalls in the input with what the other steps' input hides: it is as long there."""
    longer = slow_input.longer(blocks)
    if longer is None:
        return list(found)
    return [replace(one, evidence=(*one.evidence, *_always(blocks, one, longer, settings))) for one in found]


def _always(blocks: Blocks, one: Verdict, longer: Floats, settings: Settings) -> list[str]:
    """That a rank's input is longer in all steps though it stalls in some, where that is so."""
    if one.kind != "intermittent" or one.cause != "input" or len(one.ranks) != 1:
        return []
    mine = longer[int(np.flatnonzero(blocks.ranks == one.ranks[0])[0])]
    often = int(np.sum(mine > settings.hidden_input_rank * blocks.step_ns))
    if often < slow_input.NEARLY_ALL * len(mine):
        return []
    steps = "every step" if often == len(mine) else f"{often} of {len(mine)} steps"
    longer_by = f"its input takes {ms(float(median(mine)))} longer than the others' in {steps}"
    return [f"{longer_by}; outside stalls, queued work or a wait for others hides it"]


#: From this share of the input on, the covered part is called all.
_ALL = 0.9


_HIDDEN = "costs nothing now: queued work or a wait for others hides it"
_UNSURE = "queued work hides it in most steps"


def _longer(blocks: Blocks, rows: Ints, longer: float, hides: str) -> str:
    waits = f"wait{'s' if len(rows) == 1 else ''} {ms(longer)} longer per step for input than the rest"
    return f"{names(blocks.ranks[rows].tolist())} {waits}; {'it ' if hides == _HIDDEN else ''}{hides}"
