"""What the agent counts about itself; the ``agent`` sampler exposes it like any other source."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Own:
    """The agent's own counts. ``None`` and a missing key mean not measured."""

    duration_s: dict[str, float] = field(default_factory=dict)
    success: dict[str, int] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    produced: int = 0
    delivered: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    spool_bytes: int = 0
    spool_limit_bytes: int | None = None
    pending: int = 0
    batches: int = 0
    connects: int = 0
    connected: bool = False
    clock_offset_s: float | None = None
    clock_round_trip_s: float | None = None
    ring_events: int = 0
    ring_lost: int = 0
    rings: int = 0
