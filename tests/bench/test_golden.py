"""bench/golden.py: which differences between two judges are differences of a decision."""

from typing import Any

import pytest

from bench.golden import differences

SLOW = {"kind": "straggler", "ranks": [1], "cause": "input", "since": 60, "cost_ms": 4.0, "confidence": 0.9}


def compared(*after: dict[str, Any]) -> list[str]:
    return differences({"a": [SLOW]}, {"a": list(after)})


@pytest.mark.parametrize("other", [{"since": 63}, {"cost_ms": 4.9}, {"confidence": 0.5}, {"victims": [2]}])
def test_the_same_decision_is_no_difference(other: dict[str, Any]) -> None:
    """Onset within 3 steps, cost within 20 %; confidence is not compared."""
    assert compared(SLOW | other) == []


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "intermittent"},
        {"ranks": [2]},
        {"cause": "unknown"},
        {"since": 64},
        {"cost_ms": 5.1},
        {"cost_ms": None},
    ],
)
def test_another_decision_is_a_difference(other: dict[str, Any]) -> None:
    """Another kind, rank, cause, onset or cost is one line."""
    assert len(compared(SLOW | other)) == 1


def test_verdicts_that_came_or_went_are_a_difference() -> None:
    """One fault reported as two verdicts is not the same decision, nor is none."""
    assert len(compared(SLOW, SLOW | {"since": 93})) == 1
    assert len(compared()) == 1
    assert differences({"a": []}, {"b": []}) == ["a: only before", "b: only after"]
