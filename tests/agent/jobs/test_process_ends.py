"""The kernel tells when processes end, in which order and how."""

import os
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hindmost_agent.jobs.processes import End, Ends
from hindmost_agent.jobs.rings import start_ticks, started

PROC = Path("/proc")

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd_open")


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def started_one(ends: Ends, command: str) -> tuple[subprocess.Popen[bytes], End]:
    """A shell that ends as ``command`` does once its input is closed."""
    process = subprocess.Popen(["sh", "-c", f"read x; {command}"], stdin=subprocess.PIPE)
    ticks = start_ticks(PROC, process.pid)
    return process, ends.watch(PROC, process.pid, lambda stat: started(stat) == ticks)


def end(ends: Ends, process: subprocess.Popen[bytes]) -> None:
    """Let it end, and wait for that as an event loop does; its parent has not asked yet."""
    assert process.stdin is not None
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_ends_have_the_order_in_which_they_came(ends: Ends) -> None:
    """However late they are collected."""
    made = [started_one(ends, "exit 0") for _ in range(4)]
    order = [2, 0, 3, 1]
    for place in order:
        end(ends, made[place][0])
    assert select.select([ends.fileno()], [], [], 60)[0]
    ends.collect(1000)
    times = [one.ended_ns for _, one in made]
    assert [times[place] for place in order] == [1000, 1001, 1002, 1003]
    assert not select.select([ends.fileno()], [], [], 0)[0]


@pytest.mark.parametrize(("command", "status"), [("exit 3", 3 << 8), ("kill -9 $$", 9)])
def test_an_end_has_its_status(ends: Ends, command: str, status: int) -> None:
    """As waitpid has it, whether or not a signal ended the process."""
    process, seen = started_one(ends, command)
    assert (seen.ended_ns, seen.status) == (None, None)
    end(ends, process)
    ends.collect(7)
    assert (seen.ended_ns, seen.status) == (7, status)
    process.wait()
    assert seen.status in (status, None)  # once its parent has asked, a kernel before 6.15 no longer tells


def test_another_process_with_its_pid_is_not_watched(ends: Ends) -> None:
    """Nor one that is gone: of both nothing is reported."""
    assert ends.watch(PROC, os.getpid(), lambda _: False).ended_ns is None
    assert ends.watch(PROC, 1 << 30, lambda _: True).ended_ns is None
    ends.collect(7)
