"""Back-up and restore of a store as docs/how-to/run-a-service.md has it, while agents and ranks go on."""

import shutil
from pathlib import Path

import pytest

from tests.cluster.delivery_scene import RANKS, Scene

pytestmark = pytest.mark.cluster

#: Steps a second a rank.
RATE = 20.0


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """A collector, an agent and two ranks that train."""
    made = Scene(tmp_path)
    made.start_ranks(RATE)
    made.moves_on()
    return made


def stored(scene: Scene) -> list[tuple[int, int]]:
    """Rank and step of each row of steps."""
    table = scene.table("steps")
    return list(zip(table["rank"].to_pylist(), table["step"].to_pylist(), strict=True))


def test_a_back_up_takes_nothing_from_a_job_and_a_restore_what_came_after(scene: Scene, tmp_path: Path) -> None:
    """Agents keep what comes while the collector is stopped. After a restore only what was stored since is missing."""
    try:
        scene.kill(scene.collector)
        shutil.copytree(scene.run, tmp_path / "copy")
        saved = set(stored(scene))
        assert saved
        scene.start_collector()
        scene.moves_on()
        scene.kill(scene.collector)
        gone = set(stored(scene)) - saved
        assert gone
        shutil.rmtree(scene.run)
        shutil.copytree(tmp_path / "copy", scene.run)
        scene.start_collector()
        scene.until(lambda: len(set(stored(scene)) - saved) > RANKS, "steps after the restore are stored")
        written = scene.end_ranks()
        account = scene.deliver()
        scene.end_collector()
        found = stored(scene)
        expected = {(rank, step) for rank, count in enumerate(written) for step in range(1, count + 1)}
        assert account["kept"] == 0
        assert account["dropped"] == {}
        assert len(found) == len(set(found))
        assert saved <= set(found)
        assert expected - set(found) <= gone
    finally:
        scene.close()
