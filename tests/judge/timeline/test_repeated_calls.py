"""Alike collectives in a row are one step: two dot products, and who is late for the first of them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.timeline.steps import steps_of_repeated_calls

from tests.scenarios.loads import Load, make

STEPS = 100
Gaps = np.ndarray[Any, np.dtype[np.float64]]


def gaps(in_a_row: int, first: float = 3e6, after: float = 5e3) -> Gaps:
    """Self time before each collective: computing before the first of each step, next to nothing before the others."""
    noise = np.random.default_rng(1).gamma(2.0, 0.1, (STEPS, in_a_row))
    return np.asarray(np.where(np.arange(in_a_row) == 0, first, after) * (1.0 + noise)).ravel()


def found(own: Gaps) -> list[int] | None:
    numbers = steps_of_repeated_calls(np.ones(len(own), bool), own)
    return None if numbers is None else numbers.tolist()


@pytest.mark.parametrize("count", [2, 3, 8, 16])
def test_alike_collectives_after_one_computing_interval_are_one_step(count: int) -> None:
    """A step begins with the one that is computed before."""
    assert found(gaps(count)) == np.repeat(np.arange(STEPS), count).tolist()


def test_the_first_steps_of_a_running_job_are_no_others() -> None:
    """As soon as there are enough collectives to judge the job by, two of them make a step."""
    assert found(gaps(2)[:20]) == np.repeat(np.arange(10), 2).tolist()


def test_a_recording_may_begin_inside_a_step() -> None:
    """What is left of a step whose beginning is not there belongs to none, nor does the half one at the end."""
    own = np.append(gaps(3)[1:], 3e6)
    assert found(own) == [-1, -1, *np.repeat(np.arange(STEPS - 1), 3).tolist(), -1]


def test_a_job_that_slows_down_keeps_its_steps() -> None:
    """Ten times the computing from the middle on is no other pattern."""
    own = gaps(2)
    own[STEPS:] *= 10.0
    assert found(own) == np.repeat(np.arange(STEPS), 2).tolist()


def test_a_step_whose_second_collective_was_held_up_once_is_a_step() -> None:
    """A rank that lost its CPU between the two hides where that step begins: its neighbours tell."""
    own = gaps(2)
    own[101] = 4e6
    assert found(own) == np.repeat(np.arange(STEPS), 2).tolist()


def test_other_collectives_between_belong_to_no_step() -> None:
    """A check every twenty steps is none of theirs."""
    own, usual = gaps(2), np.ones(2 * STEPS, bool)
    places = np.arange(40, 2 * STEPS, 40)
    own, usual = np.insert(own, places, 1e5), np.insert(usual, places, False)
    numbers = steps_of_repeated_calls(usual, own)
    assert numbers is not None
    assert numbers[usual].tolist() == np.repeat(np.arange(STEPS), 2).tolist()
    assert (numbers[~usual] == -1).all()


@pytest.mark.parametrize("every", [2, 10, 0])
def test_steps_of_one_collective_stay_one_each(every: int) -> None:
    """Neither those that all take alike, nor half as long again every second, nor ten times so every tenth."""
    own = gaps(1)
    if every:
        own[::every] *= {2: 1.5, 10: 10.0}[every]
    assert found(own) is None


def test_steps_of_any_length_stay_one_each() -> None:
    """Long ones now and then, in no order, are no pattern."""
    rng = np.random.default_rng(2)
    assert found(np.where(rng.random(400) < 0.5, 3e6, 5e3)) is None


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
    both = {name: np.concatenate([column, again[name]]) for name, column in (first | {"seq": first["seq"] * 2}).items()}
    order = np.lexsort((both["seq"], both["rank"]))
    return replace(run, collectives={name: column[order] for name, column in both.items()})


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
    (reported,) = judge(twice(make(Load(compute=3.0, cpus=2, faults=[{"rank": 1, "compute": 5.0}])))).verdicts
    assert (reported.kind, reported.ranks, reported.cause) == ("straggler", (1,), "compute")


def test_an_even_job_of_two_in_a_row_is_balanced() -> None:
    """Its steps are as many as it computed between."""
    report = judge(twice(make(Load(compute=3.0))))
    assert [verdict.kind for verdict in report.verdicts] == ["balanced"]
    assert report.job.steps == 150
