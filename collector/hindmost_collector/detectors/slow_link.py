"""Groups whose transfers take long though nobody in them is late: a link, not a rank.

The shortest duration in a group is about the transfer. Groups of one class move the same bytes, so one whose shortest
durations are above its sisters' by habit has a slow link; where slow groups of several classes meet is whose it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.align import shortest
from hindmost_collector.robust import block_medians, median, peers_median, standard_error, sums_by_step

if TYPE_CHECKING:
    from hindmost_collector.align import Floats
    from hindmost_collector.blocks import Blocks
    from hindmost_collector.settings import Settings


@dataclass(frozen=True)
class SlowLink:
    """Rows that share the slow link, and how much longer a step's transfers take there than elsewhere.

    Ns a step: ``excess`` in all, ``shown`` where computing waits for the transfers, ``usual`` in groups alike."""

    rows: tuple[int, ...]
    excess: float
    usual: float
    shown: float


def find(blocks: Blocks, settings: Settings) -> SlowLink | None:
    """The slow link of a job whose ranks talk in several groups of a class; ``None`` where there is none to compare."""
    if blocks.joined is None or len(blocks.steps) < settings.min_steps:
        return None
    slow: list[tuple[set[int], float, float, float]] = []
    for klass in range(blocks.group.shape[1]):
        slow += _in_class(blocks, klass, settings)
    if not slow:
        return None
    shared = set.intersection(*(one[0] for one in slow))
    worst = max(slow, key=lambda one: one[1])
    return SlowLink(tuple(sorted(shared or worst[0])), worst[1], worst[2], worst[3])


def _in_class(blocks: Blocks, klass: int, settings: Settings) -> list[tuple[set[int], float, float, float]]:
    groups = blocks.group[:, klass]
    names = np.unique(groups[groups >= 0])
    if len(names) < 2:
        return []
    transfers = np.stack([_transfer(blocks, klass, int(np.flatnonzero(groups == name)[0])) for name in names])
    transfers = transfers[:, ~np.isnan(transfers).any(axis=0)]  # groups may be at different steps, or end earlier
    if transfers.shape[1] < settings.min_steps:
        return []
    usual = peers_median(transfers)
    found = []
    for i, name in enumerate(names):
        more = transfers[i] - usual[i]
        level, base = float(median(more)), float(median(usual[i]))
        if level < settings.min_effect * blocks.step_ns or level < (settings.network_longer - 1) * base:
            continue
        steady = float(np.mean(block_medians(more) >= level / 2)) >= settings.min_consistency
        if steady and level >= settings.min_z * standard_error(more):
            members = {int(row) for row in np.flatnonzero(groups == name)}
            share = float(np.mean(~blocks.beside[blocks.klass == klass]))
            found.append((members, level, base, level * share))
    return found


def _transfer(blocks: Blocks, klass: int, row: int) -> Floats:
    """[S] ns of transfer a step in the group of this row; NaN where some of it is not known."""
    assert blocks.joined is not None  # noqa: S101 - find() has looked
    least = shortest(blocks.joined)[row]
    mine = np.where(blocks.joined.klass == klass, least, 0.0)[None, :]
    known = sums_by_step(np.isnan(mine).astype(float), blocks.starts)[0] == 0
    return np.where(known, sums_by_step(mine, blocks.starts)[0], np.nan)
