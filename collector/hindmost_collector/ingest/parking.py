"""Batches that wait for definitions which were asked for: bounded in time, in number and, all together, in bytes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hindmost_proto import telemetry_pb2 as wire

#: How long, and how many of one agent.
PARK_NS = 5_000_000_000
PARK_BATCHES = 64


class Parking:
    """Per agent, in the order of arrival. None of them is acknowledged, so they may go with their stream.

    Args:
        limit: bytes on the wire of all that wait.
    """

    def __init__(self, limit: int = 64 << 20) -> None:
        self._limit = limit
        self._waiting: dict[str, deque[tuple[int, int, wire.Batch]]] = {}
        self.bytes = 0

    def add(self, identity: str, batch: wire.Batch, now_ns: int) -> bool:
        """Have a batch wait; False where there is no room."""
        size = batch.ByteSize()
        if self.bytes + size > self._limit:
            return False
        self._waiting.setdefault(identity, deque()).append((now_ns, size, batch))
        self.bytes += size
        return True

    def overdue(self, identity: str, now_ns: int) -> bool:
        """Whether an agent's have waited for long enough, and are to be taken without what is unknown."""
        waiting = self._waiting.get(identity)
        return waiting is not None and (len(waiting) > PARK_BATCHES or now_ns - waiting[0][0] > PARK_NS)

    def first(self, identity: str) -> wire.Batch | None:
        """The batch of an agent that has waited longest."""
        waiting = self._waiting.get(identity)
        return waiting[0][2] if waiting else None

    def release(self, identity: str) -> None:
        """Let go of that batch."""
        waiting = self._waiting[identity]
        self.bytes -= waiting.popleft()[1]
        if not waiting:
            del self._waiting[identity]

    def clear(self, identity: str) -> None:
        """Let go of all of an agent: it sends them again on its next stream."""
        self.bytes -= sum(size for _, size, _ in self._waiting.pop(identity, ()))
