"""Whether a ledger adds up: what the agent reports as delivered and dropped against what was written and stored."""

from collections import Counter
from typing import Any

from .scene import COUNTED, Scene


def settled(scene: Scene) -> dict[str, Any]:
    """End a scene in order, and hold its three accounts against each other. Raises ``AssertionError``."""
    written = scene.end_ranks()
    samples = scene.deliver()
    scene.end_collector()
    return compared(scene, written, samples)


def compared(scene: Scene, written: list[int], samples: dict[str, Any]) -> dict[str, Any]:
    """The result of a scene whose processes have ended. Raises ``AssertionError`` where the accounts differ."""
    rows = {name: scene.table(name).num_rows for name in COUNTED}
    lost = max(scene.table("rank_states")["events_lost_total"].to_pylist(), default=0)
    result = {"samples": samples, "stored_rows": rows, "ring_events_lost": lost, "steps": _steps(scene, written)}
    steps, dropped = result["steps"], sum(samples["dropped"].values())
    assert samples["produced"] == samples["delivered"] + dropped + samples["kept"], result
    assert samples["kept"] == 0, result
    assert sum(rows.values()) == samples["delivered"], result
    assert not steps["stored_twice"], result
    assert not _twice(scene), result
    assert steps["missing"] <= dropped + lost, result
    return result


def _steps(scene: Scene, written: list[int]) -> dict[str, Any]:
    """Steps that the training processes wrote, against those that are stored."""
    table = scene.table("steps")
    stored = Counter(zip(table["rank"].to_pylist(), table["step"].to_pylist(), strict=True))
    expected = {(rank, step) for rank, count in enumerate(written) for step in range(1, count + 1)}
    assert stored.keys() <= expected, "a stored step was never marked"
    return {
        "written": len(expected),
        "stored": len(stored),
        "missing": len(expected - stored.keys()),
        "stored_twice": sum(count - 1 for count in stored.values()),
    }


def _twice(scene: Scene) -> int:
    """Values of a metric that are stored more than once for one moment, and collectives for one call."""
    metrics, calls = scene.table("metrics"), scene.table("collectives")
    found = 0
    for table, keys in ((metrics, ("node", "name", "labels", "time_ns")), (calls, ("rank", "comm", "seq"))):
        found += table.num_rows - len(set(zip(*(table[key].to_pylist() for key in keys), strict=True)))
    return found
