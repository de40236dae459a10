"""A job's agent that leaves while the job starts again under the same id: no rank stays without an agent."""

import asyncio
import contextlib
import fcntl
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hindmost import ring
from hindmost.identity import Identity
from hindmost_agent import daemon
from hindmost_agent.agent import Agent
from hindmost_agent.delivery.stream import Shipper
from hindmost_agent.jobs.rings import start_ticks
from hindmost_agent.settings import Settings, settings

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "rings"


@pytest.fixture
def served(tmp_path: Path, folder: Path) -> Settings:
    return settings(
        NOWHERE, job_id="job", ring_dir=str(folder), spool=str(tmp_path / "spool"), environ={"TMPDIR": str(tmp_path)}
    )


@pytest.fixture
def rank(folder: Path) -> Iterator[Callable[[], Path]]:
    """Starts a rank, which is this process; returns its ring."""
    with contextlib.ExitStack() as open_rings:

        def start() -> Path:
            writer = ring.Writer.create(folder, Identity("job", 0, 1, 0, "n", "torch", "t.py"), "py", 64)
            open_rings.callback(writer.close)
            return Path(writer.path)

        yield start


def minutes() -> Callable[[], int]:
    """A clock that advances by more than a minute at each reading: there is no waiting."""
    count = itertools.count()
    return lambda: next(count) * 61 * daemon.NS


def is_free(folder: Path) -> bool:
    """Whether a rank that asks now finds no agent, as ``bootstrap`` asks."""
    with (folder / "agent.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def test_a_job_that_starts_again_while_its_agent_flushes_has_an_agent(
    served: Settings, folder: Path, rank: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rank found the lock held: the agent gives it up at once, and another comes in its place."""
    finish: Any = Shipper.finish
    rings: list[Path] = []
    taken: list[bool] = []

    async def finishing(self: Shipper, *args: Any) -> None:
        rings.append(rank())
        taken.append(is_free(folder))
        await finish(self, *args)

    monkeypatch.setattr(Shipper, "finish", finishing)
    monkeypatch.setattr(daemon, "FLUSH_TIMEOUT_S", 3600.0)  # which it does not wait for
    free: list[bool] = []
    assert daemon.serve(served, minutes(), lambda: free.append(is_free(folder))) == 0
    assert taken == [False]
    assert free == [True]
    assert rings[0].exists()


def test_a_rank_that_comes_just_before_the_lock_is_given_up_has_an_agent(
    served: Settings, folder: Path, rank: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent has cleared away what it knew; it looks once more when the lock is free."""
    monkeypatch.setattr(daemon, "FLUSH_TIMEOUT_S", 0.0)
    collect: Any = Path.rmdir

    def removing(path: Path) -> None:
        collect(path)
        if path == folder:  # it also removes what other jobs left on this machine
            rank()

    monkeypatch.setattr(Path, "rmdir", removing)
    free: list[bool] = []
    daemon.serve(served, minutes(), lambda: free.append(is_free(folder)))
    assert free == [True]


def test_a_latecomer_has_an_agent(served: Settings, rank: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent that leaves does not read the start of its ring: the next one would read it again."""
    finish: Any = Agent.finish

    def finishing(self: Agent, now_ns: int, **how: bool) -> None:
        rank()
        finish(self, now_ns, **how)

    monkeypatch.setattr(Agent, "finish", finishing)
    again: list[bool] = []
    daemon.serve(served, minutes(), lambda: again.append(True))
    assert again == [True]


def test_an_abandoned_agent_leaves(served: Settings, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without new ranks it does not start again, and takes the folder with it."""
    monkeypatch.setattr(daemon, "FLUSH_TIMEOUT_S", 0.0)
    again: list[bool] = []
    daemon.serve(served, minutes(), lambda: again.append(True))
    assert not again
    assert not folder.exists()


@pytest.mark.parametrize(
    ("reason", "stays"), [("SIGTERM", True), ("the collector said stop", True), (daemon.CLOSED, False)]
)
async def test_a_rank_that_runs_keeps_its_ring(
    served: Settings, rank: Callable[[], Path], monkeypatch: pytest.MonkeyPatch, reason: str, *, stays: bool
) -> None:
    """The next agent can go on reading it; once the run itself is over none will."""
    monkeypatch.setattr(daemon, "FLUSH_TIMEOUT_S", 0.0)
    path = rank()
    assert start_ticks(Path("/proc"), os.getpid()) is not None

    agent = daemon.Daemon(served)
    asyncio.get_running_loop().call_later(0.05, agent.leave, reason)
    await agent.run()
    assert path.exists() == stays


def test_a_lock_that_was_removed_while_it_was_taken_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that leaves removes the file: who opened it before would lock one that no other can see."""
    flock = fcntl.flock
    calls: list[int] = []

    def removed_first(descriptor: int, how: int) -> None:
        if not calls:
            (folder / "agent.lock").unlink()
        calls.append(descriptor)
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    held = daemon.lock(folder)
    assert held is not None
    monkeypatch.undo()
    assert not is_free(folder)
    os.close(held)


def test_who_asks_whether_the_lock_is_held_keeps_no_agent_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank, or another job's agent, holds it for an instant when it asks."""
    folder.mkdir()
    asking = (folder / "agent.lock").open("w")
    fcntl.flock(asking, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda _: asking.close())
    held = daemon.lock(folder)
    assert held is not None
    os.close(held)
