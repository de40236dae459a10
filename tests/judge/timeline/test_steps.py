"""Steps from marks of hosts, from the pattern of collectives, or from both."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.recordings.tables import concatenate, select, table
from hindmost_collector.simulate import Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import GPU_TIME, UNMEASURED, Run, Table
from hindmost_judge.timeline import matching
from hindmost_judge.timeline.steps import (
    Marks,
    are_parts,
    cycle,
    infer,
    period,
    steps_of_collectives,
    without_gaps,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.runs import MS, made, named
from tests.scenarios.loads import Load, make

LAYERS = 12
STEPS = 60
FORWARD = 12e6
BETWEEN = 0.4e6
STEP = 30e6


def layered(first: int = 0, clock: float = 0.0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], Marks]:
    """A model of twelve equal layers, three all-reduces each, its GPU two steps behind its host; two calls of start-up.
    ``first`` is the step that the recording begins with, ``clock`` by how much the GPU's clock is ahead."""
    tokens = np.concatenate([[7, 8], np.tile([0, 1, 2], LAYERS * STEPS)])
    gap = np.full((STEPS, 3 * LAYERS), BETWEEN)
    gap[:, 0] = FORWARD
    start = (first + np.arange(STEPS)) * STEP
    at = start[:, None] + FORWARD + np.arange(3 * LAYERS) * BETWEEN + clock
    at += np.minimum(np.arange(STEPS), 2)[:, None] * 0.3 * STEP
    at = np.concatenate([[np.nan, np.nan], at.ravel()])
    return tokens, np.concatenate([[np.nan, 5e6], gap.ravel()]), _of_all(first + np.arange(STEPS), start, at)


def _of_all(number: Any, start: Any, at: Any) -> Marks:
    """Marks of ranks that all do the same at once."""
    return Marks(number, start, at, start, at)


def test_a_layer_that_repeats_is_no_step_where_steps_are_marked() -> None:
    """As many repetitions make a step as the longest gaps are apart, and its numbers are the marks'."""
    tokens, gap, marks = layered()
    expected = np.concatenate([[-1, -1], np.repeat(np.arange(STEPS), 3 * LAYERS)])
    assert infer(tokens, gap, marks).tolist() == expected.tolist()


def test_marks_tell_the_step_of_two_equal_calls() -> None:
    """Two buckets of one size, with about as much computing before each: exactly two a mark are one step."""
    start = np.arange(STEPS) * STEP
    at = (start[:, None] + np.array([0.5, 0.9]) * STEP).ravel()
    gap = np.tile([0.55, 0.4], STEPS) * STEP
    found = infer(np.zeros(2 * STEPS, np.int64), gap, _of_all(np.arange(STEPS), start, at))
    assert found.tolist() == np.repeat(np.arange(STEPS), 2).tolist()


def test_marks_of_the_last_half_do_not_join_the_steps_before_them() -> None:
    """Half as many marks as steps, since they begin late, do not make two steps one."""
    start = np.arange(STEPS) * STEP
    marks = _of_all(np.arange(STEPS // 2), start[STEPS // 2 :], start + 0.5 * STEP)
    assert len(np.unique(infer(np.zeros(STEPS, np.int64), np.full(STEPS, 0.5 * STEP), marks))) == STEPS


def test_without_marks_what_repeats_is_a_step() -> None:
    """Nothing tells that a layer is not all there is."""
    tokens, gap, _ = layered()
    assert infer(tokens, gap).max() > (LAYERS - 1) * STEPS


def test_layers_reduced_after_all_computing_are_one_step_without_marks() -> None:
    """A pipeline's gradients follow one another after it: twenty times what is computed between them tells the step."""
    tokens, gap, _ = layered()
    gap[gap == BETWEEN] = FORWARD / 20 / (3 * LAYERS)
    expected = np.concatenate([[-1, -1], np.repeat(np.arange(STEPS), 3 * LAYERS)])
    assert infer(tokens, gap, apart=True).tolist() == expected.tolist()


def test_computing_between_layers_tells_no_step() -> None:
    """What comes before the first is no longer than all that comes between: a layer is all that is known."""
    tokens, gap, _ = layered()
    assert infer(tokens, gap, apart=True).max() > (LAYERS - 1) * STEPS


@pytest.mark.parametrize(
    ("calls", "computed"),
    [([0] * 25 + [1], [4.0] * 25 + [8.0]), ([0] * 25 + [1], [100.0] + [4.0] * 24 + [0.0])],
    ids=["iterations and a checkpoint", "layers of a step"],
)
def test_a_step_is_the_same_however_often_it_was_seen(calls: list[int], computed: list[float]) -> None:
    """A live job keeps its steps, and their numbers, while it goes on."""
    found = [infer(np.tile(calls, often), np.tile(computed, often) * 1e6, apart=True) for often in (8, 12)]
    eight, twelve = (int(np.bincount(numbers[numbers >= 0]).max()) for numbers in found)
    assert eight == twelve


@pytest.mark.parametrize(("spacing", "found"), [(60, 1), (20, 1), (5, None)])
def test_the_shortest_period_that_most_calls_have_is_a_step(spacing: int, found: int | None) -> None:
    """Calls of another size come less and less often, at no regular place: the others are steps all the same."""
    at = np.cumsum(np.arange(spacing, spacing + 14))
    tokens = np.zeros(at[-1] + spacing, np.int64)
    tokens[at] = 1
    assert period(tokens) == found


@pytest.mark.parametrize(
    ("lengths", "parts"),
    [
        (np.tile([30.0, 0.5, 0.5, 0.5], 30), True),
        (np.append(np.full(119, 30.0), 10_000.0), False),
        (np.tile([240.0] + [30.0] * 7, 15), False),
        (np.full(100, 30.0), False),
    ],
    ids=["layers", "one stop", "a loader's workers in turn", "steps"],
)
def test_parts_of_steps_are_known_by_the_long_ones(lengths: np.ndarray[Any, Any], parts: bool) -> None:
    """Every fourth has all of the computing; one interrupted, or some that waited for input, are steps."""
    assert are_parts(lengths) == parts


def test_a_window_begins_with_the_marked_number() -> None:
    """Hours into a job the first step in memory is not step 0."""
    tokens, gap, marks = layered(first=5000)
    found = infer(tokens, gap, marks)
    assert found[2] == 5000
    assert found[-1] == 5000 + STEPS - 1


@pytest.mark.parametrize("clock", [1e12, -1e12])
def test_a_gpu_clock_of_its_own_moves_no_step(clock: float) -> None:
    """Where the two clocks have nothing in common the first step found is the first marked."""
    tokens, gap, marks = layered(first=3, clock=clock)
    numbers = infer(tokens, gap, marks)
    assert numbers[numbers >= 0].min() == 3


def test_a_step_cut_in_two_by_start_up_begins_where_the_computing_is() -> None:
    """Half a step before the first whole one belongs to none."""
    tokens, gap, marks = layered()
    cut = 2 + 10
    late = _of_all(marks.number, marks.start, marks.at[cut:] - 0.6 * STEP)
    found = infer(tokens[cut:], gap[cut:], late)
    assert (found[: 3 * LAYERS - 10] == -1).all()
    assert found[3 * LAYERS - 10] == 1


def test_steps_that_begin_sooner_than_most_are_steps_too() -> None:
    """From step 25 on a rank computes for so long that all gaps before were less than half of the usual."""
    tokens, gap, marks = layered()
    begins = 2 + 3 * LAYERS * np.arange(STEPS)
    gap[begins[25:]] *= 2.2
    assert infer(tokens, gap, marks)[begins].tolist() == list(range(STEPS))


@pytest.mark.parametrize("lead", [1, 6])
def test_a_host_that_is_ahead_of_its_gpu_moves_no_number(lead: int) -> None:
    """While the GPU computes its first step the host launches the next ones: those are the GPU's first all the same."""
    tokens, gap, marks = layered()
    hosts_ahead = _of_all(marks.number, marks.start / (1 + lead), marks.at)
    found = infer(tokens, gap, hosts_ahead)
    assert (found[2], found[-1]) == (0, STEPS - 1)


def test_calls_of_which_the_first_are_not_recorded_are_of_the_steps_in_which_they_are() -> None:
    """The record begins with step 10; hosts marked all steps."""
    tokens, gap, marks = layered()
    first = 2 + 10 * 3 * LAYERS
    found = infer(tokens[first:], gap[first:], _of_all(marks.number, marks.start, marks.at[first:] - 0.6 * STEP))
    assert (found[0], found[-1]) == (10, STEPS - 1)


def test_two_groups_whose_calls_change_places_make_the_same_steps() -> None:
    """A group's own calls keep their order; in every eighth step one comes before another group's, not after it."""
    tokens, gap, marks = layered()
    expected = infer(tokens, gap, marks)
    tokens[2:].reshape(STEPS, -1)[5::8, [16, 17]] = [2, 1]
    assert infer(tokens, gap, marks).tolist() == expected.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_steps_begin_where_they_are_marked_and_not_at_any_long_gap(seed: int) -> None:
    """Collectives that do not say their step, as those of a running job: each is of the step in which it was run."""
    run = simulate(Scenario(8, 60, seed=seed, layout="fsdp")).run
    grid = matching.grid(run)
    assert grid is not None
    unmarked = replace(grid, step=np.full_like(grid.step, -1))
    found = steps_of_collectives(unmarked, matching.self_time(unmarked), run.steps)
    assert (found == grid.step)[found >= 0].all()
    assert np.mean(found >= 0) > 0.9


SLOW = 20
TRAINED = 120
EVERY = 12


def run(slow: int, ahead: int = 0) -> Run:
    """Two ranks over gloo: a gather of lengths and a synchronisation a step, eight gathers after every twelfth. Rank 1
    computes ``slow`` ms longer before the synchronisation, and its clock is ``ahead`` by so many ns."""
    random = np.random.default_rng(3)
    calls: list[Table] = []
    marks: list[Table] = []
    now, gathers, syncs = 1_000 * MS, 0, 0
    for step in range(TRAINED):
        work = 60 * MS + (random.normal(0, 0.5, 2) * MS).astype(np.int64) + np.array([0, slow * MS])
        met = now + 3 * MS + int(work.max()) + 2 * MS
        for rank in range(2):
            clock, ready = rank * ahead, now + 3 * MS + int(work[rank])
            calls.append(_call(rank, 1, "all_gather", gathers, now + MS + clock, 2 * MS, MS))
            calls.append(_call(rank, 2, "ddp_sync", syncs, ready + clock, met - ready, int(work[rank])))
            sync, forward = met - ready, ready - now
            row = {"start_ns": now + clock, "duration_ns": met + MS - now, "sync_ns": sync, "forward_ns": forward}
            marks.append(table("steps", rank=[rank], step=step, kind="train", **row))
        gathers, syncs, now = gathers + 1, syncs + 1, met + MS
        for _ in range(8 if step % EVERY == EVERY - 1 else 0):
            calls += [_call(rank, 1, "all_gather", gathers, now + MS + rank * ahead, 2 * MS, MS) for rank in range(2)]
            gathers, now = gathers + 1, now + 4 * MS
    return made(2, steps=marks, collectives=calls, who={"node": "here", "framework": "torch"})


def _call(rank: int, comm: int, op: str, seq: int, start: int, took: int, own: int) -> Table:
    row = {"comm": comm, "op": op, "seq": seq, "bytes": 64, "self_ns": own}
    return table("collectives", rank=[rank], start_ns=start, duration_ns=took, **row)


@pytest.mark.parametrize("ahead", [0, 10**13])
def test_a_slow_rank_is_named_where_evaluation_breaks_the_pattern(ahead: int) -> None:
    """One collective in ten is of no training step: its waits still tell who holds the job back, on any clocks."""
    (verdict,) = judge(run(SLOW, ahead)).verdicts
    assert (verdict.kind, verdict.ranks) == ("straggler", (1,))
    assert verdict.cost_ms_per_step == pytest.approx(SLOW, rel=0.1)


def test_equals_are_balanced_by_their_collectives() -> None:
    """No rank is late for the synchronisation."""
    report = judge(run(0))
    assert [verdict.kind for verdict in report.verdicts] == ["balanced"]
    assert report.ranks[0].wait_ms is not None


def test_what_repeats_within_the_first_step_is_no_step() -> None:
    """A job that has just begun has two marks and forty equal buckets: half a second shows no pattern."""
    calls = [
        _call(rank, 2, "all_reduce", number, 1_000 * MS + number * 2 * MS + rank * MS // 2, 2 * MS - rank * MS // 2, MS)
        for number in range(40)
        for rank in range(2)
    ]
    marks = [
        table("steps", rank=[rank], step=step, kind="train", start_ns=600 * MS + step * 400 * MS, duration_ns=400 * MS)
        for step in range(2)
        for rank in range(2)
    ]
    together = concatenate("collectives", calls)
    together["flags"] = np.full_like(together["flags"], GPU_TIME)
    together["self_ns"] = np.full_like(together["self_ns"], UNMEASURED)
    begun = replace(run(0), steps=concatenate("steps", marks), collectives=together)
    assert named(begun) == [("insufficient_data", (), None)]


@given(st.lists(st.booleans(), min_size=6, max_size=6), st.integers(0, 3))
def test_unknown_times_lie_between_known_ones(known: list[bool], jump: int) -> None:
    """Between known steps times are spread evenly over the steps' numbers; beyond them a step is as long as usual."""
    steps = np.array([4, 5, 6, 7 + jump, 8 + jump, 9 + jump])
    times = np.array([[0.0, 10.0, 25.0, 30.0, 50.0, 55.0]]) + np.array([[0.0], [1000.0]])
    mask = np.array(known)
    found = without_gaps(np.where(mask, times, np.nan), steps, 7.0)
    if not mask.any():
        assert np.isnan(found).all()
        return
    at = steps[mask]
    beyond = (np.minimum(steps - at[0], 0) + np.maximum(steps - at[-1], 0)) * 7.0
    for row, one in zip(found, times, strict=True):
        np.testing.assert_allclose(row, np.interp(steps, at, one[mask]) + beyond)


REPEATED = 100
Gaps = np.ndarray[Any, np.dtype[np.float64]]


def gaps(in_a_row: int, first: float = 3e6, after: float = 5e3) -> Gaps:
    """Self time before each collective: computing before the first of each step, next to nothing before the others."""
    noise = np.random.default_rng(1).gamma(2.0, 0.1, (REPEATED, in_a_row))
    return np.asarray(np.where(np.arange(in_a_row) == 0, first, after) * (1.0 + noise)).ravel()


def found(own: Gaps) -> list[int] | None:
    numbers = infer(np.zeros(len(own), np.int64), own, apart=True).tolist()
    return None if numbers == list(range(len(own))) else numbers


@pytest.mark.parametrize("count", [2, 3, 8, 16, 17, 400])
def test_alike_collectives_after_one_computing_interval_are_one_step(count: int) -> None:
    """A step begins with the one that is computed before."""
    assert found(gaps(count, after=min(5e3, 4e5 / count))) == np.repeat(np.arange(REPEATED), count).tolist()


def test_the_first_steps_of_a_running_job_are_no_others() -> None:
    """As soon as there are enough collectives to judge the job by, two of them make a step."""
    assert found(gaps(2)[:20]) == np.repeat(np.arange(10), 2).tolist()


def test_a_recording_may_begin_inside_a_step() -> None:
    """What is left of a step whose beginning is not there belongs to none, nor does the half one at the end."""
    own = np.append(gaps(3)[1:], 3e6)
    assert found(own) == [-1, -1, *np.repeat(np.arange(REPEATED - 1), 3).tolist(), -1]


@pytest.mark.parametrize(("where", "times"), [(slice(REPEATED, None), 10.0), (101, 800.0)], ids=["slower", "held up"])
def test_a_job_that_slows_down_or_was_held_up_keeps_its_steps(where: Any, times: float) -> None:
    """Ten times the computing from the middle on, or before a step's second collective once, is no other pattern."""
    own = gaps(2)
    own[where] *= times
    assert found(own) == np.repeat(np.arange(REPEATED), 2).tolist()


def test_other_collectives_between_belong_to_no_step() -> None:
    """A check every twenty steps is none of theirs."""
    own, usual = gaps(2), np.ones(2 * REPEATED, bool)
    places = np.arange(40, 2 * REPEATED, 40)
    own, usual = np.insert(own, places, 1e5), np.insert(usual, places, False)
    numbers = infer((~usual).astype(np.int64), own, apart=True)
    assert numbers[usual].tolist() == np.repeat(np.arange(REPEATED), 2).tolist()
    assert (numbers[~usual] == -1).all()


@pytest.mark.parametrize(
    ("where", "times"),
    [
        (slice(0), 1.0),
        (slice(None, None, 2), 1.5),
        (slice(None, None, 10), 10.0),
        (slice(None, None, 100), 50.0),
        ([5, 700, 1100, 1400, 1990], 1e6),
        (np.random.default_rng(2).random(2000) < 0.5, 600.0),
    ],
    ids=["alike", "longer every second", "every tenth", "a long check", "stalls", "long ones in no order"],
)
def test_steps_of_one_collective_stay_one_each(where: Any, times: float) -> None:
    """Steps compute for longer than a check takes; what has no order is no pattern."""
    own = gaps(1).repeat(20)
    own[where] *= times
    assert found(own) is None


def twice(run: Run) -> Run:
    """Each all-reduce followed at once by another one like it, which no rank is late for."""
    first = run.collectives
    count = len(first["rank"])
    again = first | {
        "seq": first["seq"] * 2 + 1,
        "start_ns": first["start_ns"] + first["duration_ns"] + 3_000,
        "duration_ns": 20_000 + np.arange(count) * 7_919 % 3_000,
        "self_ns": np.full(count, 3_000),
        "cpu_ns": np.full(count, 2_900),
        "runqueue_ns": np.zeros(count, np.int64),
    }
    both = concatenate("collectives", [first | {"seq": first["seq"] * 2}, again])
    return replace(run, collectives=select(both, np.lexsort((both["seq"], both["rank"]))))


@pytest.mark.parametrize("what", ["blocked", "compute"])
def test_a_rank_late_for_the_first_of_two_is_named_with_what_it_costs(what: str) -> None:
    """Late by 5 ms in every step it is no less a straggler for a second all-reduce that follows at once."""
    report = judge(twice(make(Load(compute=3.0, faults=[{"rank": 1, what: 5.0}]))))
    (reported,) = report.verdicts
    assert (reported.kind, reported.ranks) == ("straggler", (1,))
    assert reported.cost_ms_per_step == pytest.approx(5.0, abs=0.3)
    assert report.job.steps == 150


def test_on_shared_cpus_too_who_computes_more_before_the_first_of_two_is_named() -> None:
    """There it is what ranks need that is compared, of whole steps."""
    run = twice(make(Load(compute=3.0, cpus=2, faults=[{"rank": 1, "compute": 5.0}])))
    assert named(run) == [("straggler", (1,), "compute")]


def test_an_even_job_of_two_in_a_row_is_balanced() -> None:
    """Its steps are as many as it computed between."""
    report = judge(twice(make(Load(compute=3.0))))
    assert [verdict.kind for verdict in report.verdicts] == ["balanced"]
    assert report.job.steps == 150


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ((1.0,), (1, 0)),
        ((1.0, 1.6), (2, 1)),
        ((3.0, 1.0, 2.0), (3, 0)),
        ((1.0, 1.05), (1, 0)),
        ((2.0,) * 9 + (0.5,), (1, 0)),
        ((1.0,) * 9 + (11.0,), (1, 0)),
        ((1.0,) * 9 + (40.0,), (10, 9)),
        ((), (1, 0)),
    ],
    ids=[
        "alike",
        "two",
        "three",
        "less than noise",
        "nearly all alike",
        "a save of each tenth",
        "one computes",
        "none",
    ],
)
def test_repetitions_with_unequal_work_are_parts_of_a_step(parts: tuple[float, ...], found: tuple[int, int]) -> None:
    """A program exchanges several times in a step, and computes now more and now less before. Stalls are no part."""
    computed = np.resize(parts, 180 * bool(parts)) + np.random.default_rng(1).normal(0, 0.1, 180 * bool(parts))
    computed[::47] += 20.0
    assert cycle(computed) == found
