"""How fast a backlog goes out after a cut, and how late what happens meanwhile is known."""

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from hindmost_agent.delivery.stream import Pace

from .account import settled
from .scene import Scene

#: Steps a second a rank, so that minutes fill the spool as a day of a node does.
FAST = 2500.0
#: What is spooled before the link is restored, bytes.
BACKLOG = 32 << 20
#: How long the usual delay is watched before the cut, s.
BEFORE_S = 20.0
#: Seconds over which a rate is measured: each may contain one more burst, and one message above the pace.
STRETCH_S = 5.0
#: From so long after the link is restored: data from the sockets' buffers passes at once.
FLUSHED_S = 1.0
MIB = float(1 << 20)


class Look(NamedTuple):
    """One sample of the link and the store: when (s), bytes that had passed, and the age of the newest stored step."""

    at_s: float
    passed: int
    age_s: float


def replay(folder: Path, backlog: int = BACKLOG) -> dict[str, Any]:
    """The link is cut until so much is spooled, then restored: data leaves no faster than the pace, and none is lost.

    ``known_after_s``: the age of the newest stored step, at most before the cut, and when the link was restored.
    """
    scene, pace = Scene(folder, patience_s=900), Pace()
    try:
        scene.start_ranks(FAST)
        scene.moves_on()
        usual = max(look.age_s for look in _watch(scene, lambda looks: looks[-1].at_s > looks[0].at_s + BEFORE_S))
        scene.link.cut()
        held = scene.spooled()  # delivered, as far as the collector had said so: a spool gives space back in pieces
        scene.until(lambda: scene.spooled() > held + backlog, "the spool holds the backlog")
        spooled, mended = scene.spooled() - held, scene.link.passed
        scene.link.mend()
        looks = _watch(scene, lambda looks: looks[-1].passed - mended > spooled and looks[-1].age_s <= usual)
        result = settled(scene)
        assert not result["samples"]["dropped"], result
        assert result["ring_events_lost"] == 0, result
        assert result["steps"]["missing"] == 0, result
        out = next(look for look in looks if look.passed - mended > spooled)
        rates = _rates(looks)
        assert max(rates) <= (pace.rate + 2 * pace.burst / STRETCH_S) / MIB, rates
        return {
            **result,
            "spooled_bytes": spooled,
            "limit_mib_per_second": pace.rate / MIB,
            "mean_mib_per_second": round((out.passed - mended) / MIB / (out.at_s - looks[0].at_s), 2),
            f"most_mib_per_second_over_{STRETCH_S:.0f}_s": round(max(rates), 2),
            "replay_seconds": round(out.at_s - looks[0].at_s, 1),
            "known_after_s": {"before": usual, "on_mending": looks[0].age_s},
            "as_late_as_before_after_s": round(looks[-1].at_s - looks[0].at_s, 1),
        }
    finally:
        scene.close()


def _watch(scene: Scene, enough: Callable[[list[Look]], bool]) -> list[Look]:
    """Looks at a scene, several a second, until there are enough of them."""
    looks: list[Look] = []

    def look() -> bool:
        looks.append(Look(time.monotonic(), scene.link.passed, _age_s(scene)))
        return enough(looks)

    scene.until(look, "what happens is known as soon as it was before the cut")
    return looks


def _rates(looks: list[Look]) -> list[float]:
    """MiB per second that passed, over periods of ``STRETCH_S`` or a little more."""
    found = []
    for place, first in enumerate(looks):
        if first.at_s < looks[0].at_s + FLUSHED_S:
            continue
        later = next((look for look in looks[place:] if look.at_s - first.at_s >= STRETCH_S), None)
        if later is not None:
            found.append((later.passed - first.passed) / MIB / (later.at_s - first.at_s))
    return found


def _age_s(scene: Scene) -> float:
    """How long ago the newest step that is stored began, s."""
    newest = max(_newest_ns(path) for path in (scene.run / "segments/steps").glob("*.parquet"))
    return round((time.time_ns() - newest) / 1e9, 2)


@cache
def _newest_ns(path: Path) -> int:
    """The latest start in a segment, which never changes; by the file's own statistics."""
    try:
        file = pq.ParquetFile(path).metadata
    except OSError:  # merged into another one by now
        return 0
    place = file.schema.names.index("start_ns")
    return max(file.row_group(group).column(place).statistics.max for group in range(file.num_row_groups))
