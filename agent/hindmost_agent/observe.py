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
    #: What is delivered, and where to: not measured by an agent that has no collector.
    produced: int | None = None
    delivered: int | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    spool_bytes: int | None = None
    spool_limit_bytes: int | None = None
    pending: int | None = None
    batches: int = 0
    connects: int | None = None
    connected: bool | None = None
    clock_offset_s: float | None = None
    clock_round_trip_s: float | None = None
    ring_events: int = 0
    ring_lost: int = 0
    rings: int = 0
