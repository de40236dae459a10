"""What judging may take of a core."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds of future budget that evaluation may spend ahead: a change is reported when it comes.
AHEAD_S = 20.0


class Budget:
    """A ``share`` of a core in the long run, of which some may be spent before it is due."""

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self.share, self._clock = share, clock
        self.free = 0.0  # when what was spent is no more than the share

    def spend(self, cpu_s: float) -> None:
        """So much CPU time was taken."""
        self.free = max(self.free, self._clock()) + cpu_s / self.share

    def pays(self, ahead_s: float = AHEAD_S) -> bool:
        """Whether more may be taken now: no more than these seconds are spent ahead."""
        return self._clock() + ahead_s >= self.free
