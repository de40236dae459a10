"""Steps become columns, whatever phases each of them has."""

from __future__ import annotations

import pytest
from hindmost_agent.batch import UNMEASURED, Builder
from hindmost_agent.fold import StepRow
from hindmost_proto import telemetry_pb2 as wire


@pytest.mark.parametrize(
    ("phases", "columns"),
    [
        ([{"forward": 1, "sync": 2}, {"sync": 4, "forward": 3}], {"forward": [1, 3], "sync": [2, 4]}),
        (
            [{"forward": 1, "sync": 2}, {"forward": 3, "input": 4}],
            {"forward": [1, 3], "sync": [2, UNMEASURED], "input": [UNMEASURED, 4]},
        ),
        ([{"forward": 1}, {}], {"forward": [1, UNMEASURED]}),
        ([{}, {"forward": 1}], {"forward": [UNMEASURED, 1]}),
        ([{"forward": 1}], {"forward": [1]}),
        ([{}, {}], {}),
    ],
)
def test_a_phase_that_a_step_did_not_have_is_unmeasured(
    phases: list[dict[str, int]], columns: dict[str, list[int]]
) -> None:
    """A row for each step in each column, in the steps' order."""
    builder = Builder("n")
    builder.steps(7, [StepRow("train", step, 10, 20, 8, one) for step, one in enumerate(phases)])
    (block,) = wire.Batch.FromString(builder.pack().payload).steps
    assert {column.name: list(column.ns) for column in block.phases} == columns
    assert list(block.step) == list(range(len(phases)))
