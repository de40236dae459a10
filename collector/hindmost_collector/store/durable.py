"""Asking the store what is durable, without holding up the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Durable:
    """However many agents come at a time, the store is asked one question at a time, in a thread.

    Args:
        sequences: gives identity to the last durable sequence, as the store knows it now; may take its time.
    """

    def __init__(self, sequences: Callable[[], Mapping[str, int]]) -> None:
        self._sequences = sequences
        self._next: asyncio.Task[Mapping[str, int]] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def of(self, identity: str) -> int:
        """The last durable sequence of an agent, zero for none, as of this call or later. Raises the store's errors.

        Another collector may have made an agent's batches durable a moment ago, so an older answer is not enough.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._ask())
        return (await asyncio.shield(self._next)).get(identity, 0)

    async def _ask(self) -> Mapping[str, int]:
        async with self._one_at_a_time:
            self._next = None  # who comes from here on waits for the next answer
            return await asyncio.to_thread(self._sequences)
