"""bench/golden.py: which differences are differences of a report, and of a decision."""

from typing import Any

import pytest

from bench.golden import differences, different, drawn, judged


def test_a_byte_or_a_missing_report_is_a_difference() -> None:
    """Of any length."""
    assert different({"same": "a", "changed": "1"}, {"same": "a", "changed": "2", "added": ""}) == ["added", "changed"]


def test_what_is_refused_is_compared_too() -> None:
    """An error is a decision and a report that says so."""
    (decision,), report = judged(lambda: {}["no such key"])
    assert (decision["kind"], report) == ("raised KeyError: 'no such key'", "KeyError: 'no such key'")


def test_jobs_are_those_of_their_seed() -> None:
    """Drawn again they are the same; and there are faults of each kind among them, and jobs with none."""
    jobs = [drawn(seed) for seed in range(200)]
    assert jobs == [drawn(seed) for seed in range(200)]
    assert {fault.cause for job in jobs for fault in job.faults} >= {"hang", "desync", "network", "input"}
    assert 20 < sum(not job.faults for job in jobs) < 80


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
