"""Slow input that nobody waits for: the host fetches while its GPU still works on what was queued before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.robust import median, peers_median
from hindmost_collector.wording import ms, names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_collector.blocks import Blocks
    from hindmost_collector.verdict import Verdict

#: Input that is less of the step than this is not worth a note, whoever hides it.
_WORTH_TELLING = 0.05
#: … and where all ranks are alike.
_OF_ALL = 0.15
#: A rank whose input makes it late by this share of what it waits longer for it is not hidden.
_SHOWS = 0.25


def notes(blocks: Blocks, verdicts: Sequence[Verdict]) -> list[str]:
    """A sentence on input that costs nothing while GPUs hide it, and would if they became faster."""
    inputs = blocks.parts.get("input")
    on_gpu = any(name.startswith("gpu_") for name in blocks.parts)
    shown = any(one.kind in ("input_bound", "host_bound") for one in verdicts)
    if inputs is None or not on_gpu or len(blocks.ranks) < 2 or shown:
        return []
    level = np.nan_to_num(median(inputs, axis=1))[:, None]
    longer = (level - np.nan_to_num(peers_median(level)))[:, 0]
    late = np.nan_to_num(median(blocks.excess, axis=1))
    blamed = {rank for one in verdicts if one.cause == "input" for rank in one.ranks}
    least = _WORTH_TELLING * blocks.step_ns
    rows = np.flatnonzero((longer > least) & (late < _SHOWS * longer) & ~np.isin(blocks.ranks, list(blamed)))
    typical = float(median(level))
    found = [_longer(blocks, rows, float(median(longer[rows])))] if len(rows) else []
    if not blamed and typical > _OF_ALL * blocks.step_ns:
        found.append(f"every rank waits about {ms(typical)} a step for its input; {_HIDDEN}")
    return found


_HIDDEN = "that costs nothing now: work queued on the GPUs, or a wait for others, covers it"


def _longer(blocks: Blocks, rows: np.ndarray[tuple[int], np.dtype[np.int64]], longer: float) -> str:
    who = names(blocks.ranks[rows].tolist())
    return f"{who} wait{'s' if len(rows) == 1 else ''} {ms(longer)} a step longer for input than the rest; {_HIDDEN}"
