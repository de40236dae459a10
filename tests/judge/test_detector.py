"""Detectors are asked in order, and the runner owns their errors."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge import detect
from hindmost_judge.detect import Case
from hindmost_judge.judge import DETECTORS, judge
from hindmost_judge.model import Run
from hindmost_judge.verdict.schema import Verdict


@pytest.fixture(scope="module")
def run() -> Run:
    """A job with a slow rank."""
    return simulate(Scenario(ranks=4, steps=60, faults=(Fault("compute", (2,), 0.3),))).run


def before_all(monkeypatch: pytest.MonkeyPatch, first: Callable[[Case], list[Verdict]]) -> None:
    """Let the judge ask this one, and then all others."""
    monkeypatch.setattr("hindmost_judge.judge.DETECTORS", (first, *DETECTORS))


def test_what_a_detector_finds_is_in_the_report(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the blocks, and the verdicts on ranks that are late."""
    cases: list[Case] = []

    def found(case: Case) -> list[Verdict]:
        cases.append(case)
        return [Verdict(kind="host_bound", cause="gc", evidence=("seen",))]

    before_all(monkeypatch, found)
    report = judge(run)
    (case,) = cases
    assert case.blocks.ranks.tolist() == [0, 1, 2, 3]
    assert (case.named, case.has("straggler"), case.shared) == ({2}, True, None)
    assert [(verdict.kind, verdict.ranks) for verdict in report.verdicts] == [("straggler", (2,)), ("host_bound", ())]


def test_a_detector_that_fails_costs_no_other_verdict(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The report is what it was, with a note; it is counted each time, and logged with its traceback once."""
    sound = judge(run)
    monkeypatch.setattr(detect, "failures", Counter())

    def broken(case: Case) -> list[Verdict]:
        raise ZeroDivisionError("no step")

    before_all(monkeypatch, broken)
    reports = [judge(run) for _ in range(3)]
    reported = "the detector test_detector failed (ZeroDivisionError: no step): what it looks for was not looked for"
    for report in reports:
        assert report.verdicts == sound.verdicts
        assert [note for note in report.notes if note not in sound.notes] == [reported]
    assert detect.failures == {"test_detector": 3}
    assert [record.getMessage() for record in caplog.records] == ["detector test_detector failed; the others ran"]
    assert caplog.records[0].exc_info is not None


@pytest.mark.parametrize("answer", [None, ["rank 1"], [Verdict("slow")]], ids=["nothing", "words", "an unknown kind"])
def test_a_detector_that_gives_no_verdicts_costs_no_other(
    run: Run, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    """A forgotten ``return []``, or what no report can show, is a failure of that detector alone."""
    sound = judge(run)
    monkeypatch.setattr(detect, "failures", Counter())
    before_all(monkeypatch, lambda _: answer)
    report = judge(run)
    assert report.verdicts == sound.verdicts
    assert any(note.startswith("the detector test_detector failed (TypeError") for note in report.notes)
