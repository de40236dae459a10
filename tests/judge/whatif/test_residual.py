"""A slowdown of all ranks is reported in addition to a slow rank, and a slow rank alone is no such slowdown."""

import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.verdict.schema import Report

ALL = tuple(range(16))
STEPS, ONSET = 100, 50


def of(*faults: Fault, layout: str = "dp", seed: int = 45, steps: int = STEPS) -> Report:
    return judge(simulate(Scenario(16, steps, seed, layout=layout, faults=faults)).run)


def reported(report: Report) -> set[tuple[str, tuple[int, ...]]]:
    return {(verdict.kind, verdict.ranks) for verdict in report.verdicts}


@pytest.mark.parametrize(
    ("layout", "cause"), [("dp", "cpu_contention"), ("fsdp", "cpu_contention"), ("fsdp", "compute")]
)
def test_a_network_that_becomes_slow_is_reported_with_a_slow_rank(layout: str, cause: str) -> None:
    """With its onset, and both together cost what the two faults do."""
    scenario = Scenario(
        16, STEPS, 45, layout=layout, faults=(Fault(cause, (2,), 0.1), Fault("network", (0,), 0.2, ONSET))
    )
    simulated = simulate(scenario)
    report = judge(simulated.run)
    assert reported(report) == {("straggler", (2,)), ("slow_link", ())}
    (link,) = [verdict for verdict in report.verdicts if verdict.kind == "slow_link"]
    assert link.since_step == ONSET
    assert "no rank is later than before" in link.evidence[1]
    costs = sum((verdict.cost_ms_per_step or 0) * (STEPS - (verdict.since_step or 0)) for verdict in report.verdicts)
    truth = (simulated.truth.total_ns - simulated.truth.repaired_ns) / 1e6
    assert costs == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize("since", [0, 20])
def test_computing_slower_on_all_ranks_is_reported_with_a_slow_one(since: int) -> None:
    """In a note, of steps without what the slow rank costs."""
    report = of(Fault("compute", (2,), 0.1, since), Fault("compute", ALL, 0.2, 60), seed=51, steps=140)
    assert reported(report) == {("straggler", (2,))}
    assert report.job.slowed is not None
    assert report.job.slowed.since_step == 60
    assert report.job.slowed.step_ms - report.job.slowed.was_ms == pytest.approx(20, abs=1)
    (note,) = [one for one in report.notes if "on every rank, COST not counted" in one]
    assert note.startswith("since step 60 steps take ")


@pytest.mark.parametrize("layout", ["dp", "fsdp"])
@pytest.mark.parametrize("cause", ["compute", "gc"])
@pytest.mark.parametrize(("since", "until"), [(0, None), (50, None), (30, 70)])
def test_a_slow_rank_alone_is_nothing_that_all_share(layout: str, cause: str, since: int, until: int | None) -> None:
    """Its verdict states whatever steps became longer by: no network is blamed in addition, and there is no note."""
    report = of(Fault(cause, (3,), 0.2, since, until), layout=layout, steps=110)
    assert reported(report) == {("straggler", (3,))}
    assert report.job.slowed is None


def test_what_becomes_slow_with_a_rank_is_not_separated_from_it() -> None:
    """What begins in the same steps may be that rank's doing."""
    report = of(Fault("compute", (2,), 0.1, ONSET), Fault("compute", ALL, 0.2, ONSET), seed=51)
    assert report.job.slowed is None
