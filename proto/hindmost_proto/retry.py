"""Keeping a call open: the pause between attempts, limits in time, and tasks that end together."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

FIRST_S = 0.2
#: After how long a task that has not ended is cancelled again, s: longer than what tasks await to clean up.
AGAIN_S = 1.0
#: The reason of a ``Stop`` that ends a job. With any other a collector goes, and the job goes on.
JOB_OVER = "the job is over"


def pause_s(attempt: int, longest_s: float, jitter: float, first_s: float = FIRST_S) -> float:
    """Pause before an attempt, s: doubling, and anything from half of it to all, by ``jitter`` (0 to 1)."""
    return min(first_s * 2.0 ** min(attempt, 16), longest_s) * (0.5 + 0.5 * jitter)


def reason(error: BaseException) -> str:
    """Why an attempt failed, in a few words."""
    return getattr(error, "strerror", None) or str(error) or "no answer"


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until all have ended; what they raise is dropped.

    Once is not enough: a connection that fails just then raises its own error in place of the cancellation. A clean-up
    that awaits for longer than ``AGAIN_S`` is cancelled, too.
    """
    running = set(tasks)
    while running := {task for task in running if not task.done()}:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)


async def within(limit_s: float, work: Awaitable[Result]) -> Result:
    """What ``work`` returns or raises; ``asyncio.TimeoutError`` after ``limit_s``.

    Before Python 3.12 ``asyncio.wait_for`` swallows a cancellation that comes as the work ends: who tries again in a
    loop is then never stopped.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=limit_s)
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        await cancel(task)


async def together(*works: Coroutine[object, object, None]) -> None:
    """Run all until one ends; raises what that one raised, and leaves none running."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancel(*tasks)
