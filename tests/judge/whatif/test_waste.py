"""The table of waste: one base, tables within it, and what verdicts cost is in it."""

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.page import document
from hindmost_collector.report import columns, text
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import PHASES, Run
from hindmost_judge.verdict.schema import Report, Waste
from hindmost_judge.whatif.waste import waste_rows

TABLES = ("by_rank", "by_node", "by_cause", "by_phase")
COMPUTE, INPUT = Fault("compute", (5,), 0.12), Fault("input", (9,), 0.2)


@functools.cache
def recorded(*faults: Fault, **shape: Any) -> Run:
    """A job of 16 ranks on two nodes, made once."""
    return simulate(Scenario(**{"ranks": 16, "steps": 80, "seed": 4, "faults": faults} | shape)).run


@functools.cache
def judged(*faults: Fault, **shape: Any) -> Report:
    """The report on such a job as it is."""
    return judge(recorded(*faults, **shape))


def wasted(report: Report) -> Waste:
    assert report.what_if.waste is not None
    return report.what_if.waste


def of(waste: Waste, table: str) -> dict[str, float]:
    """Ms a step by name."""
    return {row.name: row.ms_per_step for row in getattr(waste, table)}


@pytest.mark.parametrize("layout", [{"layout": "dp"}, {"layout": "fsdp"}, {"layout": "pp_dp", "pipeline": 2}])
@pytest.mark.parametrize("faults", [(), (COMPUTE,), (COMPUTE, INPUT), (replace(COMPUTE, size=0.5, duty=0.1),)])
def test_no_table_adds_up_to_more_than_was_lost(layout: dict[str, Any], faults: tuple[Fault, ...]) -> None:
    """Nor to more than what the slow-down says; the rest is what no verdict is about."""
    report = judged(*faults, **layout)
    waste, what_if = wasted(report), report.what_if
    assert what_if.step_ms is not None
    assert what_if.slowdown is not None
    assert waste.lost_ms == pytest.approx(what_if.step_ms * (1 - 1 / what_if.slowdown))
    for table in TABLES:
        assert sum(of(waste, table).values()) <= waste.lost_ms * (1 + 1e-9)
    assert sum(of(waste, "by_cause").values()) + waste.rest_ms == pytest.approx(waste.lost_ms, rel=0.03)


def test_each_verdict_s_cost_is_in_the_tables() -> None:
    """Under its ranks, their nodes, its cause, and the phases in which they take longer."""
    report = judged(COMPUTE, INPUT, layout="fsdp")
    costs = {verdict.cause: verdict.cost_ms_per_step for verdict in report.verdicts}
    waste = wasted(report)
    assert of(waste, "by_cause") == pytest.approx(costs)
    assert of(waste, "by_rank")["5"] == pytest.approx(costs["compute"])
    assert of(waste, "by_rank")["9"] == pytest.approx(costs["input"])
    phases = of(waste, "by_phase")
    assert phases["input"] == pytest.approx(costs["input"], rel=0.02)
    assert phases["gpu_backward"] == pytest.approx(0.62 * (costs["compute"] or 0), rel=0.1)
    nodes = of(waste, "by_node")
    assert nodes["node0001"] > nodes["node0000"] > (costs["compute"] or 0)


def test_a_fault_of_a_part_of_the_run_counts_for_that_part() -> None:
    """A verdict's cost is of the steps in which it acts, the table is of all."""
    report = judged(replace(COMPUTE, onset=40), layout="fsdp")
    (verdict,) = report.verdicts
    assert verdict.cost_ms_per_step is not None
    assert of(wasted(report), "by_cause")["compute"] == pytest.approx(verdict.cost_ms_per_step * 40 / 78, rel=0.05)


def test_where_no_phase_was_measured_none_is_reported() -> None:
    """Ranks and causes are."""
    run = recorded(COMPUTE, layout="fsdp")
    unmeasured = np.full(len(run.steps["rank"]), -1)
    waste = wasted(judge(replace(run, steps=run.steps | {f"{name}_ns": unmeasured for name in PHASES})))
    assert waste.by_phase == ()
    assert of(waste, "by_rank")["5"] > 0
    assert [row.name for row in waste.by_cause] == ["unknown"]


def test_backward_has_no_more_than_forward_leaves_of_the_delay() -> None:
    """A rank whose forward is measured to be longer by all that it is late by lost nothing in backward."""
    run = recorded(COMPUTE, layout="fsdp")
    late = wasted(judge(run)).lost_ms
    slow = run.steps["rank"] == 5
    seen = {name: run.steps[name].copy() for name in ("gpu_forward_ns", "gpu_backward_ns")}
    for name, more in zip(seen, (late * 1e6, 0), strict=True):
        seen[name][slow] = round(float(np.median(seen[name][~slow]) + more))
    waste = wasted(judge(replace(run, steps=run.steps | seen)))
    phases = of(waste, "by_phase")
    assert phases["gpu_forward"] == pytest.approx(of(waste, "by_cause")["compute"], rel=0.1)
    assert phases.get("gpu_backward", 0.0) < 0.1 * phases["gpu_forward"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("faults", [(), (COMPUTE,), (COMPUTE, INPUT)])
def test_a_rank_of_no_verdict_wastes_no_more_than_it_caused(faults: tuple[Fault, ...], seed: int) -> None:
    """What a fix would not save of a named rank's waiting belongs to no rank, not to its peers."""
    report = judged(*faults, seed=seed, layout="fsdp")
    named = {str(rank) for verdict in report.verdicts for rank in verdict.ranks}
    caused = {str(rank): ms for rank, ms in report.what_if.waste_by_rank_ms.items()}
    for rank, ms in of(wasted(report), "by_rank").items():
        assert rank in named or ms <= caused[rank] * (1 + 1e-9)


@pytest.mark.parametrize(("ms", "reported"), [(0.15, True), (0.06, False)])
def test_what_wastes_a_thousandth_of_a_step_has_a_row(ms: float, reported: bool) -> None:
    """Less of it is not worth a reader's time."""
    assert bool(waste_rows({"node0000": ms}, step_ms=100.0)) == reported


def test_what_holds_all_back_alike_is_no_waste_of_ranks() -> None:
    """A slow input on all ranks is a verdict with a cost, and not a part of what ranks lose to each other."""
    report = judged(input_share=0.6)
    assert report.verdicts[0].kind == "input_bound"
    assert of(wasted(report), "by_cause") == {}


def test_the_text_tells_more_than_one_verdict_s_cost_or_nothing() -> None:
    """Two causes are a line; one rank whose cost its verdict says is none."""
    two, one = (judged(*faults).to_dict() for faults in ((COMPUTE, INPUT), (INPUT,)))
    assert columns.waste(one) == []
    assert "WASTE" not in text.render(one, explain=True)
    assert "WASTE" not in text.render(two)
    shown = text.render(two, width=400, explain=True)
    assert [shown.count(line) for line in columns.waste(two)] == [1] * 5
    assert "ranks are unequal" in columns.waste(two)[0]
    assert "by cause: compute" in document.of_report(two)


#: Where collectives run during backward, the delay shows a part of some of these.
BESIDE = [
    Fault("compute", (5,), 0.4, onset=10, duty=0.15),
    Fault("gpu_throttle", (5,), 0.12),
    Fault("workload", (5,), 0.15, onset=40),
    Fault("input", (5,), 0.3, onset=30, end=60),
    Fault("gc", (5,), 0.4, onset=10, duty=0.15),
]


@pytest.mark.parametrize("layout", ["dp", "fsdp"])
@pytest.mark.parametrize("fault", BESIDE, ids=lambda fault: f"{fault.cause}@{fault.onset}")
def test_the_step_with_all_alike_is_that_of_the_job_without_its_fault(fault: Fault, layout: str) -> None:
    """What the fault made it longer by is lost, and counted under its cause, however little of it the delay shows."""
    faulty, clean = (judged(*faults, layout=layout) for faults in ((fault,), ()))
    truth = simulate(Scenario(16, 80, 4, layout, faults=(fault,))).truth
    saved = (truth.total_ns - truth.repaired_ns) / 1e6 / 78
    assert faulty.what_if.ideal_step_ms == pytest.approx(clean.what_if.ideal_step_ms, abs=0.07 * saved)
    assert sum(of(wasted(faulty), "by_cause").values()) == pytest.approx(saved, rel=0.06)


@pytest.mark.parametrize("layout", ["fsdp", "tp_dp"])
def test_a_stall_s_end_counts_though_it_shows_in_the_next_step(layout: str) -> None:
    """A slow GPU's optimizer ends after the last collective of its step, and holds up the first of the next."""
    shape = {"tensor": 2} if layout == "tp_dp" else {}
    job = Scenario(16, 120, 500, layout, faults=(Fault("compute", (7,), 0.4, onset=10, duty=0.15),), **shape)
    simulated = simulate(job)
    (verdict,) = judge(simulated.run).verdicts
    assert verdict.cost_ms_per_step is not None
    saved = (simulated.truth.total_ns - simulated.truth.repaired_ns) / 1e6
    assert verdict.cost_ms_per_step * 118 == pytest.approx(saved, rel=0.03)


def test_checkpoints_that_one_rank_writes_for_all_have_a_cause() -> None:
    """No verdict is about them, and yet it is known what the others waited for: under their cause, phase and rank."""
    job = Scenario(8, 150, 3, checkpoint_every=20, warmup=0)
    report = judge(simulate(job).run)
    assert [verdict.kind for verdict in report.verdicts] == ["balanced"]
    saved = simulate(job).truth.total_ns - simulate(replace(job, checkpoint_every=0)).truth.total_ns
    waste = wasted(report)
    for name, table in (("checkpoint", "by_cause"), ("checkpoint", "by_phase"), ("0", "by_rank")):
        assert of(waste, table)[name] == pytest.approx(saved / 150 / 1e6, rel=0.1)
    assert waste.rest_ms < 0.1 * waste.lost_ms


@pytest.mark.parametrize("shown", [-1e-3, 0.0])
def test_a_job_that_loses_nothing_wastes_nothing(monkeypatch: pytest.MonkeyPatch, shown: float) -> None:
    """Rounding of visible delays never makes the job faster than it was, nor its waste negative."""
    monkeypatch.setattr("hindmost_judge.whatif.savings.step_delay", lambda *_: np.array([shown]))
    what_if = judge(simulate(Scenario(4, 40, seed=1)).run).what_if
    assert (what_if.slowdown, what_if.wasted_ratio) == (1.0, 0.0)
