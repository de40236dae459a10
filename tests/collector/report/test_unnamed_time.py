"""What a loop does in no phase is shown as that: in the table of ranks and in the counters."""

from typing import Any

import numpy as np
from hindmost_collector.ingest.chunk import Chunk
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.row_builder import Words
from hindmost_collector.live.jobs import LiveJob
from hindmost_collector.report import columns
from hindmost_judge.model import PHASES
from hindmost_judge.timeline.phases import unnamed

MS = 1_000_000


def unnamed_ms(duration: float, **phases: float) -> float:
    """ms of one step in no phase."""
    found = unnamed({name: np.array([ms]) for name, ms in phases.items()}, np.array([duration]))
    assert found is not None
    return float(found[0])


def test_it_is_what_phases_of_the_host_leave_of_a_step() -> None:
    """GPU times, CPU time and negotiation are no part of the host's phases; what is unmeasured counts nothing."""
    phases = {"input": 2.0, "forward": 3.0, "backward": 4.0, "sync": 1.0, "optimizer": 5.0, "checkpoint": float("nan")}
    assert unnamed_ms(20.0, **phases) == 5.0
    assert unnamed_ms(20.0, **phases, cpu=18.0, runqueue=1.0, negotiation=1.0, gpu_backward=7.0) == 5.0
    assert unnamed_ms(14.9, **phases) == 0.0


def test_a_copy_outside_the_gpu_s_phases_is_inside_forward() -> None:
    """On steps whose GPU was timed; a copy that the loop marks itself is a phase like any other."""
    phases = {"input": 2.0, "forward": 3.0, "h2d": 1.0, "optimizer": 5.0}
    assert unnamed_ms(20.0, **phases) == 9.0
    assert unnamed_ms(20.0, **phases, gpu_forward=3.0) == 10.0
    assert unnamed_ms(20.0, **phases, gpu_forward=-1.0) == 9.0


def test_of_a_step_without_known_phases_it_is_unknown() -> None:
    """A loop of which only some phases are seen has no rest: missing, not everything."""
    assert unnamed({"input": np.array([2.0])}, np.array([20.0])) is None
    assert np.isnan(unnamed_ms(20.0, input=2.0, optimizer=float("nan")))
    assert np.isnan(unnamed_ms(20.0, input=2.0, optimizer=-1.0))


def test_counters_have_it() -> None:
    """Of the rank whose optimizer was seen; the other has none."""
    words, job = Words(), LiveJob("j", 0)
    table: dict[str, Any] = {f"{name}_ns": np.full(4, -1) for name in PHASES}
    table |= {
        "rank": np.array([0, 0, 1, 1], dtype=np.int32),
        "step": np.array([0, 1, 0, 1]),
        "kind": np.full(4, words.code("train"), dtype=np.int32),
        "start_ns": np.arange(4) * 20 * MS,
        "duration_ns": np.full(4, 20 * MS),
        "work": np.full(4, -1),
        "forward_ns": np.full(4, 6 * MS),
        "optimizer_ns": np.array([4 * MS, 4 * MS, -1, -1]),
    }
    job.add(Chunk({"steps": table}, {}, [], []), words, Definitions(), 1)
    counters = dict(job.counters())
    np.testing.assert_allclose(counters["phase:other"], [0.02, np.nan])


def test_the_table_shows_it_where_it_is_large() -> None:
    """From 2 % of a step on, as any phase."""
    row = {"rank": 0, "node": "n", "step_ms": 100.0, "self_ms": None, "wait_ms": None, "caused_wait_ms": None}
    for rest, shown in ((1.9, False), (12.0, True)):
        titles, cells = columns.table([row | {"phases_ms": {"forward": 60.0, "other": rest}}])
        assert ("other" in titles) is shown
    assert cells[0][titles.index("other")] == "12.0"
