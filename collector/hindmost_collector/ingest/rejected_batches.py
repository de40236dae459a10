"""Rejected batches of agents: counted, and logged once for each agent."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from hindmost_collector.ingest.session import Agent

log = logging.getLogger(__name__)


class Untaken:
    """Adds ``malformed_blocks`` and ``set_aside`` to the ``counts`` that it is made with."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._told: set[tuple[str, str]] = set()

    def malformed(self, agent: Agent, complaints: Sequence[str]) -> None:
        """Blocks that say what cannot be, a sentence for each."""
        self._counts["malformed_blocks"] += len(complaints)
        if self._first(agent, "malformed"):
            log.warning("agent %s on %s sent invalid data: %s", agent.identity, agent.node, complaints[0])

    def unforeseen(self, agent: Agent, what: str, error: Exception) -> None:
        """Go on without a batch that failed in an unforeseen way: sent again it would fail again. Re-raises
        MemoryError."""
        if isinstance(error, MemoryError):
            raise error
        self._counts["set_aside"] += 1
        if self._first(agent, "unforeseen"):
            told = "%s of agent %s on %s failed: the part not yet taken is left out"
            log.error(told, what, agent.identity, agent.node, exc_info=error)

    def forget(self, identity: str) -> None:
        """An agent that is gone: if it comes back, it is logged again."""
        self._told -= {(identity, "malformed"), (identity, "unforeseen")}

    def _first(self, agent: Agent, kind: str) -> bool:
        known = (agent.identity, kind) in self._told
        self._told.add((agent.identity, kind))
        return not known
