"""Who comes and goes, in the log: a line a tick at most of each, however many agents a relay brings or takes along."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

#: Agents that one line names.
_NAMED = 3


class Attendance:
    """Gathers what one line then says. Who came and was gone before the line is in both."""

    def __init__(self) -> None:
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
        """Log what there is since the last call; ``connected`` counts the agents that have a stream now."""
        for what, agents in (("joined", self._joined), ("left", self._left), ("broke off", self._lost)):
            if agents:
                named = ", ".join(list(agents)[:_NAMED]) + (", …" if len(agents) > _NAMED else "")
                log.info("%d agents %s (%s): %d are connected", len(agents), what, named, connected())
                agents.clear()
