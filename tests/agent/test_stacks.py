"""Stacks of a process that goes on: several, at moments of their own, and none of a process that cannot be read."""

from hindmost_agent import stacks
from hindmost_judge.types import UNREAD


async def test_a_running_process_is_read_several_times() -> None:
    """Each stack has the time at which it was taken."""
    read = iter(f"Thread 7 (idle)\n    load (train.py:{line})\n" for line in range(100))
    taken = await stacks.of_running(7, lambda _: next(read), (0.0, 0.0))
    assert [text.count("load") for text, _ in taken] == [1] * stacks.STACKS
    times = [at_ns for _, at_ns in taken]
    assert times == sorted(set(times))


async def test_a_process_that_cannot_be_read_is_left_alone_and_says_why() -> None:
    """A compiled program has no stack of Python, however often it is read."""
    asked = []

    def read(pid: int) -> str:
        asked.append(pid)
        return f"{UNREAD} {pid}: no Python\n"

    assert [text for text, _ in await stacks.of_running(7, read, (0.0, 0.0))] == [f"{UNREAD} 7: no Python\n"]
    assert asked == [7] * 3


async def test_a_failed_read_ends_no_series() -> None:
    """A process that moves cannot always be read without holding it up."""
    read = [f"Thread 7 (idle)\n    load (train.py:{at})\n" for at in range(stacks.STACKS)]
    read[1::2] = [f"{UNREAD} 7: failed\n"] * (stacks.STACKS // 2)
    taken = await stacks.of_running(7, lambda _: read.pop(), (0.0, 0.0))
    assert [UNREAD in text for text, _ in taken] == [False] * (stacks.STACKS // 2)
