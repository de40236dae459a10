"""A slow input that is hidden behind a GPU's queued work costs nothing, and the report says so."""

import dataclasses

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.causes import loading
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.verdict.schema import Report


def fetching(ms: dict[int, float], *faults: Fault) -> Run:
    """A job on GPUs, run ahead by its hosts; these ranks wait so much longer for their input in each step."""
    run = simulate(Scenario(4, 80, run_ahead=2, faults=faults)).run
    longer = np.array([ms.get(rank, 0.0) * 1e6 for rank in run.steps["rank"].tolist()]).astype(np.int64)
    steps = {**run.steps, "input_ns": run.steps["input_ns"] + longer}
    return dataclasses.replace(run, steps=steps)


def reported(report: Report) -> list[str]:
    return [note for note in report.notes if "costs nothing now" in note]


def test_a_rank_with_hidden_slow_input_is_reported_and_not_named() -> None:
    """30 ms of a 100 ms step, without any waiting for it."""
    report = judge(fetching({1: 30.0}))
    assert [verdict.kind for verdict in report.verdicts] == ["balanced"]
    (note,) = reported(report)
    assert note.startswith("rank 1 waits 30.0 ms longer per step for input than the rest")


@pytest.mark.parametrize("ms", [{}, {1: 2.0}])
def test_a_usual_input_is_not_reported(ms: dict[int, float]) -> None:
    """Less than a twentieth of the step is no news."""
    assert reported(judge(fetching(ms))) == []


def test_an_input_that_all_ranks_hide_is_reported_for_all() -> None:
    """It bounds how much faster the GPUs may become."""
    (note,) = reported(judge(fetching(dict.fromkeys(range(4), 40.0))))
    assert note.startswith("every rank waits ")


@pytest.mark.parametrize(("share", "part"), [(0.0, False), (0.2, True)])
def test_the_hidden_part_of_an_input_is_reported(share: float, part: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it costs nothing where nearly all is covered; else a repair saves the rest."""
    monkeypatch.setattr(loading, "input_share", lambda *_: share)
    (note,) = reported(judge(fetching(dict.fromkeys(range(4), 40.0))))
    assert ("; 2" in note) == part


@pytest.mark.parametrize(("run_ahead", "reported"), [(0, False), (1, True)])
def test_the_hidden_part_of_a_slow_input_is_separate_from_its_cost(run_ahead: int, reported: bool) -> None:
    """A host ahead of its GPU hides the first half of a step of it: only the rest is worth repairing."""
    job = Scenario(8, 120, 3, run_ahead=run_ahead, faults=(Fault("input", (3,), 0.9),))
    (verdict,) = judge(simulate(job).run).verdicts
    assert (verdict.ranks, verdict.cause) == ((3,), "input")
    covered = [line for line in verdict.evidence if "of it costs time" in line or "hide the rest" in line]
    expected = "input takes 90.0 ms longer per step, 40.6 ms of it costs time"
    assert [line[: len(expected)] for line in covered] == ([expected] if reported else [])
