"""An agent that runs for years: what it holds is of the jobs that run, not of those that ran."""

import gc
from pathlib import Path

import pytest

from bench.agent_years import Node, memory_of

WARM, MORE = 12, 24
#: Not the writers: they are the ranks'.
READERS = ("hindmost_agent", "hindmost.ring.reader")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_an_agent_holds_nothing_of_jobs_that_are_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times as many jobs leave no more objects, bytes and open files: what is remembered has a bound."""
    monkeypatch.setattr("hindmost_agent.delivery.spool.MOST_DEFINITIONS", 32)
    monkeypatch.setattr("hindmost_agent.jobs.rings.KEPT_ENDS", 4)
    node = Node(tmp_path)
    for number in range(WARM):
        node.job(number)
    before, files = memory_of(node), open_files()
    for number in range(WARM, WARM + MORE):
        node.job(number)
    after = memory_of(node)
    assert after["objects"] - before["objects"] < MORE
    assert after["bytes"] - before["bytes"] < MORE * 100
    assert open_files() <= files
    node.spool.close()


def test_what_a_job_leaves_does_not_wait_for_the_garbage_collector(tmp_path: Path) -> None:
    """That rarely runs in an agent, and until then each job would leave its rings' tables in memory."""
    node = Node(tmp_path)
    node.job(0)
    gc.collect()
    gc.disable()
    try:
        node.job(1)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
    finally:
        gc.set_debug(0)
        gc.enable()
    left = {type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith(READERS)}
    gc.garbage.clear()
    node.spool.close()
    assert not left
