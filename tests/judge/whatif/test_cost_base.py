"""Over which steps a cost is a mean: those from the verdict's first to before its last, struck or not."""

import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge


@pytest.mark.parametrize(
    ("cause", "layout"), [("input", "dp"), ("input", "fsdp"), ("gc", "dp"), ("gc", "fsdp"), ("compute", "fsdp")]
)
def test_of_two_ranks_the_one_repaired_is_still_later_by_chance(cause: str, layout: str) -> None:
    """The other is on time by its own measure, not ahead by the slow one's delay: costs have no high bias."""
    costs, savings = [], []
    for seed in range(5):
        simulated = simulate(Scenario(2, 120, seed, layout, faults=(Fault(cause, (seed % 2,), 0.12),)))
        (verdict,) = judge(simulated.run).verdicts
        costs.append((verdict.cost_ms_per_step or 0.0) * 120)
        savings.append((simulated.truth.total_ns - simulated.truth.repaired_ns) / 1e6)
    assert sum(costs) == pytest.approx(sum(savings), rel=0.025)


@pytest.mark.parametrize("stages", [3, 4, 6])
def test_what_a_rank_of_a_pipeline_costs_is_a_part_of_what_is_lost(stages: int) -> None:
    """Though its only peers seem to be ahead of it, the time with all ranks alike is that of its healthy peers."""
    simulated = simulate(Scenario(12, 60, 9862669, "pp_dp", pipeline=stages, faults=(Fault("compute", (5,), 0.25),)))
    report = judge(simulated.run)
    (verdict,) = report.verdicts
    cost, waste = verdict.cost_ms_per_step or 0.0, report.what_if.waste
    saved = (simulated.truth.total_ns - simulated.truth.repaired_ns) / 1e6 / 60
    assert cost == pytest.approx(saved, rel=0.1)
    assert waste is not None
    assert cost <= waste.lost_ms <= 1.2 * cost
    for rows in (waste.by_rank, waste.by_cause):
        assert rows[0].name in ("5", "compute")
        assert rows[0].ms_per_step == pytest.approx(cost)
