"""A slow input of one rank that is hidden in part: what it costs counts the steps in which nothing hides it."""

import dataclasses

import numpy as np
import pytest
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.verdict.schema import Report

from tests.judge.buckets import BUCKETS, RANKS, STEPS, run

NOTE = "queued work hides it in most steps"


def fetching(
    input_ms: float, late_ms: float, often: int, steps: int = STEPS, part: str = "input_ns"
) -> tuple[Run, float]:
    """A job whose rank 2 waits so long for its input in each step, and what that costs, ms a step. It is late by a part
    of it, and by all of it in every so many steps, as where its host waits for its GPU then."""
    delays = np.zeros((RANKS, steps, BUCKETS))
    calm = run(delays)[1]
    delays[2, :, 0] = late_ms * 1e6
    delays[2, often - 1 :: often, 0] = input_ms * 1e6
    job, took = run(delays, timed=True)
    waits = np.where(job.steps["rank"] == 2, input_ms * 1e6, 1e5).astype(np.int64)
    return dataclasses.replace(job, steps={**job.steps, part: waits}), (took - calm) / steps / 1e6


def of_input(report: Report) -> list[str]:
    return [note for note in report.notes if NOTE in note]


@pytest.mark.parametrize("part", ["input_ns", "h2d_ns"])
@pytest.mark.parametrize(("input_ms", "late_ms"), [(12.0, 2.0), (30.0, 15.0)])
def test_steps_in_which_nothing_hides_it_are_repaired_too(input_ms: float, late_ms: float, part: str) -> None:
    """A host that waits for its GPU in every eighth step, to log a loss, has nothing queued in the next."""
    job, cost = fetching(input_ms, late_ms, 8, part=part)
    (verdict,) = judge(job).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (2,), part.removesuffix("_ns"))
    assert verdict.cost_ms_per_step == pytest.approx(cost, rel=0.05)
    assert any("nothing hid its" in line for line in verdict.evidence)


def test_stalls_that_the_input_is_too_short_for_are_not_repaired_with_it() -> None:
    """Whatever stalls a rank for 10 ms, it is no input that takes 3."""
    job, _ = fetching(3.0, 3.0, 8)
    extra = np.zeros((RANKS, STEPS, BUCKETS))
    extra[2, :, 0] = 3e6
    extra[2, 7::8, 0] += 10e6
    stalled = dataclasses.replace(job, collectives=run(extra)[0].collectives)
    (verdict,) = [one for one in judge(stalled).verdicts if one.cause == "input"]
    assert verdict.cost_ms_per_step == pytest.approx(3.0, rel=0.1)


def test_too_few_stalls_do_not_say_whether_an_input_costs_something() -> None:
    """Three in 40 steps may have met that rank by chance: it is not named, and not said to cost nothing."""
    report = judge(fetching(8.0, 0.0, 12, 40)[0])
    assert [verdict.ranks for verdict in report.verdicts if verdict.ranks] == []
    (note,) = of_input(report)
    assert note.startswith("rank 2 waits 7.9 ms")
    assert "costs nothing" not in note


def test_five_stalls_are_enough_of_the_one_rank_whose_input_is_slow() -> None:
    """By chance any of four ranks would have all five in one job of 250; this one in 1,000."""
    report = judge(fetching(8.0, 0.0, 8, 47)[0])
    (verdict,) = [one for one in report.verdicts if one.ranks]
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("intermittent", (2,), "input")
