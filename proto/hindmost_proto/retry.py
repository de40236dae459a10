"""Keeping a call open: the pause between attempts, and works that end together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Coroutine

FIRST_S = 0.2
#: The reason of a ``Stop`` that ends a job. With any other a collector goes, and the job goes on.
JOB_OVER = "the job is over"


def pause_s(attempt: int, longest_s: float, jitter: float, first_s: float = FIRST_S) -> float:
    """Pause before an attempt, s: doubling, and anything from half of it to all, by ``jitter`` (0 to 1)."""
    return min(first_s * 2.0 ** min(attempt, 16), longest_s) * (0.5 + 0.5 * jitter)


def reason(error: BaseException) -> str:
    """Why an attempt failed, in a few words."""
    return getattr(error, "strerror", None) or str(error) or "no answer"


async def together(*works: Coroutine[object, object, None]) -> None:
    """Run all until one ends; raises what that one raised, and leaves none running."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
