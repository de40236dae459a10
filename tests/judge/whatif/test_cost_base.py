"""Over which steps a cost is a mean: those from the verdict's first to before its last, struck or not."""

import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge

FAULTS = [
    Fault("input", (3,), 0.2),
    Fault("h2d", (3,), 0.2, onset=120),
    Fault("compute", (3,), 0.2, onset=60, end=130),
    Fault("gc", (3,), 0.5, duty=0.1),
    Fault("cpu_contention", (3,), 0.4, onset=100, duty=0.2),
]


@pytest.mark.parametrize("layout", ["dp", "fsdp"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.cause}@{fault.onset}")
def test_a_cost_times_its_steps_is_what_the_repair_saves(fault: Fault, layout: str) -> None:
    """Of a fault that lasts, of one that ends and of stalls alike."""
    job = Scenario(16, 200, 5, layout, faults=(fault,))
    simulated = simulate(job)
    (verdict,) = judge(simulated.run).verdicts
    assert verdict.ranks == (3,)
    assert verdict.cost_ms_per_step is not None
    assert verdict.since_step is not None
    stop = job.steps if verdict.until_step is None else verdict.until_step
    saved = (simulated.truth.total_ns - simulated.truth.repaired_ns) / 1e6
    assert verdict.cost_ms_per_step * (stop - verdict.since_step) == pytest.approx(saved, rel=0.1)


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


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("onset", "end"), [(60, None), (40, 80)])
def test_a_rank_that_is_given_more_for_a_while_is_late_for_that_alone(ranks: int, onset: int, end: int | None) -> None:
    """Half of what it has more is not its usual work in the other steps, in which nothing is wrong."""
    simulated = simulate(Scenario(ranks, 120, 500, "fsdp", faults=(Fault("workload", (0,), 0.2, onset, end),)))
    (verdict,) = judge(simulated.run).verdicts
    assert (verdict.ranks, verdict.cause, verdict.since_step) == ((0,), "workload", onset)
    saved = (simulated.truth.total_ns - simulated.truth.repaired_ns) / 1e6
    assert (verdict.cost_ms_per_step or 0.0) * ((end or 120) - onset) == pytest.approx(saved, rel=0.05)


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
