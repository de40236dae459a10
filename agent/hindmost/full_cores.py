"""Whether the cores that this process may use are all busy: then whatever it does, a rank waits for."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

#: Less than this much of one core idle, of all cores together, is none: ranks wait for each other now and then.
IDLE_CORES = 0.5
#: Seconds between two looks: the file is as long as the machine has cores and interrupts.
LOOK_S = 1.0


class FullCores:
    """Looks at the idle time of the cores, once a second at most.

    Args:
        stat: ``/proc/stat``. Where it cannot be read cores count as free.
        cores: the numbers of those that this process may run on.
        clock: seconds of a monotonic clock.
    """

    def __init__(
        self,
        stat: Path = Path("/proc/stat"),
        cores: Collection[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stat, self._clock = stat, clock
        self._names = {b"cpu%d" % core for core in (os.sched_getaffinity(0) if cores is None else cores)}
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._then, self._idle_s = clock(), self._read()
        self._full = False

    def __call__(self) -> bool:
        """Whether they were, when last looked at."""
        now = self._clock()
        passed = now - self._then
        if passed < LOOK_S:
            return self._full
        before, self._idle_s, self._then = self._idle_s, self._read(), now
        known = before is not None and self._idle_s is not None
        self._full = known and self._idle_s - before < IDLE_CORES * passed  # type: ignore[operator]
        return self._full

    def _read(self) -> float | None:
        """Seconds that the cores were idle or waited for a disk, all together."""
        try:
            lines = self._stat.read_bytes().splitlines()
            return sum(
                (int(fields[4]) + int(fields[5])) * self._tick_s
                for fields in (line.split() for line in lines if line.startswith(b"cpu"))
                if fields[0] in self._names
            )
        except (OSError, ValueError, IndexError):
            return None
