"""Slow-downs that last a few steps and end."""

from __future__ import annotations

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.detect import transient
from hindmost_judge.judge import judge

from tests.scenarios.loads import Load, make

MS = 1e6


@pytest.mark.parametrize(("steps", "lasts"), [(120, 8), (150, 10), (600, 15), (600, 24)])
def test_a_slowdown_of_a_few_steps_is_reported_with_both_ends(steps: int, lasts: int) -> None:
    """However short against the run; its cost is that of the steps in which it acts."""
    fault = Fault("compute", (3,), 0.5, onset=60, end=60 + lasts)
    simulated = simulate(Scenario(steps=steps, faults=(fault,)))
    (verdict,) = judge(simulated.run).verdicts
    assert (verdict.kind, verdict.ranks) == ("straggler", (3,))
    assert (verdict.since_step, verdict.until_step) == (60, 60 + lasts)
    saved = (simulated.truth.total_ns - simulated.truth.repaired_ns) / lasts / MS
    assert verdict.cost_ms_per_step == pytest.approx(saved, rel=0.1)


def test_a_slowdown_of_mpi_ranks_is_reported_too() -> None:
    """Ten steps of ten at half as much again."""
    run = make(Load(steps=300, faults=[{"rank": 2, "compute": 4.0, "from": 100, "until": 110}]))
    (verdict,) = judge(run).verdicts
    assert (verdict.ranks, verdict.cause, verdict.since_step, verdict.until_step) == ((2,), "compute", 100, 110)


def test_one_long_step_or_a_few_is_no_slow_down() -> None:
    """A checkpoint, a collection of garbage, a hiccup of the network: less than eight steps are an accident."""
    run = make(Load(steps=300, faults=[{"rank": 2, "compute": 4.0, "from": 100, "until": 106}]))
    assert [verdict.kind for verdict in judge(run).verdicts] == ["balanced"]


def test_what_happens_to_others_too_is_no_burst() -> None:
    """Where ranks are late for some steps now here and now there, the longest of these is no rank's fault."""
    excess = np.random.default_rng(1).normal(0, 1.0, (4, 200))
    excess[1, 50:60] += 40.0
    assert transient.find(excess, 10.0) == [(1, 50, 60)]
    excess[3, 120:130] += 20.0
    assert transient.find(excess, 10.0) == []


def test_a_rank_may_have_several_bursts() -> None:
    """Up to three are its own, and no reason to doubt each other; more are stalls."""
    excess = np.random.default_rng(1).normal(0, 1.0, (4, 300))
    for first in (50, 120, 200):
        excess[1, first : first + 10] += 40.0
    assert sorted(transient.find(excess, 10.0)) == [(1, 50, 60), (1, 120, 130), (1, 200, 210)]
    excess[1, 260:270] += 40.0
    assert transient.find(excess, 10.0) == []


def test_what_is_reported_already_is_no_bursts_equal() -> None:
    """A rank that is late for another reason says nothing about the others."""
    excess = np.random.default_rng(1).normal(0, 1.0, (4, 200))
    excess[1, 50:60] += 40.0
    excess[3, 100:] += 30.0
    assert transient.find(excess, 10.0) == []
    assert transient.find(excess, 10.0, [(3, 100, 200)]) == [(1, 50, 60)]


@pytest.mark.parametrize("memory", [0.0, 0.8, 0.95])
def test_noise_that_lasts_is_no_burst(memory: float) -> None:
    """Of healthy ranks whose pace wanders, each is slow for many steps on end, and so are the others in their turn."""
    for seed in range(30):
        random = np.random.default_rng(seed)
        excess = random.standard_normal((8, 400))
        for step in range(1, 400):
            excess[:, step] += memory * excess[:, step - 1]
        stalls = (random.random(excess.shape) < 0.02) * random.exponential(20.0, excess.shape)
        assert transient.find(excess + stalls, 1.0) == []


def test_of_two_ranks_that_are_slow_in_turn_neither_is_named() -> None:
    """Each has only the other to be compared with: a while ahead and a while behind is how they are."""
    first = {"rank": 0, "compute": 0.6, "from": 0, "until": 90}
    then = {"rank": 1, "compute": 1.0, "from": 240, "until": 310}
    run = make(Load(ranks=2, steps=400, faults=[first, then]))
    assert [verdict.kind for verdict in judge(run).verdicts] == ["balanced"]
    alone = make(Load(ranks=2, steps=400, faults=[then]))
    assert [verdict.ranks for verdict in judge(alone).verdicts] == [(1,)]


@pytest.mark.parametrize("layout", ["dp", "fsdp"])
def test_two_ranks_much_slower_in_turn_are_each_reported_with_their_steps(layout: str) -> None:
    """By what is no noise of a healthy job: neither is ahead in the other's turn, it waits."""
    turns = [(turn % 2, 100 + 60 * turn, 160 + 60 * turn) for turn in range(4)]
    faults = tuple(Fault("compute", (rank,), 0.4, onset=first, end=stop) for rank, first, stop in turns)
    made = simulate(Scenario(2, 360, 3, layout, faults=faults))
    found = judge(made.run).verdicts
    told = {(one.kind, one.ranks, one.cause, one.since_step, one.until_step) for one in found}
    assert told == {("straggler", (rank,), "compute", first, stop) for rank, first, stop in turns}
    cost = (made.truth.total_ns - made.truth.repaired_ns) / 240 / MS
    assert [one.cost_ms_per_step for one in found] == pytest.approx([cost] * 4, rel=0.1)
