"""What can go wrong between a sample and its storage, each as a scene that must add up at its end."""

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from .account import compared, settled
from .scene import PATIENCE_S, Scene

#: Steps a second a rank: an agent that is dead for seconds must find them in the ring; a full spool needs many.
STEADY, FLOOD = 20.0, 400.0
#: How much is spooled, in bytes, before a cut counts as one, however short it was.
BACKLOG = 30_000


def cut_link(folder: Path, seconds: float) -> dict[str, Any]:
    """The link is cut for so long, then restored: nothing is lost, nothing is doubled."""
    with closing(Scene(folder, patience_s=seconds + PATIENCE_S)) as scene:
        scene.start_ranks(STEADY)
        scene.moves_on()
        _cut(scene, seconds)
        before = scene.last_step()
        spooled = scene.spooled()
        scene.link.restore()
        scene.until(lambda: scene.last_step() > before, "what was spooled is stored")
        scene.moves_on()
        return {**_whole(settled(scene)), "cut_seconds": seconds, "spooled_bytes": spooled}


def kill_collector(folder: Path, times: int = 2) -> dict[str, Any]:
    """The collector is killed and started again on its run directory, more than once."""
    with closing(Scene(folder)) as scene:
        scene.start_ranks(STEADY)
        for _ in range(times):
            scene.moves_on()
            scene.kill(scene.collector)
            held = scene.spooled()
            scene.until(lambda held=held: scene.spooled() > held + BACKLOG, "something is spooled")  # type: ignore[misc]
            scene.start_collector()
        scene.moves_on()
        return {**_whole(settled(scene)), "kills": times}


def fill_spool(folder: Path, size: str = "1MiB") -> dict[str, Any]:
    """The link is cut until the spool has dropped its oldest; from then on there is room, and nothing more is lost."""
    with closing(Scene(folder, "--spool-size", size)) as scene:
        scene.start_ranks(FLOOD)
        scene.moves_on()
        scene.link.cut()
        scene.until(lambda: scene.dropped() > 0, "the spool is full")
        scene.link.restore()
        scene.moves_on()
        dropped = scene.dropped()
        scene.moves_on()
        scene.moves_on()
        result = settled(scene)
        assert sum(result["samples"]["dropped"].values()) <= dropped, result
        assert result["samples"]["dropped"].keys() == {"spool_full"}, result
        assert result["steps"]["missing"] > 0, result
        return {**result, "spool_size": size}


def kill_agent(folder: Path, times: int = 2) -> dict[str, Any]:
    """The agent is killed and started again on its spool, while training goes on; once with the link cut."""
    with closing(Scene(folder)) as scene:
        scene.start_ranks(STEADY)
        for number in range(times):
            scene.moves_on()
            if number % 2:
                _cut(scene, 0)
            scene.kill(scene.agent)
            scene.start_agent()
            scene.link.restore()
        scene.moves_on()
        return {**_whole(settled(scene)), "kills": times}


def leave_undelivered(folder: Path) -> dict[str, Any]:
    """The collector is gone when the job ends: the agent keeps what it holds, and the next one delivers it."""
    with closing(Scene(folder)) as scene:
        scene.start_ranks(STEADY)
        scene.moves_on()
        scene.kill(scene.collector)
        scene.until(lambda: scene.spooled() > BACKLOG, "something is spooled")
        written = scene.end_ranks()
        first = scene.end_agent()
        assert first["kept"] > 0, first
        scene.start_collector()
        scene.start_agent()
        last = scene.deliver()
        scene.end_collector()
        return {**_whole(compared(scene, written, last)), "kept_by_the_first_agent": first["kept"]}


def everything_at_once(folder: Path, seconds: float) -> dict[str, Any]:
    """The link is cut, both are killed behind it, and it comes back while what was on the way arrives late."""
    with closing(Scene(folder, patience_s=seconds + PATIENCE_S)) as scene:
        scene.start_ranks(STEADY)
        scene.moves_on()
        _cut(scene, seconds)
        scene.kill(scene.agent)
        scene.kill(scene.collector)
        scene.start_agent()
        scene.start_collector()
        scene.link.restore()
        scene.moves_on()
        scene.kill(scene.collector)
        scene.start_collector()
        scene.moves_on()
        return {**_whole(settled(scene)), "cut_seconds": seconds}


def _cut(scene: Scene, seconds: float) -> None:
    held, end = scene.spooled(), time.monotonic() + seconds
    scene.link.cut()
    scene.until(lambda: time.monotonic() >= end and scene.spooled() > held + BACKLOG, "the cut has lasted")


def _whole(result: dict[str, Any]) -> dict[str, Any]:
    """Where the spool sufficed nothing may be missing. Raises ``AssertionError``."""
    assert not result["samples"]["dropped"], result
    assert result["ring_events_lost"] == 0, result
    assert result["steps"]["missing"] == 0, result
    return result


def all_of_them(seconds: float) -> dict[str, Callable[[Path], dict[str, Any]]]:
    """Every scenario by its name; ``seconds``: how long the link is cut."""
    return {
        "cut_link": lambda folder: cut_link(folder, seconds),
        "kill_collector_twice": kill_collector,
        "fill_spool": fill_spool,
        "kill_agent_twice": kill_agent,
        "leave_undelivered": leave_undelivered,
        "everything_at_once": lambda folder: everything_at_once(folder, min(seconds, 40.0)),
    }
