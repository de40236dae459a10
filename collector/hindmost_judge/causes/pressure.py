"""Time in which a rank's node stalled for memory, or for files and disks, from the kernel's pressure counters.

The counters cover all tasks of a node. What exceeds the peers' nodes belongs to the node. On a single node all ranks
see the same; there it belongs to one rank only if that rank alone reads from disk as it would have to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes.telemetry import scattered
from hindmost_judge.stats.robust import average, median

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Array, Floats

#: How many times the peers' rate makes a rate this rank's own.
_TIMES = 3
#: Fewer samples cannot show whether pressure goes with stalls.
_FEWEST = 6
#: Nor can samples that all hold the same amount of stalls, within this share.
_VARIES = 0.1
#: Least seconds of pressure per second of stalls: stalls at the edges of samples blur the ratio.
_LEAST_SLOPE = 0.5
#: And that ratio exceeds zero by this many standard errors: noise rarely does.
_SURELY = 2.5


def of_memory(blocks: Blocks, row: int, columns: Array, settings: Settings) -> dict[str, float]:
    """Ns a step in which tasks of the rank's node stalled for memory; empty where they did not."""
    levels = blocks.gauges(_asked(columns))
    beyond = _beyond(levels.get("memory_pressure"), row, own=_own_faults(levels, row, settings))
    stood = _stood(blocks, row, columns, "memory_pressure", beyond)
    return {"memory": stood} if stood > 0 else {}


def of_files(blocks: Blocks, row: int, columns: Array, settings: Settings) -> float:
    """Ns a step in which tasks of the rank's node stalled for files and disks; 0 where they did not.

    A rank that hardly reads or writes does not wait for them, whatever its node does.
    """
    levels = blocks.gauges(_asked(columns))
    moved = _moved(levels)
    if moved is not None and moved[row] < settings.own_file_mb * 1e6:
        return 0.0
    own = moved is not None and _stands_out(moved, row, settings.own_file_mb * 1e6)
    return _stood(blocks, row, columns, "io_pressure", _beyond(levels.get("io_pressure"), row, own=own))


def of_its_own(blocks: Blocks, row: int, columns: Array, idle: float, settings: Settings) -> str | None:
    """What a rank whose GPU idles for ``idle`` ns a step waits for: ``memory``, ``io``, or nothing that shows.

    The kernel's counters miss most waits for storage that answers at once. But if a single rank moves so much data
    that it can have done little else, on a node whose tasks stall for storage, it waited for storage.
    """
    levels = blocks.gauges(columns)
    moved = _moved(levels)
    step = average(blocks.period[columns])
    if moved is None or not idle > 0 or moved[row] * step < settings.idle_file_mb * 1e6 * idle:
        return None
    if _own_faults(levels, row, settings):
        return "memory" if _beyond(levels.get("memory_pressure"), row, own=True) > 0 else None
    own = _stands_out(moved, row, settings.own_file_mb * 1e6)
    return "io" if own and _beyond(levels.get("io_pressure"), row, own=True) > 0 else None


def _own_faults(levels: dict[str, Floats], row: int, settings: Settings) -> bool:
    """Whether this rank alone has its pages read from disk."""
    faults = levels.get("major_faults")
    return faults is not None and _stands_out(faults, row, settings.major_faults)


def _moved(levels: dict[str, Floats]) -> Floats | None:
    """[R] bytes a second to and from storage; ``None`` where unmeasured."""
    known = [np.nan_to_num(levels[name]) for name in ("read", "written") if name in levels]
    return np.asarray(np.sum(known, axis=0)) if known else None


def _asked(columns: Array) -> Array | None:
    """The steps whose samples speak of these: themselves, or all where these are scattered."""
    return None if scattered(columns) else columns


def _stood(blocks: Blocks, row: int, columns: Array, name: str, beyond: float) -> float:
    """Ns per step of these that a rank's node stalled; it did so for the share ``beyond`` of the time.

    Scattered steps are stalls: the node's total stall time is set against all of their delay. A node that stalls evenly
    throughout does so in other steps too, and does not make these late.
    """
    if beyond <= 0 or not scattered(columns):
        return max(beyond, 0.0) * blocks.step_ns
    excess = np.nan_to_num(blocks.excess[row])
    each = average(excess[columns])
    late = np.where(excess >= each / 2, excess, 0.0)  # stalls of any size; jitter is not
    if not each > 0 or not _goes_with(blocks, row, name, late):
        return 0.0
    return each * min(beyond * float(np.nansum(blocks.period)) / float(late.sum()), 1.0)


def _goes_with(blocks: Blocks, row: int, name: str, late: Floats) -> bool:
    """Whether samples with more of ``late`` [S] ns in them surely show that much more pressure.

    Unknown where all samples hold the same amount.
    """
    found = blocks.samples.beside(name, row, late / 1e9) if blocks.samples is not None else None
    if found is None or len(found[0]) < _FEWEST:
        return False
    seconds, stood, fell = found
    stood, fell = stood / seconds, fell / seconds
    apart = fell - np.average(fell, weights=seconds)
    known = float(np.sum(seconds * apart**2))
    if known <= (_VARIES * float(np.average(fell, weights=seconds))) ** 2 * float(seconds.sum()):
        return False
    slope = float(np.sum(seconds * apart * stood)) / known
    rest = stood - np.average(stood, weights=seconds) - slope * apart
    error = np.sqrt(float(np.sum(seconds * rest**2)) / (len(seconds) - 2) / known)
    return bool(slope >= _LEAST_SLOPE and slope >= _SURELY * error)


def _stands_out(rates: Floats, row: int, least: float) -> bool:
    usual = np.nan_to_num(float(median(np.delete(rates, row))))
    return bool(rates[row] >= _TIMES * usual + least)


def _beyond(pressure: Floats | None, row: int, *, own: bool) -> float:
    """Share of the time that counts for a rank: what is beyond its peers', all of it where it is its ``own``."""
    if pressure is None or not pressure[row] > 0:
        return 0.0
    usual = 0.0 if own else float(np.nan_to_num(float(median(np.delete(pressure, row)))))
    return max(float(pressure[row]) - usual, 0.0)
