"""A rank that stalls now and then: from its first stall on, and however often; several ranks that do."""

import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Noise, Scenario, simulate
from hindmost_judge.blocks import Blocks
from hindmost_judge.detect import intermittent
from hindmost_judge.judge import judge
from hindmost_judge.settings import DEFAULT
from hindmost_judge.stats.robust import peers_median
from hindmost_judge.timeline.cohorts import behind_early_ranks
from hindmost_judge.types import Floats, Ints

from tests.runs import blocks_of, only
from tests.scenarios.loads import Load, make


def test_ranks_that_scatter_more_than_their_peers_do_not_stall() -> None:
    """A rank either stalls or not: one late by anything from nothing to a tenth of a step is noisy."""
    late = np.abs(np.random.default_rng(0).normal(0, 0.002, (8, 200)))
    late[3] *= 20
    assert not intermittent.find(_blocks(late), DEFAULT)
    late[3] = np.where(np.arange(200) % 3, 0.0, 0.06)
    (found,) = intermittent.find(_blocks(late), DEFAULT)
    assert (found.rows, len(found.stalled)) == ((3,), 67)


def test_large_stalls_are_not_dated_by_small_ones_of_another_kind() -> None:
    """A host that hesitates by an eighth of a step is something else than what stalls it by a whole one."""
    late = np.zeros((2, 300))
    late[0, 20:140:5], late[0, 180::7] = 0.13, 1.0
    blocks = _blocks(late)
    (found,) = intermittent.find(blocks, DEFAULT)
    assert found.stalled.tolist() == list(range(180, len(blocks.steps), 7))
    assert found.delay == pytest.approx(blocks.step_ns)


def test_stalls_of_all_sizes_are_all_reported() -> None:
    """Where nothing parts large from small they are of one kind."""
    late = np.zeros((2, 300))
    late[0, 5::6] = np.random.default_rng(1).exponential(0.4, 50) + 0.13
    (found,) = intermittent.find(_blocks(late), DEFAULT)
    assert len(found.stalled) > 30


def _blocks(late: Floats) -> Blocks:
    """Blocks of steps of 100 ms in which ranks are late by these shares of one."""
    blocks = blocks_of(simulate(Scenario(len(late), late.shape[1] + 1, seed=0)).run)
    late = late[:, : len(blocks.steps)]
    return replace(blocks, delay=late * blocks.step_ns)


def test_a_node_that_stalls_all_along_is_not_better_than_one_that_stalls_often() -> None:
    """With work of uneven size, of a large node some rank is late in nearly all steps, of a small one in many."""
    noise = Noise(0.003, 0.015, 0.0045, stall_probability=3e-4, stall_size=0.075, transfer=0.075, host=0.12)
    made = simulate(Scenario(12, 200, seed=9219, layout="fsdp", varying_lengths=0.2, noise=noise))
    assert not [verdict for verdict in judge(made.run).verdicts if verdict.ranks]


def _stalling(ranks: int, often: dict[int, int]) -> Blocks:
    """Blocks in which ranks stall in so many steps apart in time, each in others."""
    late, step = np.zeros((ranks, 200)), 0
    for row, count in often.items():
        for _ in range(count):
            late[row, step * 4 % 197] = 0.3
            step += 1
    return _blocks(late)


@pytest.mark.parametrize(
    ("ranks", "stalls", "reported"),
    [
        (4, {1: 5}, 0),  # that meet any of four ranks meet one and the same in four jobs of a thousand
        (4, {1: 8}, 1),
        (16, {1: 5}, 1),  # among sixteen in none
        (4, {1: 8, 2: 1, 3: 1}, 1),  # chance in 1.7 jobs of a thousand
        (4, {1: 8, 2: 2, 3: 2}, 0),  # in more than eleven
    ],
)
def test_of_few_ranks_one_has_most_of_a_few_stalls_by_chance(ranks: int, stalls: dict[int, int], reported: int) -> None:
    assert len(intermittent.find(_stalling(ranks, stalls), DEFAULT)) == reported


@pytest.mark.parametrize("lengths", [0.0, 0.1])
def test_of_two_ranks_one_that_is_much_later_now_and_then_stalls(lengths: float) -> None:
    """The other is never as late as that, with work that varies and without."""
    stalls = tuple(Fault("input", (1,), 0.5, step, step + 1) for step in range(6, 150, 9))
    (verdict,) = [
        one
        for one in judge(simulate(Scenario(2, 150, faults=stalls, varying_lengths=lengths)).run).verdicts
        if one.ranks
    ]
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("intermittent", (1,), "input")


@pytest.mark.parametrize(("size", "duty"), [(0.6, 0.06), (1.5, 0.15)])
def test_a_stalling_rank_that_becomes_slow_is_slow_since_then_at_each_evaluation(size: float, duty: float) -> None:
    """A rank that is slow in nearly all steps since one, and never before, does not just stall on CPUs that others use.
    The slow steps are no cluster of stalls, of which the beginning is the first."""
    faults = (Fault("compute", (3,), 0.2, 100), Fault("input", (3,), size, duty=duty))
    run = simulate(Scenario(8, 220, seed=5, faults=faults)).run
    for length in range(120, 221, 20):
        known = {name: run.tables()[name]["step"] < length for name in ("steps", "collectives")}
        found = judge(only(run, **known)).verdicts
        assert [(one.kind, one.ranks) for one in found] == [("straggler", (3,))]
        assert found[0].since_step == pytest.approx(100, abs=3)


@pytest.mark.parametrize(("ranks", "every"), [(2, 25), (3, 33), (4, 33)])
def test_few_large_stalls_of_one_size_are_reported(ranks: int, every: int) -> None:
    """Six or eight stops of a rank are more than chance also of two ranks, whose hosts hiccup, too."""
    faults = [{"rank": 1, "blocked": 250.0, "every": every}, *({"rank": r, "scatter": 4.0} for r in range(ranks))]
    (verdict,) = judge(make(Load(ranks=ranks, steps=200, compute=80.0, noise=4.0, faults=faults))).verdicts
    assert (verdict.kind, verdict.ranks) == ("intermittent", (1,))
    assert verdict.cost_ms_per_step == pytest.approx(250 / every, rel=0.15)
    assert re.search(rf"2[45]\d ms each, every {every} steps \([23]\.\d s\)$", verdict.evidence[0])


@pytest.mark.parametrize("seed", range(2))
def test_large_stalls_of_either_of_two_ranks_name_neither(seed: int) -> None:
    """What stops the host hits the rank that runs then."""
    random = np.random.default_rng(seed)
    hit = [{"rank": int(random.integers(2)), "blocked": 250.0, "from": at, "until": at + 1} for at in range(5, 200, 24)]
    (verdict,) = judge(make(Load(ranks=2, steps=200, compute=80.0, noise=4.0, seed=seed, faults=hit))).verdicts
    assert verdict.ranks == ()


@pytest.mark.parametrize("count", range(2, 33))
def test_early_ranks_are_on_time_however_many_are_late(count: int) -> None:
    """What ranks are beyond the median of their peers says in full how far they are apart."""
    came = np.random.default_rng(count).normal(size=(count, 20))
    early = np.sort(came, axis=0)[(count - 1) // 4]
    behind = behind_early_ranks(came - peers_median(came), np.zeros(count, np.int64))
    assert behind == pytest.approx(came - early)


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


def _stalled(count: int, held: dict[int, Any], grows: str = "steps") -> Any:
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


FIVE = range(5)


@pytest.mark.parametrize(
    ("held", "grows", "found"),
    [
        pytest.param(_each(FIVE), "steps", FIVE, id="a step is longer then"),
        pytest.param(_each(FIVE), "forward", FIVE, id="or a part of their self time"),
        pytest.param(_each(FIVE), "nothing", (), id="else the other three are ahead, with lighter batches for example"),
        pytest.param(
            dict.fromkeys(FIVE, np.random.default_rng(3).random(120) < 0.4), "steps", FIVE, id="always together"
        ),
    ],
)
def test_of_most_ranks_something_grows_where_they_stall(held: dict[int, Any], grows: str, found: Sequence[int]) -> None:
    """Five of eight seem late. Ranks that always stall together have no step in which one of them does alone."""
    assert sorted(intermittent.find_stall_sets(_stalled(8, held, grows), DEFAULT)) == [*found]


@pytest.mark.parametrize(("count", "reported"), [(64, True), (65, False)])
def test_of_very_many_that_stall_no_few_are_looked_for(count: int, reported: bool) -> None:
    """Where that many hosts of a large job hesitate no few ranks cause it, and no evaluation takes longer."""
    assert bool(intermittent.find_stall_sets(_stalled(256, _each(range(count))), DEFAULT)) == reported


@pytest.mark.parametrize(("count", "sorted_out"), [(256, True), (257, False)])
def test_large_jobs_are_set_against_their_median(count: int, sorted_out: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordering all ranks in each step takes longer than the rest, and few can move the median of so many."""
    asked: list[int] = []

    def counted(late: Floats, cohort: Ints) -> Floats:
        asked.append(len(late))
        return behind_early_ranks(late, cohort)

    monkeypatch.setattr(intermittent, "behind_early_ranks", counted)
    assert sorted(intermittent.find_stall_sets(_stalled(count, _each(range(3))), DEFAULT)) == [0, 1, 2]
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
