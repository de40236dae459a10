"""Steps from the pattern of collectives, with and without marks of the hosts."""

from typing import Any

import numpy as np
import pytest
from hindmost_judge.timeline.steps import Marks, are_parts, infer, period

LAYERS, STEPS = 12, 60
FORWARD, BETWEEN, STEP = 12e6, 0.4e6, 30e6


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
