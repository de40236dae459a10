"""Limits in time of calls that are tried again and again."""

import asyncio
import contextlib

import pytest
from hindmost_proto import retry


@pytest.mark.parametrize("fails", [False, True])
async def test_a_cancellation_at_the_moment_when_the_work_ends_is_not_lost(fails: bool) -> None:
    """Else a relay or an agent that tries again would never stop."""

    work = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(retry.within(60, work))
    await asyncio.sleep(0)
    work.set_exception(ConnectionError()) if fails else work.set_result(None)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_work_that_takes_too_long_is_ended() -> None:
    work = asyncio.get_running_loop().create_future()
    with pytest.raises(asyncio.TimeoutError):
        await retry.within(0.0, work)
    assert work.cancelled()


async def test_a_task_that_answers_its_cancellation_with_an_error_of_its_own_ends_all_the_same() -> None:
    """A connection that failed just then had an agent wait for ever for its stream to end."""

    async def stream() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        await asyncio.sleep(3600)

    tasks = [asyncio.create_task(stream()), asyncio.create_task(asyncio.sleep(3600))]
    await asyncio.sleep(0)
    await retry.cancel(*tasks)
    assert all(task.cancelled() for task in tasks)


async def test_what_a_cancelled_task_raised_is_dropped() -> None:
    async def fails() -> None:
        raise ConnectionError

    task = asyncio.create_task(fails())
    await asyncio.sleep(0)
    await retry.cancel(task)
    await retry.cancel()
    assert isinstance(task.exception(), ConnectionError)
