"""What a slow GPU costs where no collective was recorded: backward hides in its phases, and counts."""

from dataclasses import replace

import pytest
from hindmost_collector.simulate import Fault, Noise, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import COLLECTIVES, empty

QUIET = Noise(0, 0, 0, 0.8, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("ranks", [8, 64])
@pytest.mark.parametrize(
    ("cause", "size"), [("compute", 0.1), ("compute", 0.25), ("gpu_throttle", 0.15), ("input", 0.15)]
)
def test_phases_alone_tell_what_a_repair_saves(ranks: int, cause: str, size: float) -> None:
    """A slow GPU is late by forward and optimizer only, for backward waits for others: it is as slow there."""
    simulated = simulate(Scenario(ranks, 80, seed=3, faults=(Fault(cause, (ranks // 3,), size),)))
    (verdict,) = judge(replace(simulated.run, collectives=empty(COLLECTIVES))).verdicts
    assert (verdict.ranks, verdict.cause) == ((ranks // 3,), cause)
    truth = simulated.truth
    assert verdict.cost_ms_per_step == pytest.approx((truth.total_ns - truth.repaired_ns) / 80 / 1e6, rel=0.15)


def test_a_longer_forward_alone_says_nothing_of_backward() -> None:
    """Extra work in forward leaves the optimizer as it is: its cost is what forward shows."""
    run = simulate(Scenario(8, 80, warmup=0, noise=QUIET)).run
    longer = (run.steps["rank"] == 2) * 5_000_000
    steps = {**run.steps, "gpu_forward_ns": run.steps["gpu_forward_ns"] + longer}
    (verdict,) = judge(replace(run, steps=steps, collectives=empty(COLLECTIVES))).verdicts
    assert verdict.ranks == (2,)
    assert verdict.cost_ms_per_step == pytest.approx(5.0, rel=0.05)
