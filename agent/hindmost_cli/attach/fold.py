"""Phases as a ring has them, inclusive and nested, made into shares of the time that was seen."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hindmost import ring

from hindmost_cli.attach.sampling import PHASES, Shares

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Phase of the ring -> phase of the table, where they differ.
NAMES = {"sync": "comm"}
MEASURES = ("cpu", "runqueue", "negotiation", "gpu_")


class Folded:
    """Sums each phase without what is nested in it. A nested phase ends, and so is written, before its parent."""

    def __init__(self) -> None:
        self._spent: Counter[str] = Counter()
        self._open: list[tuple[int, int]] = []  # start and duration of phases whose parent may still come
        self._first = self._last = -1

    def add(self, events: Iterable[ring.Event]) -> None:
        """Take more events of one ring, in its order."""
        for event in events:
            end = event.start_ns + event.duration_ns
            if event.kind == ring.STEP:
                self._open.clear()
                self._first = event.start_ns if self._first < 0 else self._first
                self._last = end
            elif event.kind == ring.PHASE and not event.name.startswith(MEASURES) and self._first >= 0:
                self._add_phase(event.name, event.start_ns, event.duration_ns)

    def _add_phase(self, name: str, start: int, duration: int) -> None:
        own = duration
        while self._open and self._open[-1][0] >= start:
            own -= self._open.pop()[1]
        self._open.append((start, duration))
        phase = NAMES.get(name, name)
        self._spent[phase if phase in PHASES else "other"] += own

    def shares(self) -> Shares:
        """Shares of the time from the first step seen to the last; empty where no step was seen."""
        total = self._last - self._first
        if total <= 0:
            return Shares({}, 0)
        known = {phase: min(1.0, self._spent[phase] / total) for phase in PHASES if phase != "other"}
        return Shares({**known, "other": max(0.0, 1.0 - sum(known.values()))}, 0)
