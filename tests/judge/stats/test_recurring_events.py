"""Few large events of one rank, among the hiccups of healthy hosts."""

import time

import numpy as np
import pytest
from hindmost_judge.stats import recurring_events

STEPS, LEAST, FEWEST = 200, 0.1, 5


def _hiccups(ranks: int, seed: int) -> recurring_events.Floats:
    """Delays, in steps: noise, and in one step of a hundred a hiccup of a heavy-tailed size."""
    random = np.random.default_rng(seed)
    late = random.normal(0, 0.02, (ranks, STEPS))
    return np.asarray(late + (random.random(late.shape) < 0.01) * 0.1 * (1 + random.pareto(1.2, late.shape)))


def _named(late: recurring_events.Floats) -> list[int]:
    return [one.row for one in recurring_events.find(late, LEAST, FEWEST)]


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_six_stalls_of_one_size_name_their_rank(ranks: int) -> None:
    """However few the ranks are, and though all of them hiccup."""
    right = 0
    for seed in range(50):
        late = _hiccups(ranks, seed)
        late[1, 20::32] += 3.0
        right += _named(late) == [1]
    assert right >= 45


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_hiccups_of_healthy_hosts_name_no_rank(ranks: int) -> None:
    """They come in all sizes, and hit any rank."""
    assert [seed for seed in range(200) if _named(_hiccups(ranks, seed))] == []


@pytest.mark.parametrize(
    ("first", "second", "confirmed", "named"),
    [
        pytest.param([10, 40, 70], [100, 130, 160], [], [], id="what hits the host is no rank's own"),
        pytest.param([], [10, 35, 60, 85, 110], [], [], id="five of five are chance in one job of sixteen"),
        pytest.param([], [10, 35, 60, 85, 110], [1], [1], id="unless another measurement shows it"),
        pytest.param([], [10, 35, 60, 85, 110], [0], [], id="of the same rank"),
        pytest.param([], [10, 35, 60, 85, 110, 160], [], [1], id="a sixth counts, though it is larger by half"),
    ],
)
def test_of_two_ranks_one_needs_six_stalls(
    first: list[int], second: list[int], confirmed: list[int], named: list[int]
) -> None:
    late = np.zeros((2, STEPS))
    late[0, first] = late[1, second] = 3.0
    late[1, 160] *= 1.5
    found = recurring_events.find(late, LEAST, FEWEST, confirmed=confirmed)
    assert [one.row for one in found] == named


def test_a_stall_over_several_steps_is_one() -> None:
    """It is as large as its largest step, and is in that step."""
    found = recurring_events.events(np.array([[0.0, 0.2, 0.5, 0.3, 0.0, 0.4], [0.3, 0.0, 0.0, 0.0, 0.0, 0.0]]), LEAST)
    assert [column.tolist() for column in found] == [[0, 0, 1], [2, 5, 0], [0.5, 0.4, 0.3]]


def test_what_is_found_says_how_many_how_large_and_how_sure() -> None:
    """Of two ranks one has eight of eight by chance in one job of 128."""
    late = np.zeros((2, STEPS))
    late[1, 10::25] = 3.0
    (one,) = recurring_events.find(late, LEAST, FEWEST)
    assert (len(one.steps), one.size, one.share) == (8, 3.0, 1.0)
    assert one.p_value == pytest.approx(2 / 2**8)


def test_the_tail_is_the_binomials() -> None:
    """Three heads or more of four."""
    assert recurring_events.tail(3, 4, 0.5) == pytest.approx(5 / 16)
    assert recurring_events.tail(9, 9, 0.25) == pytest.approx(0.25**9)
    assert recurring_events.tail(2, 4, 0.5) == 1.0


def test_a_large_job_whose_ranks_scatter_takes_no_time() -> None:
    """8,192 ranks with some events each are looked at in less than the time that a window has."""
    late = np.random.default_rng(0).normal(0, 0.05, (8192, 150))
    began = time.process_time()
    assert _named(late) == []
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("steps", "apart"),
    [
        ([19, 39, 40, 59, 79, 99], 20),
        ([19, 39, 79, 99, 119, 139], 20),  # one was not seen
        ([19, 39, 59, 79], None),  # too few
        ([19, 39, 58, 79, 99, 119], None),  # paced by a clock
    ],
)
def test_events_every_twentieth_step_say_so(steps: list[int], apart: int | None) -> None:
    assert recurring_events.apart(np.array(steps)) == apart
