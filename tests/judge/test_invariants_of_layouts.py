"""What must hold of every judgement, whatever the waits: tried on jobs of every layout."""

import json

import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.scenarios.moved import renamed, shifted

STEP_MS = 100.0

quick = settings(max_examples=4)
every_layout = pytest.mark.parametrize("layout", ["dp", "fsdp", "tp_dp", "pp_dp"])
causes = st.sampled_from(["compute", "input", "gpu_throttle"])
sizes = st.sampled_from([0.0, 0.02, 0.08, 0.3])
onsets = st.sampled_from([0, 25])
seeds = st.integers(0, 1000)
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
@quick
@given(cause=causes, size=sizes, onset=onsets, seed=seeds, data=st.data())
def test_ranks_may_be_renamed(layout: str, cause: str, size: float, onset: int, seed: int, data: st.DataObject) -> None:
    """Cause, cost, onset and end are of a rank, not of its number."""
    run = recorded(layout, cause, size, onset, seed)
    order = data.draw(in_lanes if layout == "tp_dp" else anyhow)
    assert reported(renamed(run, order)) == reported(run, tuple(order))


@every_layout
@quick
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
@quick
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
