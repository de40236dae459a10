"""Work that is done to its end, even if who asked for it is cancelled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")


class Unbroken:
    """What another thread would go on doing unwatched: tasks that are never cancelled."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Start it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def whole(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Start it, and wait for it."""
        return await asyncio.shield(self.begin(work))

    async def ended(self) -> None:
        """Wait for all of them; what one raises was for who asked."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
