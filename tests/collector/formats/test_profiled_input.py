"""How long a batch took its host, by the first copy to the GPU of each profiled step."""

from typing import Any

import numpy as np
import pytest
from hindmost_collector.formats.kineto import before_copies

BEGIN, END = np.array([0.0, 100.0]), np.array([100.0, 200.0])


@pytest.mark.parametrize(
    ("copies", "others", "waits", "took"),
    [
        ([30.0, 40.0, 120.0], [50.0, 150.0], [], [30.0, 20.0]),
        ([30.0, 120.0], [20.0, 150.0], [], [-1.0, 20.0]),  # a kernel of the first step comes before its copy
        ([30.0], [50.0], [], [30.0, -1.0]),  # the second has none
        ([30.0, 120.0], [50.0], [(5.0, 10.0), (115.0, 50.0), (125.0, 9.0)], [20.0, 15.0]),
        ([], [], [], [-1.0, -1.0]),
    ],
)
def test_it_is_what_precedes_all_work_of_the_gpu_but_waiting_for_it(
    copies: list[float], others: list[float], waits: list[Any], took: list[float]
) -> None:
    """Two steps of 100 us: unknown where anything else was launched first."""
    assert before_copies(BEGIN, END, np.array(copies), np.array(others), waits).tolist() == took


@pytest.mark.parametrize(
    ("waits", "took"),
    [
        ([(100.0, 200.0), (101.0, 198.0)], 300.0),  # the runtime's, and the driver's within it
        ([(101.0, 198.0), (100.0, 200.0), (250.0, 100.0)], 250.0),
        ([(-100.0, 400.0)], 200.0),  # begun before the step
        ([(-200.0, 200.0), (500.0, 9.0), (-300.0, 2000.0)], 0.0),
        ([(-200.0, 100.0), (600.0, 50.0)], 500.0),
    ],
)
def test_a_wait_counts_once_and_by_as_much_as_lies_in_the_step(waits: list[Any], took: float) -> None:
    """The copy is launched 500 us into the only step."""
    found = before_copies(np.array([0.0]), np.array([1000.0]), np.array([500.0]), np.array([]), waits)
    assert found.tolist() == [took]


@pytest.mark.parametrize("seed", range(5))
def test_of_many_waits_each_microsecond_before_a_copy_counts_once(seed: int) -> None:
    """As if each were ticked off."""
    random = np.random.default_rng(seed)
    begin, copies = np.arange(0.0, 5000.0, 100.0), np.sort(random.integers(0, 5000, 60)).astype(float)
    waits = [(float(start), float(random.integers(0, 40))) for start in random.integers(-50, 5000, 100)]
    free = np.ones(5100, bool)
    for start, length in waits:
        free[max(int(start), 0) : max(int(start + length), 0)] = False
    first = [next((int(at) for at in copies if one <= at < one + 100), None) for one in begin]
    expected = [-1 if to is None else free[int(one) : to].sum() for one, to in zip(begin, first, strict=True)]
    assert before_copies(begin, begin + 100, copies, np.array([]), waits).tolist() == expected
