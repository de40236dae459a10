"""Two ranks whose hosts wander, each behind for a while: what a rank measured of its own work tells who is slow."""

from __future__ import annotations

from typing import Any

import pytest
from hindmost_collector.judge import judge

from tests.scenarios.loads import Load, make

#: ms by which hosts are behind for a while, each in its turn.
WANDERING = [
    {"rank": rank, "compute": more, "from": start, "until": start + 20}
    for rank, more, start in ((0, 1.5, 20), (1, 1.4, 60), (0, 1.3, 100))
]


def named(fault: dict[str, Any]) -> list[tuple[tuple[int, ...], str]]:
    report = judge(make(Load(kind="torch", ranks=2, steps=300, faults=[*WANDERING, {"rank": 1, "from": 160, **fault}])))
    return [(one.ranks, one.cause) for one in report.verdicts if one.ranks and (one.since_step or 0) >= 150]


def test_input_that_takes_longer_is_no_wandering() -> None:
    """The rank's own clock shows what it is late by, in all steps in which it is late and in no others."""
    assert named({"input": 1.0}) == [((1,), "input")]


@pytest.mark.parametrize("fault", [{"compute": 1.0}, {"compute": 1.0, "input": 0.1}])
def test_a_host_that_is_behind_for_longer_is_wandering_still(fault: dict[str, Any]) -> None:
    """Nothing that is the rank's own work accounts for it."""
    assert named(fault) == []
