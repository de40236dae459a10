"""A rank that stalls now and then: from its first stall on, and however often."""

from __future__ import annotations

import pytest
from hindmost_collector.judge import judge
from hindmost_collector.simulate import Fault, Scenario, simulate


@pytest.mark.parametrize("seed", [0, 2])
def test_a_rank_that_stalls_in_most_steps_is_told(seed: int) -> None:
    """Its usual steps are the fewer ones: in these it is as its peers, in the others it costs half a step."""
    made = simulate(Scenario(8, 150, seed=seed, faults=(Fault("h2d", (3,), 0.5, duty=0.7),)))
    (verdict,) = judge(made.run).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("intermittent", (3,), "h2d")
    assert verdict.cost_ms_per_step == pytest.approx((made.truth.total_ns - made.truth.repaired_ns) / 150e6, rel=0.1)


@pytest.mark.parametrize(
    ("seed", "fault"), [(3, Fault("gc", (3,), 1.5, duty=0.2)), (1, Fault("gc", (3,), 3.0, end=60, duty=0.5))]
)
def test_early_stalls_are_no_warm_up(seed: int, fault: Fault) -> None:
    """Others wait in them, as they do in no warm-up: a rank that stalls from the start is told since then."""
    made = simulate(Scenario(8, 150, seed=seed, faults=(fault,)))
    (verdict,) = judge(made.run).verdicts
    assert (verdict.kind, verdict.ranks, verdict.since_step) == ("intermittent", (3,), 0)
    assert verdict.cost_ms_per_step == pytest.approx((made.truth.total_ns - made.truth.repaired_ns) / 150e6, rel=0.1)
