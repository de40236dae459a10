"""What a rank's node stood still for, by the kernel's count: memory, or files and disks.

The count is of all tasks of a node. Beyond that of the peers' nodes it is the node's; on one node all ranks see the
same, and there it is one rank's own only if that rank alone reads from disk as it would have to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.robust import average, median

if TYPE_CHECKING:
    from hindmost_collector.align import Array, Floats
    from hindmost_collector.blocks import Blocks
    from hindmost_collector.settings import Settings

#: How many times the peers' rate is a rank's own.
_TIMES = 3


def of_memory(blocks: Blocks, row: int, columns: Array, settings: Settings) -> dict[str, float]:
    """Ns a step in which tasks of the rank's node stood still for memory; empty where they did not."""
    levels = blocks.gauges(columns)
    faults = levels.get("major_faults")
    own = faults is not None and _stands_out(faults, row, settings.major_faults)
    beyond = _beyond(levels.get("memory_pressure"), row, own=own)
    return {"memory": beyond * blocks.step_ns} if beyond > 0 else {}


def of_files(blocks: Blocks, row: int, columns: Array, settings: Settings) -> float:
    """Ns a step in which tasks of the rank's node stood still for files and disks; 0 where they did not.

    A rank that hardly reads or writes does not wait for them, whatever its node does.
    """
    levels = blocks.gauges(columns)
    known = [levels[name] for name in ("read", "written") if name in levels]
    moved = np.sum([np.nan_to_num(one) for one in known], axis=0) if known else None
    if moved is not None and moved[row] < settings.own_file_mb * 1e6:
        return 0.0
    own = moved is not None and _stands_out(moved, row, settings.own_file_mb * 1e6)
    return _beyond(levels.get("io_pressure"), row, own=own) * blocks.step_ns


def of_its_own(blocks: Blocks, row: int, columns: Array, idle: float, settings: Settings) -> str | None:
    """What a rank whose GPU idles for ``idle`` ns a step waits for: ``memory``, ``io``, or nothing that shows.

    The kernel counts little of waiting for storage that answers at once. But a rank alone that moves so much that it
    can have done little else in that time, on a node whose tasks do stand still for it, was at that.
    """
    levels = blocks.gauges(columns)
    moved = sum(np.nan_to_num(levels[name][row]) for name in ("read", "written") if name in levels)
    step = average(blocks.period[columns])
    if not idle > 0 or moved * step < settings.idle_file_mb * 1e6 * idle:
        return None
    faults = levels.get("major_faults")
    if faults is not None and _stands_out(faults, row, settings.major_faults):
        return "memory" if _beyond(levels.get("memory_pressure"), row, own=True) > 0 else None
    both = [np.nan_to_num(levels[name]) for name in ("read", "written") if name in levels]
    own = _stands_out(np.sum(both, axis=0), row, settings.own_file_mb * 1e6)
    return "io" if own and _beyond(levels.get("io_pressure"), row, own=True) > 0 else None


def _stands_out(rates: Floats, row: int, least: float) -> bool:
    usual = np.nan_to_num(float(median(np.delete(rates, row))))
    return bool(rates[row] >= _TIMES * usual + least)


def _beyond(pressure: Floats | None, row: int, *, own: bool) -> float:
    """Share of the time that counts for a rank: what is beyond its peers', all of it where it is its ``own``."""
    if pressure is None or not pressure[row] > 0:
        return 0.0
    usual = 0.0 if own else float(np.nan_to_num(float(median(np.delete(pressure, row)))))
    return max(float(pressure[row]) - usual, 0.0)
