"""Waiting for what happens in another task, thread or process."""

import asyncio
import time
from collections.abc import Callable

#: Until a test takes it for a hang, s: a busy machine is no failure.
PATIENCE_S = 300.0


async def until(condition: Callable[[], object]) -> None:
    """Poll a condition; the test fails when it does not come about."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.01)


def wait_until(condition: Callable[[], object]) -> None:
    """The same, of another thread or process."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)
