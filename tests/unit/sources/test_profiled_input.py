"""How long a batch took its host, by the first copy to the GPU of each profiled step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hindmost_collector.sources.profiled_input import before_copies

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
