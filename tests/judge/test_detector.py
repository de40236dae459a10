"""Detectors are found by being in their folder, asked in order, and the runner owns their errors."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge import detect
from hindmost_judge.detect import Case, Registered, in_order, register
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.verdict.schema import Verdict


@pytest.fixture(scope="module")
def run() -> Run:
    """A job with a slow rank."""
    return simulate(Scenario(ranks=4, steps=60, faults=(Fault("compute", (2,), 0.3),))).run


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Failures from none on."""
    failures: Counter[str] = Counter()
    monkeypatch.setattr(detect, "failures", failures)
    return failures


def before_all(monkeypatch: pytest.MonkeyPatch, **more: Callable[[Case], list[Verdict]]) -> None:
    """Let the judge ask these first, and then all others."""
    known = detect.load()
    monkeypatch.setattr(detect, "load", lambda: {**more, **known})


def nothing(case: Case) -> list[Verdict]:
    return []


def test_a_detector_is_asked_after_those_whose_verdicts_it_wants() -> None:
    """Of those in the folder, and else by name."""
    asked = list(detect.load())
    assert set(asked) >= {"host_bound", "input_bound", "slow_link", "slow_network", "uneven", "uneven_stages"}
    assert asked.index("input_bound") < asked.index("host_bound")
    assert asked.index("slow_link") < min(asked.index("slow_network"), asked.index("uneven_stages"))
    three = {"a": Registered(nothing, ("c",)), "b": Registered(nothing), "c": Registered(nothing)}
    assert list(in_order(three)) == ["b", "c", "a"]


def test_a_detector_that_there_is_not_cannot_be_asked_before() -> None:
    """Nor two before each other: a misspelled name fails at once."""
    with pytest.raises(ValueError, match="no detector is called slow_lnik"):
        in_order({"one": Registered(nothing, ("slow_lnik",))})
    with pytest.raises(ValueError, match="cycle"):
        in_order({"one": Registered(nothing, ("other",)), "other": Registered(nothing, ("one",))})


def test_a_name_belongs_to_one_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the name of the file."""
    monkeypatch.setattr(detect, "REGISTRY", {})
    register(after=["uneven"])(nothing)
    assert list(detect.REGISTRY) == ["test_detector"]
    with pytest.raises(ValueError, match="two detectors are called test_detector"):
        register()(nothing)


def test_what_a_detector_finds_is_in_the_report(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the blocks, and the verdicts on ranks that are late."""
    cases: list[Case] = []

    def found(case: Case) -> list[Verdict]:
        cases.append(case)
        return [Verdict(kind="host_bound", cause="gc", evidence=("seen",))]

    before_all(monkeypatch, found=found)
    report = judge(run)
    (case,) = cases
    assert case.blocks.ranks.tolist() == [0, 1, 2, 3]
    assert (case.named, case.has("straggler"), case.shared) == ({2}, True, None)
    assert [(verdict.kind, verdict.ranks) for verdict in report.verdicts] == [("straggler", (2,)), ("host_bound", ())]


def test_a_detector_that_fails_costs_no_other_verdict(
    run: Run, monkeypatch: pytest.MonkeyPatch, counted: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The report is what it was, with a note; it is counted each time, and logged with its traceback once."""
    sound = judge(run)

    def broken(case: Case) -> list[Verdict]:
        raise ZeroDivisionError("no step")

    before_all(monkeypatch, broken=broken)
    reports = [judge(run) for _ in range(3)]
    reported = "the detector broken failed (ZeroDivisionError: no step): what it looks for was not looked for"
    for report in reports:
        assert report.verdicts == sound.verdicts
        assert [note for note in report.notes if note not in sound.notes] == [reported]
    assert counted == {"broken": 3}
    assert [record.getMessage() for record in caplog.records] == ["detector broken failed; the others ran"]
    assert caplog.records[0].exc_info is not None


@pytest.mark.parametrize("answer", [None, ["rank 1"], [Verdict("slow")]], ids=["nothing", "words", "an unknown kind"])
def test_a_detector_that_gives_no_verdicts_costs_no_other(
    run: Run, monkeypatch: pytest.MonkeyPatch, counted: Counter[str], answer: Any
) -> None:
    """A forgotten ``return []``, or what no report can show, is a failure of that detector alone."""
    sound = judge(run)
    before_all(monkeypatch, odd=lambda _: answer)
    report = judge(run)
    assert report.verdicts == sound.verdicts
    assert any(note.startswith("the detector odd failed (TypeError") for note in report.notes)
    assert counted == {"odd": 1}
