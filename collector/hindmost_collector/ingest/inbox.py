"""Batches between their arrival and being taken apart: many in one go take half the time of each as it comes, when
gRPC's own work has taken the processor's caches in between."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from hindmost_collector.ingest.packed import AgentMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from hindmost_proto import telemetry_pb2 as wire

    from hindmost_collector.ingest.session import Agent, Outbox

log = logging.getLogger(__name__)

#: So many batches wait at most, for some milliseconds' work, and so many bytes of messages.
MANY, BYTES = 64, 4 << 20


class Inbox:
    """Holds batches until they are many, or until their content is needed.

    Args:
        take: decodes a batch: of an agent, on a stream with this outbox, arrived then.
    """

    def __init__(self, take: Callable[[Agent, Outbox, wire.Batch, int], None]) -> None:
        self._take = take
        self._waiting: list[tuple[Agent, Outbox, wire.Batch, int]] = []
        self._bytes = 0

    def parsed(self, raw: bytes) -> Any:
        """A message; its bytes count until the inbox is emptied."""
        self._bytes += len(raw)
        return AgentMessage.FromString(raw)

    def add(self, agent: Agent, outbox: Outbox, batch: wire.Batch, now_ns: int) -> None:
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
