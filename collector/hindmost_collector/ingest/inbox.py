"""Batches that wait: for others to be taken apart with, and for definitions that were asked for."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from hindmost_collector.ingest.packed_fields import AgentMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from hindmost_proto import telemetry_pb2 as wire

    from hindmost_collector.ingest.session import AgentSession, Outbox

log = logging.getLogger(__name__)

#: So many batches wait at most, for some milliseconds' work, and so many bytes of messages.
MANY, BYTES = 64, 4 << 20


class Inbox:
    """Holds batches until they are many, or until their content is needed.

    Args:
        take: decodes a batch: of an agent, on a stream with this outbox, arrived then.
    """

    def __init__(self, take: Callable[[AgentSession, Outbox, wire.Batch, int], None]) -> None:
        self._take = take
        self._waiting: list[tuple[AgentSession, Outbox, wire.Batch, int]] = []
        self._bytes = 0

    def parsed(self, raw: bytes) -> Any:
        """A message; its bytes count until the inbox is emptied."""
        self._bytes += len(raw)
        return AgentMessage.FromString(raw)

    def add(self, agent: AgentSession, outbox: Outbox, batch: wire.Batch, now_ns: int) -> None:
        """Have a batch wait."""
        self._waiting.append((agent, outbox, batch, now_ns))
        if len(self._waiting) >= MANY or self._bytes > BYTES:
            self.empty()

    def empty(self) -> None:
        """Take all that wait, in order, but those whose stream is being ended: they come again."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        for agent, outbox, batch, now_ns in waiting:
            if outbox.closed:
                continue
            try:
                self._take(agent, outbox, batch, now_ns)
            except Exception:  # whatever is wrong with one batch, the others' agents have no part in it
                log.exception(
                    "a batch of agent %s on %s could not be taken; its stream ends", agent.identity, agent.node
                )
                outbox.close("a batch could not be taken: the collector's log says why")


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
