"""An agent's measurements are stored once, whichever process is killed meanwhile: real processes, with a link that is
cut."""

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tests.cluster.delivery_scene import COUNTED, Scene

pytestmark = pytest.mark.torture

#: Steps a second a rank: an agent that is dead for seconds must find them in the ring.
RATE = 20.0
#: How much is spooled, in bytes, before a cut counts as one, however short it was.
BACKLOG = 30_000
#: What tells a value of a metric from all others, and a collective.
KEYS = {"metrics": ("node", "name", "labels", "time_ns"), "collectives": ("rank", "comm", "seq")}


def stored(scene: Scene, name: str, *keys: str) -> Counter[tuple[object, ...]]:
    """How often each row of a table is stored, by these columns."""
    table = scene.table(name)
    return Counter(zip(*(table[key].to_pylist() for key in keys), strict=True))


def test_nothing_is_lost_or_doubled_though_link_agent_and_collector_fail(tmp_path: Path) -> None:
    """Produced, delivered and stored samples are as many, and every step is stored once, though what was on the way
    arrives late."""
    with closing(Scene(tmp_path)) as scene:
        scene.start_ranks(RATE)
        scene.moves_on()
        held = scene.spooled()
        scene.link.cut()
        scene.until(lambda: scene.spooled() > held + BACKLOG, "something is spooled")
        scene.kill(scene.agent)
        scene.kill(scene.collector)
        scene.start_agent()
        scene.start_collector()
        scene.link.restore()
        scene.moves_on()
        scene.kill(scene.collector)
        scene.start_collector()
        scene.moves_on()
        written = scene.end_ranks()
        account = scene.deliver()
        scene.end_collector()
        rows = sum(scene.table(name).num_rows for name in COUNTED)
        assert account == {"produced": rows, "delivered": rows, "dropped": {}, "kept": 0}
        assert rows > 0
        assert max(scene.table("rank_states")["events_lost_total"].to_pylist(), default=0) == 0
        marked = {(rank, step) for rank, count in enumerate(written) for step in range(1, count + 1)}
        assert stored(scene, "steps", "rank", "step") == Counter(marked)
        for name, keys in KEYS.items():
            assert max(stored(scene, name, *keys).values()) == 1
