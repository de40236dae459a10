"""Ranks that stall now and then: most steps like their peers', some far later, and always the same rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.robust import median

if TYPE_CHECKING:
    from hindmost_collector.align import Ints
    from hindmost_collector.blocks import Blocks
    from hindmost_collector.settings import Settings


@dataclass(frozen=True)
class Stalls:
    """The stalls of one rank: indices of the stalled steps, and its share of all stalls in the job."""

    row: int
    stalled: Ints
    excess: float
    share: float


def find(blocks: Blocks, settings: Settings) -> list[Stalls]:
    """Ranks that own most of the job's stalls, by far more than chance would give one of them."""
    if len(blocks.ranks) < 2 or len(blocks.steps) < 2 * settings.min_steps:
        return []
    excess = np.nan_to_num(blocks.excess - median(blocks.excess, axis=1)[:, None])
    stalled = excess >= settings.stall_effect * blocks.step_ns
    episodes = np.array([_episodes(row) for row in stalled])
    total = max(int(episodes.sum()), 1)
    found = []
    for row in np.flatnonzero(episodes >= settings.min_stalls).tolist():
        share = episodes[row] / total
        others = np.delete(episodes, row).max()
        # Twice the stalls of the next rank and three sigma of a Poisson count more: no accident of a noisy host.
        if share >= settings.min_stall_share and episodes[row] > 2 * others + 3 * np.sqrt(others + 1):
            steps = np.flatnonzero(stalled[row])
            found.append(Stalls(row, steps, float(np.median(excess[row, steps])), float(share)))
    return sorted(found, key=lambda one: -len(one.stalled))


def _episodes(stalled: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    """Stalls apart in time: steps in a row are one."""
    return int(np.sum(stalled[1:] & ~stalled[:-1]) + bool(stalled[0]))
