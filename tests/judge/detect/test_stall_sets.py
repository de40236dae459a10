"""Several ranks that stall now and then: all of them are reported, with what fixing them saves."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Noise, Scenario, simulate
from hindmost_judge.detect import intermittent
from hindmost_judge.judge import judge
from hindmost_judge.settings import DEFAULT
from hindmost_judge.stats.robust import peers_median
from hindmost_judge.timeline.cohorts import behind_early_ranks
from hindmost_judge.types import Floats, Ints

from tests.runs import blocks_of


@pytest.mark.parametrize("count", range(2, 33))
def test_early_ranks_are_on_time_however_many_are_late(count: int) -> None:
    """What ranks are beyond the median of their peers says in full how far they are apart."""
    came = np.random.default_rng(count).normal(size=(count, 20))
    early = np.sort(came, axis=0)[(count - 1) // 4]
    behind = behind_early_ranks(came - peers_median(came), np.zeros(count, np.int64))
    assert behind == pytest.approx(came - early)


def test_nearly_all_ranks_of_a_job_that_stall_for_one_cause_are_one_verdict() -> None:
    """They would be repaired together."""
    stalling = (0, 2, 3, 4, 5, 6)
    (one,) = judge(simulate(Scenario(8, 200, 1140, faults=(Fault("gc", stalling, 0.4, duty=0.62),))).run).verdicts
    assert (one.kind, one.ranks, one.cause) == ("intermittent", stalling, "gc")


def test_stalls_next_to_an_always_late_rank_are_reported_at_what_they_add() -> None:
    """It hides a good part of them: what is saved is saved once that rank is repaired, and both make the whole."""
    faults = (Fault("input", (2,), 0.2), Fault("gc", (9,), 0.4, duty=0.4))
    made = simulate(Scenario(16, 160, 5, faults=faults))
    found = {verdict.kind: verdict for verdict in judge(made.run).verdicts}
    assert {kind: (one.ranks, one.cause) for kind, one in found.items()} == {
        "straggler": ((2,), "input"),
        "intermittent": ((9,), "gc"),
    }
    assert found["intermittent"].given == (2,)
    cost = sum(one.cost_ms_per_step or 0.0 for one in found.values())
    assert cost == pytest.approx((made.truth.total_ns - made.truth.repaired_ns) / 160e6, rel=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_of_noisy_ranks_none_is_in_a_set(seed: int) -> None:
    """Hosts that hesitate now and then by anything, and work that differs from step to step, count as no stalls."""
    noise = Noise(0.004, 0.02, 0.01, stall_probability=0.1, stall_size=0.3)
    run = simulate(Scenario(8, 150, seed, noise=noise, varying_lengths=0.1 * (seed % 2))).run
    blocks = blocks_of(run)
    assert not intermittent.find_stall_sets(blocks, DEFAULT)


def test_of_two_lasting_kinds_of_steps_no_rank_is_in_a_set() -> None:
    """A rank that is slow for some long segments does not stall, and is reported differently."""
    faults = tuple(Fault("gc", (rank,), 0.3, 30 * rank, 30 * rank + 25) for rank in range(1, 5))
    blocks = blocks_of(simulate(Scenario(8, 200, 0, layout="fsdp", faults=faults)).run)
    assert not intermittent.find_stall_sets(blocks, DEFAULT)


def _blocks(count: int, held: dict[int, Any], grows: str = "steps") -> Any:
    """As much of blocks as is looked at: some of ``count`` ranks come 20 ms after the others in the steps that are
    ``held``, and what grows by that: the steps, the ranks' forward, or nothing."""
    draws = np.random.default_rng(7)
    steps = len(next(iter(held.values())))
    late, forward = draws.normal(0, 0.1e6, (count, steps)), draws.normal(30e6, 0.1e6, (count, steps))
    stalls = np.zeros((count, steps), bool)
    for row, its in held.items():
        stalls[row] = its
    late += 20e6 * stalls
    forward += 20e6 * stalls * (grows == "forward")
    period = 100e6 + draws.normal(0, 0.1e6, steps) + 20e6 * stalls.any(axis=0) * (grows == "steps")
    cohort = np.zeros(count, np.int64)
    return SimpleNamespace(
        step_ns=100e6, delay=late - peers_median(late), cohort=cohort, period=period, parts={"forward": forward}
    )


def _each(rows: range, steps: int = 120) -> dict[int, Any]:
    """These rows stall in three of eight steps each, mostly not in the same ones."""
    return {row: np.random.default_rng(row).random(steps) < 3 / 8 for row in rows}


@pytest.mark.parametrize("grows", ["steps", "forward", "nothing"])
def test_of_most_ranks_something_grows_where_they_stall(grows: str) -> None:
    """Five of eight that seem late are so only where a step, or a part of their self time, is longer then. Otherwise
    the other three are ahead, with lighter batches for example, and no rank holds the others back."""
    blocks = _blocks(8, _each(range(5)), grows)
    assert sorted(intermittent.find_stall_sets(blocks, DEFAULT)) == ([] if grows == "nothing" else list(range(5)))


def test_steps_that_grow_whenever_any_of_several_stalls_are_enough() -> None:
    """Ranks that always stall together have no step in which one of them does alone."""
    same = np.random.default_rng(3).random(120) < 0.4
    blocks = _blocks(8, dict.fromkeys(range(5), same))
    assert sorted(intermittent.find_stall_sets(blocks, DEFAULT)) == list(range(5))


@pytest.mark.parametrize(("count", "reported"), [(64, True), (65, False)])
def test_of_very_many_that_stall_no_few_are_looked_for(count: int, reported: bool) -> None:
    """Where that many hosts of a large job hesitate no few ranks cause it, and an evaluation takes no longer for
    them."""
    assert bool(intermittent.find_stall_sets(_blocks(256, _each(range(count))), DEFAULT)) == reported


@pytest.mark.parametrize(("count", "sorted_out"), [(256, True), (257, False)])
def test_large_jobs_are_set_against_their_median(count: int, sorted_out: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordering all ranks in each step takes longer than the rest of an evaluation, and few can move the median of so
    many."""
    asked: list[int] = []

    def counted(late: Floats, cohort: Ints) -> Floats:
        asked.append(len(late))
        return behind_early_ranks(late, cohort)

    monkeypatch.setattr(intermittent, "behind_early_ranks", counted)
    assert sorted(intermittent.find_stall_sets(_blocks(count, _each(range(3))), DEFAULT)) == [0, 1, 2]
    assert asked == ([count] if sorted_out else [])


@pytest.mark.parametrize(
    "job",
    [
        Scenario(6, 150, 1042, faults=(Fault("gpu_throttle", (0, 1, 2, 4), 0.4, duty=0.75),)),
        Scenario(8, 150, 1099, faults=(Fault("workload", (0, 2, 3, 4, 6), 0.26, duty=0.43),)),
    ],
    ids=lambda job: job.faults[0].cause,
)
def test_why_gpus_of_most_ranks_compute_longer_is_not_guessed(job: Scenario) -> None:
    """Their samples and their work differ from the typical rank's, which stalls, too: longer kernels are certain."""
    (one,) = judge(simulate(job).run).verdicts
    assert (one.kind, one.ranks, one.cause, one.partial) == ("intermittent", job.faults[0].ranks, "unknown", "compute")
