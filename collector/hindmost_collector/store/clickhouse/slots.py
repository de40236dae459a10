"""Where an agent's sequence is written, so that the engine may let go of older ones, and never of the one that counts.

The engine keeps the newest row of each identity and slot, whether or not its flush became whole. So a writer has two
slots for each agent, and never writes into the one that holds the agent's last whole flush; and each writer, at each
start, has slots of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Agents remembered; with more, the writer goes on in new slots.
_REMEMBERED = 100_000


class AgentSlots:
    """The slots of one writer."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._held: dict[str, int] = {}

    def free(self, identities: Iterable[str], unique: Callable[[], int]) -> list[int]:
        """A slot for each agent that does not hold its last complete flush; ``unique`` draws a number not in use."""
        if self._first is None or len(self._held) > _REMEMBERED:
            self._first = unique() * 2
            self._held.clear()
        return [self._first + 1 - self._held.get(identity, 1) for identity in identities]

    def taken(self, identities: Iterable[str]) -> None:
        """The flush with what was written into the ``free`` slots is whole."""
        self._held.update({identity: 1 - self._held.get(identity, 1) for identity in identities})
