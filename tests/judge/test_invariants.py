"""What must hold of every judgement, whatever the job: tried on made jobs."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Noise, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.runs import named, only
from tests.scenarios.loads import Load, make, renamed, shifted

quick = settings(max_examples=12)
excesses = st.sampled_from([0.0, 0.3, 1.0, 4.0])
seeds = st.integers(0, 1000)


def job(delay: float, seed: int, **more: object) -> Load:
    return Load(steps=60, seed=seed, faults=[{"rank": 2, "compute": delay}], **more)  # type: ignore[arg-type]


@quick
@given(excesses, seeds, st.sampled_from([0.5, 3.0, 20.0]))
def test_scaling_time_scales_cost(delay: float, seed: int, scale: float) -> None:
    """A job that is three times slower in everything loses three times the milliseconds, and the same share."""
    plain, scaled = make(job(delay, seed)), make(job(delay, seed, scale=scale))
    assert [found[:2] for found in named(plain)] == [found[:2] for found in named(scaled)]
    for one, other in zip(judge(plain).verdicts, judge(scaled).verdicts, strict=True):
        if one.cost_ms_per_step is not None and other.cost_ms_per_step is not None:
            assert abs(other.cost_ms_per_step / scale - one.cost_ms_per_step) < 0.01 * one.cost_ms_per_step + 1e-3


@quick
@given(excesses, seeds)
def test_one_more_healthy_rank_names_no_other(delay: float, seed: int) -> None:
    """One more rank does not get a healthy rank named; the slow one, near a threshold, may be."""
    load = job(delay, seed)
    jobs = [make(replace(load, ranks=count)) for count in (4, 5)]
    before, after = ({rank for _, ranks, _ in named(run) for rank in ranks} for run in jobs)
    assert after <= before | {fault["rank"] for fault in load.faults}


@quick
@given(seeds)
def test_a_healthy_job_is_balanced(seed: int) -> None:
    """Noise alone never names anyone."""
    assert named(make(job(0.0, seed))) == [("balanced", (), None)]


TENSOR = Scenario(seed=5, ranks=16, layout="tp_dp", tensor=4)


PIPELINE = Scenario(seed=5, ranks=8, steps=140, layout="pp_dp", pipeline=2)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_link_costs_what_idle_time_of_its_stage_does_not_hide(stage: int) -> None:
    """Stages end one after the other: a late transfer of an early one delays the job by less than its length."""
    job = Scenario(8, 60, 3, "pp_dp", pipeline=4, step_ms=300, faults=(Fault("network", (2 * stage,), 0.3),))
    simulated = simulate(job)
    report = judge(simulated.run)
    (verdict,) = report.verdicts
    truth = (simulated.truth.total_ns - simulated.truth.repaired_ns) / 1e6 / 60
    assert (verdict.kind, verdict.ranks) == ("slow_link", (2 * stage, 2 * stage + 1))
    assert verdict.cost_ms_per_step == pytest.approx(truth, rel=0.1)
    assert any("computing hides the rest" in one for one in verdict.evidence) == (stage > 0)
    assert report.what_if.waste is not None
    assert report.what_if.waste.lost_ms >= (verdict.cost_ms_per_step or 0.0)


def heavier(run: Run, rank: int) -> Run:
    """The same run with twice the bytes in the data-parallel group of a rank, which take as long as they took."""
    table = dict(run.collectives)
    of_rank = np.unique(table["comm"][(table["rank"] == rank) & (table["op"] == "all_reduce")])
    held = [comm for comm in of_rank if len(np.unique(table["rank"][table["comm"] == comm])) == 4]
    table["bytes"] = table["bytes"] * np.where(np.isin(table["comm"], held), 2, 1)
    return replace(run, collectives=table)


def test_a_group_that_moves_more_takes_longer_by_right() -> None:
    """The first stage of a pipeline holds the embedding, say."""
    slow = simulate(replace(PIPELINE, faults=(Fault("network", (2,), 0.1),))).run
    assert [verdict.kind for verdict in judge(slow).verdicts] == ["slow_link"]
    assert [verdict.kind for verdict in judge(heavier(slow, 2)).verdicts] == ["balanced"]


@pytest.mark.parametrize("rank", [2, 6])
def test_a_group_unlike_its_sisters_is_held_against_its_own_past(rank: int) -> None:
    """Whichever of the two moves more: one became slow and the other did not."""
    slow = simulate(replace(PIPELINE, faults=(Fault("network", (2,), 0.2, 60),))).run
    (verdict,) = judge(heavier(slow, rank)).verdicts
    assert (verdict.kind, verdict.ranks, verdict.since_step) == ("slow_link", (0, 1, 2, 3), 60)
    assert "before and after" in verdict.evidence[0]


def test_messages_that_grow_make_no_slow_link() -> None:
    """A group that moves other bytes than before, and than its sisters, has no known usual time."""
    slow = simulate(replace(PIPELINE, faults=(Fault("network", (2,), 0.2, 60),))).run
    grown = heavier(slow, 2).collectives["bytes"]
    table = dict(slow.collectives)
    table["bytes"] = np.where(table["step"] >= 60, grown, table["bytes"])
    assert "slow_link" not in [verdict.kind for verdict in judge(replace(slow, collectives=table)).verdicts]


@pytest.mark.parametrize("seed", range(2))
def test_noise_of_a_groups_transfers_is_no_link(seed: int) -> None:
    """Transfers that differ by half from one to the next, in a step of which they are a third."""
    for layout in (replace(TENSOR, ranks=8), PIPELINE):
        scenario = replace(layout, seed=seed, steps=200, transfer_share=0.5, noise=Noise(transfer=0.5))
        assert [verdict.kind for verdict in judge(simulate(scenario, metrics=False).run).verdicts] == ["balanced"]


def test_a_group_that_got_less_far_makes_no_link_of_the_others() -> None:
    """Of two groups that share no rank (process sets), one stops early: its missing transfers are not short ones."""
    run = simulate(Scenario(seed=5, ranks=8, layout="tp_dp", tensor=4)).run
    calls = run.collectives
    members = {comm: set(calls["rank"][calls["comm"] == comm].tolist()) for comm in np.unique(calls["comm"])}
    first, second = ([comm for comm, who in members.items() if who == set(half)] for half in (range(4), range(4, 8)))
    early = calls["start_ns"] < np.quantile(calls["start_ns"], 0.1)
    kept = np.isin(calls["comm"], second) | (np.isin(calls["comm"], first) & early)
    assert [kind for kind, *_ in named(only(run, collectives=kept))] == ["balanced"]


STEP_MS = 100.0

slow = settings(max_examples=4)
every_layout = pytest.mark.parametrize("layout", ["dp", "fsdp", "tp_dp", "pp_dp"])
causes = st.sampled_from(["compute", "input", "gpu_throttle"])
sizes = st.sampled_from([0.0, 0.02, 0.08, 0.3])
onsets = st.sampled_from([0, 25])
#: A rank may get any number; in tensor parallel jobs replicas and lanes are permuted separately, since groups are
#: recognised by the distance of their members' numbers.
anyhow = st.permutations(range(8))
in_lanes = st.tuples(st.permutations(range(4)), st.permutations(range(2))).map(
    lambda moved: [2 * moved[0][rank // 2] + moved[1][rank % 2] for rank in range(8)]
)


def recorded(layout: str, cause: str, size: float, onset: int, seed: int) -> Run:
    """A job of 8 ranks, each on a node of its own; rank 3 is slow or, with a size of 0, none is."""
    faults = (Fault(cause, (3,), size, onset),) if size else ()
    job = Scenario(8, 60, seed, layout, tensor=2, pipeline=2, step_ms=STEP_MS, gpus_per_node=1, faults=faults)
    return simulate(job).run


def reported(run: Run, names: tuple[int, ...] | None = None) -> list[object]:
    """All that a verdict says of a job, its cost to a tenth of a per cent of the step; with ``names`` of its ranks."""
    return [
        (
            verdict.kind,
            tuple(sorted(names[rank] if names else rank for rank in verdict.ranks)),
            tuple(sorted(names[rank] if names else rank for rank in verdict.victims)),
            verdict.cause,
            verdict.since_step,
            verdict.until_step,
            verdict.cost_ms_per_step and pytest.approx(verdict.cost_ms_per_step, abs=1e-3 * STEP_MS),
        )
        for verdict in judge(run).verdicts
    ]


@every_layout
@slow
@given(cause=causes, size=sizes, onset=onsets, seed=seeds, data=st.data())
def test_ranks_may_be_renamed(layout: str, cause: str, size: float, onset: int, seed: int, data: st.DataObject) -> None:
    """Cause, cost, onset and end are of a rank, not of its number."""
    run = recorded(layout, cause, size, onset, seed)
    order = data.draw(in_lanes if layout == "tp_dp" else anyhow)
    assert reported(renamed(run, order)) == reported(run, tuple(order))


@every_layout
@slow
@example(cause="gpu_throttle", size=0.08, onset=0, seed=938, ahead=[1, *[0] * 7])  # its latest steps are noisy ones
@given(cause=causes, size=sizes, onset=onsets, seed=seeds, ahead=st.lists(st.integers(-900, 900), min_size=8))
def test_clocks_may_be_apart(layout: str, cause: str, size: float, onset: int, seed: int, ahead: list[int]) -> None:
    """Names, causes, costs and onsets stay, though each node's clock is up to a quarter of an hour off. Samples of GPUs
    are looked up by the job's clock: a throttling that lasts throughout needs none, if it is so large that noise does
    not move its onset."""
    throttled = cause == "gpu_throttle"
    run = recorded(layout, cause, max(size, 0.08) if throttled and size else size, 0 if throttled else onset, seed)
    offsets = dict(zip(run.ranks["node"].tolist(), (second * 10**9 for second in ahead), strict=False))
    assert reported(shifted(run, offsets)) == reported(run)


@every_layout
@pytest.mark.parametrize("cause", ["hang", "compute"])
def test_numbers_of_ranks_may_have_gaps(layout: str, cause: str) -> None:
    """Of a job that lost ranks, or that shares its numbers with another: two of three numbers name no rank."""
    run, gaps = recorded(layout, cause, 0.3, 25, seed=2), range(0, 24, 3)
    known = reported(run, tuple(gaps))
    assert reported(renamed(run, gaps)) == known
    assert any(gaps[3] in ranks for _, ranks, *_ in known)


@every_layout
@slow
@given(cause=causes, size=sizes, onset=onsets, seed=seeds)
def test_a_run_stays_and_its_figures_are_finite(layout: str, cause: str, size: float, onset: int, seed: int) -> None:
    """The second report is the first; its numbers are finite, and its costs are parts of a step."""
    run = recorded(layout, cause, size, onset, seed)
    for table in run.tables().values():
        for column in table.values():
            column.flags.writeable = False
    first = judge(run)
    assert json.dumps(first.to_dict(), allow_nan=False) == json.dumps(judge(run).to_dict(), allow_nan=False)
    for verdict in first.verdicts:
        assert 0 <= (verdict.cost_ratio or 0) <= 1
        assert 0 <= (verdict.confidence or 0) <= 1
        assert set(verdict.ranks) | set(verdict.victims) <= set(range(8))


@every_layout
@pytest.mark.parametrize("cause", ["compute", "input", "gpu_throttle"])
def test_the_jobs_are_such_that_a_rank_is_reported(layout: str, cause: str) -> None:
    """Else the properties above would hold of a judge that says nothing."""
    (verdict,) = judge(recorded(layout, cause, 0.3, 25, seed=1)).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause, verdict.since_step) == ("straggler", (3,), cause, 25)
