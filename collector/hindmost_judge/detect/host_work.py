"""Ranks whose hosts work longer than their peers' in one phase, in jobs whose hosts set the pace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.detect import work
from hindmost_judge.findings import Habit

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.settings import Settings

#: Phases that are waiting, whatever is left of it.
_WAITS = ("sync", "device_wait")


def find(blocks: Blocks, settings: Settings) -> list[Habit]:
    """Persistent slowdowns of hosts, largest first; empty where hosts do not set the pace."""
    if blocks.lanes is None:
        return []
    least = settings.effect(len(blocks.ranks)) * blocks.step_ns
    delays = work.find(blocks.lanes, least, settings.large_effect * blocks.step_ns)
    last = np.argmax(blocks.caused, axis=0)
    return [
        Habit(
            row=one.row,
            first=one.first,
            stop=one.stop,
            excess=one.level,
            z=one.z,
            consistency=1.0,
            spread_ratio=one.z,
            latest=float(np.mean(last[one.first : one.stop] == one.row)),
            phase=blocks.lanes.phases[one.phase],
        )
        for one in delays
        if blocks.lanes.phases[one.phase] not in _WAITS
    ]
