"""Causes that change at some step."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.blocks import Slowdown
from hindmost_judge.causes import why_late
from hindmost_judge.judge import judge
from hindmost_judge.verdict.schema import Verdict


def _reported(found: tuple[Verdict, ...]) -> list[tuple[str | None, int | None, int | None]]:
    assert all(verdict.kind == "straggler" and verdict.ranks == (2,) for verdict in found)
    reported = [(verdict.cause, verdict.since_step, verdict.until_step) for verdict in found]
    return sorted(reported, key=lambda one: (one[1] or 0, -(one[2] or 1_000)))


@pytest.mark.parametrize(("first", "second"), [(0.1, 0.2), (0.2, 0.1)])
@pytest.mark.parametrize(("before", "after"), [("compute", "input"), ("gpu_throttle", "compute")])
def test_what_takes_over_is_not_on_top_of_what_is_over(before: str, after: str, first: float, second: float) -> None:
    """Nothing of the one is measured in the steps of the other: neither is late by the other anyway."""
    faults = (Fault(before, (2,), first, 20, 60), Fault(after, (2,), second, 60))
    found = judge(simulate(Scenario(8, 120, seed=5, layout="fsdp", faults=faults)).run).verdicts
    assert _reported(found) == [(before, 20, 60), (after, 60, None)]
    assert not any("on top of" in line for one in found for line in one.evidence)


def test_what_is_measured_of_some_steps_only_tells_where_the_cause_changes() -> None:
    """GPU times of every fourth step: computing takes over as input ends."""
    faults = (Fault("input", (2,), 0.1, 20, 100), Fault("compute", (2,), 0.1, 100))
    run = simulate(Scenario(8, 200, seed=3, layout="fsdp", faults=faults)).run
    steps = {
        name: np.where(run.steps["step"] % 4 == 0, column, -1) if name.startswith("gpu_") else column
        for name, column in run.steps.items()
    }
    assert _reported(judge(replace(run, steps=steps)).verdicts) == [("input", 20, 100), ("compute", 100, None)]


@pytest.mark.parametrize(("more", "reported"), [(4, False), (8, True)])
def test_an_overlap_within_the_uncertainty_is_no_slowdown_of_the_next_segment(more: int, reported: bool) -> None:
    """Each end is two steps off by chance; a segment of eight is as short as one may be."""
    blocks: Any = SimpleNamespace(delay=np.ones((1, 100)))
    whole = Slowdown(row=0, first=0, stop=100, delay=1.0, z=9.0, consistency=1.0, spread_ratio=9.0, latest=1.0)
    inner = replace(whole, first=20, stop=50 + more, outer=whole)
    found = why_late.segments_within(50, 100, [whole, inner], blocks)
    assert (len(found) == 2) == reported


def test_an_unmeasured_cause_is_not_separated() -> None:
    """Without GPU times the rank's work is unknown once its input was as its peers': one verdict, not two."""
    faults = (Fault("input", (2,), 0.1, 20, 60), Fault("compute", (2,), 0.1, 60))
    run = simulate(Scenario(8, 120, seed=3, layout="fsdp", faults=faults)).run
    silent = {"input_ns", "rank", "step", "start_ns", "duration_ns"}
    steps = {name: column if name in silent else np.full_like(column, -1) for name, column in run.steps.items()}
    (found,) = judge(replace(run, steps=steps)).verdicts
    assert (found.cause, found.since_step, found.until_step) == ("unknown", 20, None)
