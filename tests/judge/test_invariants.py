"""What must hold of every judgement, whatever the job: tried on made jobs."""

from dataclasses import replace

from hindmost_judge.judge import judge
from hindmost_judge.verdict.schema import Verdict
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scenarios.loads import Load, make

quick = settings(max_examples=12)
excesses = st.sampled_from([0.0, 0.3, 1.0, 4.0])
seeds = st.integers(0, 1000)


def verdicts(load: Load) -> tuple[Verdict, ...]:
    return judge(make(load)).verdicts


def job(delay: float, seed: int, **more: object) -> Load:
    return Load(steps=60, seed=seed, faults=[{"rank": 2, "compute": delay}], **more)  # type: ignore[arg-type]


def named(found: tuple[Verdict, ...]) -> list[tuple[str, tuple[int, ...]]]:
    return [(verdict.kind, verdict.ranks) for verdict in found]


@quick
@given(excesses, seeds, st.sampled_from([0.5, 3.0, 20.0]))
def test_scaling_time_scales_cost(delay: float, seed: int, scale: float) -> None:
    """A job that is three times slower in everything loses three times the milliseconds, and the same share."""
    plain, scaled = verdicts(job(delay, seed)), verdicts(job(delay, seed, scale=scale))
    assert named(plain) == named(scaled)
    for one, other in zip(plain, scaled, strict=True):
        if one.cost_ms_per_step is not None and other.cost_ms_per_step is not None:
            assert abs(other.cost_ms_per_step / scale - one.cost_ms_per_step) < 0.01 * one.cost_ms_per_step + 1e-3


@quick
@given(excesses, seeds)
def test_one_more_healthy_rank_names_no_other(delay: float, seed: int) -> None:
    """One more rank does not get a healthy rank named; the slow one, near a threshold, may be."""
    of_four = verdicts(job(delay, seed))
    more = verdicts(replace(job(delay, seed), ranks=5))
    slow = {fault["rank"] for fault in job(delay, seed).faults}
    before = {rank for verdict in of_four for rank in verdict.ranks}
    assert {rank for verdict in more for rank in verdict.ranks} <= before | slow


@quick
@given(seeds)
def test_a_healthy_job_is_balanced(seed: int) -> None:
    """Noise alone never names anyone."""
    assert [verdict.kind for verdict in verdicts(job(0.0, seed))] == ["balanced"]
