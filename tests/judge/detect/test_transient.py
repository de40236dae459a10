"""Slow-downs that last a few steps and end."""

from collections.abc import Sequence

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.detect import nested_segments
from hindmost_judge.judge import judge
from hindmost_judge.types import Floats

MS = 1e6


def bursts(delay: Floats, least: float, reported: Sequence[tuple[int, int, int]] = ()) -> list[tuple[int, int, int]]:
    """The bursts in steps that take a second each."""
    return nested_segments.bursts(delay, np.full(delay.shape[1], 1e9), least, reported)


def test_what_happens_to_others_too_is_no_burst() -> None:
    """Where ranks are late for some steps now here and now there, the longest of these is no rank's fault."""
    delay = np.random.default_rng(1).normal(0, 1.0, (4, 200))
    delay[1, 50:60] += 40.0
    assert bursts(delay, 10.0) == [(1, 50, 60)]
    delay[3, 120:130] += 20.0
    assert bursts(delay, 10.0) == []


def test_a_rank_may_have_several_bursts() -> None:
    """Up to three are its own, and no reason to doubt each other; more are stalls."""
    delay = np.random.default_rng(1).normal(0, 1.0, (4, 300))
    for first in (50, 120, 200):
        delay[1, first : first + 10] += 40.0
    assert sorted(bursts(delay, 10.0)) == [(1, 50, 60), (1, 120, 130), (1, 200, 210)]
    delay[1, 260:270] += 40.0
    assert bursts(delay, 10.0) == []


def test_what_is_reported_already_is_no_bursts_equal() -> None:
    """A rank that is late for another reason says nothing about the others."""
    delay = np.random.default_rng(1).normal(0, 1.0, (4, 200))
    delay[1, 50:60] += 40.0
    delay[3, 100:] += 30.0
    assert bursts(delay, 10.0) == []
    assert bursts(delay, 10.0, [(3, 100, 200)]) == [(1, 50, 60)]


@pytest.mark.parametrize("memory", [0.0, 0.8, 0.95])
def test_noise_that_lasts_is_no_burst(memory: float) -> None:
    """Of healthy ranks whose pace wanders, each is slow for many steps on end, and so are the others in their turn."""
    for seed in range(30):
        random = np.random.default_rng(seed)
        delay = random.standard_normal((8, 400))
        for step in range(1, 400):
            delay[:, step] += memory * delay[:, step - 1]
        stalls = (random.random(delay.shape) < 0.02) * random.exponential(20.0, delay.shape)
        assert bursts(delay + stalls, 1.0) == []


@pytest.mark.parametrize("layout", ["dp", "fsdp"])
def test_two_ranks_much_slower_in_turn_are_each_reported_with_their_steps(layout: str) -> None:
    """By what is no noise of a healthy job: neither is ahead in the other's turn, it waits."""
    turns = [(turn % 2, 100 + 60 * turn, 160 + 60 * turn) for turn in range(4)]
    faults = tuple(Fault("compute", (rank,), 0.4, onset=first, end=stop) for rank, first, stop in turns)
    made = simulate(Scenario(2, 360, 3, layout, faults=faults))
    found = judge(made.run).verdicts
    reported = {(one.kind, one.ranks, one.cause, one.since_step, one.until_step) for one in found}
    assert reported == {("straggler", (rank,), "compute", first, stop) for rank, first, stop in turns}
    cost = (made.truth.total_ns - made.truth.repaired_ns) / 240 / MS
    assert [one.cost_ms_per_step for one in found] == pytest.approx([cost] * 4, rel=0.1)


@pytest.mark.parametrize("cause", ["cpu_contention", "compute"])
@pytest.mark.parametrize(("first", "stop", "named"), [(1172, None, []), (600, 628, []), (1000, None, [1])])
def test_what_lasts_a_tenth_of_a_second_is_no_slowdown(
    cause: str, first: int, stop: int | None, named: list[int]
) -> None:
    """In steps of 4 ms that is 28 of them: an operating system is busy elsewhere for as long now and then."""
    fault = Fault(cause, (1,), 0.5, first, stop)
    run = simulate(Scenario(2, 1200, 1, stretches=2, step_ms=3.7, faults=(fault,))).run
    assert [rank for verdict in judge(run).verdicts for rank in verdict.ranks] == named
