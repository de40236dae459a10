"""Slow-downs that last a few steps and end."""

import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge

MS = 1e6


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


def test_one_slow_rank_of_three_costs_what_it_does() -> None:
    """In all of its steps together: its peers' noise is not counted twice, and not taken off."""
    fault = Fault("workload", (0,), 0.06, 40, 110)
    made = simulate(Scenario(3, 120, 58, "fsdp", faults=(fault,)))
    (found,) = judge(made.run).verdicts
    assert found.cost_ms_per_step is not None
    assert found.since_step is not None
    cost = found.cost_ms_per_step * (120 - found.since_step)
    assert cost == pytest.approx((made.truth.total_ns - made.truth.repaired_ns) / MS, rel=0.1)
