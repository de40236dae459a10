"""Collectives of so few steps that a job is judged by its marks, as windows of thousands of ranks hold them."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.encoding import chosen
from hindmost_judge.judge import judge
from hindmost_judge.model import Job, Run
from hindmost_judge.timeline import matching, phases


def _of_the_last(run: Run, steps: int) -> Run:
    """The same, as we record it, with the collectives of the last steps only."""
    marks, calls = run.steps, run.collectives
    since = marks["start_ns"][marks["step"] == marks["step"].max() - steps + 1].max()
    return replace(run, job=replace(run.job, source=Job.source), collectives=chosen(calls, calls["start_ns"] >= since))


@pytest.mark.parametrize(("steps", "joined"), [(8, False), (20, True)])
def test_collectives_not_judged_are_not_joined(monkeypatch: pytest.MonkeyPatch, steps: int, joined: bool) -> None:
    """Those of eight steps are not looked at; whom the marks name is named either way."""
    made = simulate(Scenario(8, 60, seed=3, gpu_bound="compute", faults=(Fault("compute", (5,), 0.2),)))
    run, asked = _of_the_last(made.run, steps), []
    monkeypatch.setattr(matching, "grid", lambda run, grid=matching.grid: asked.append(run) or grid(run))
    (verdict,) = judge(run).verdicts
    assert (verdict.kind, verdict.ranks, bool(asked)) == ("straggler", (5,), joined)


def test_a_step_that_was_recorded_twice_counts_as_it_was_measured_last() -> None:
    """Of the rows of one rank's step the last that measured a column has it; the others keep what they have."""
    table = {
        "rank": np.array([0, 1, 1, 1]),
        "step": np.array([4, 4, 4, 5]),
        "input_ns": np.array([1, 2, 3, 7]),
        "gc_ns": np.array([-1, 6, -1, -1]),
    }
    ranks, numbers = np.array([0, 1]), np.array([4, 5])
    found = phases.phase_blocks(table, ranks, numbers)
    np.testing.assert_array_equal(found["input"], [[1, np.nan], [3, 7]])
    np.testing.assert_array_equal(found["gc"], [[np.nan, np.nan], [6, np.nan]])
    once = {name: column[[0, 1, 3]] for name, column in table.items()}
    np.testing.assert_array_equal(phases.phase_blocks(once, ranks, numbers)["input"], [[1, np.nan], [2, 7]])
