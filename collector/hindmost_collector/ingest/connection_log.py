"""The connection log: agents that come and go, at most one line a second for each, however many they are."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

#: Agents that one line names, and how long the next line gathers more.
_NAMED, _GATHERED_S = 3, 1.0


class Attendance:
    """Gathers the content of one line. An agent that came and left before the line counts as both."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic, self._told_s = monotonic, -_GATHERED_S
        self._joined: dict[str, None] = {}
        self._left: dict[str, None] = {}
        self._lost: dict[str, None] = {}

    def joined(self, identity: str) -> None:
        """An agent that had no stream has one."""
        self._joined[identity] = None

    def left(self, identity: str, *, said_goodbye: bool) -> None:
        """An agent's stream is over."""
        (self._left if said_goodbye else self._lost)[identity] = None

    def tell(self, connected: Callable[[], int]) -> None:
        """Log what there is since the last line; ``connected`` counts the agents that have a stream now."""
        now = self._monotonic()
        if now - self._told_s < _GATHERED_S or not (self._joined or self._left or self._lost):
            return
        self._told_s = now
        for what, agents in (("joined", self._joined), ("left", self._left), ("broke off", self._lost)):
            if agents:
                named = ", ".join(list(agents)[:_NAMED]) + (", …" if len(agents) > _NAMED else "")
                who = "1 agent" if len(agents) == 1 else f"{len(agents)} agents"
                log.info("%s %s (%s): %d connected", who, what, named, connected())
                agents.clear()
