"""bench/gpu/live_faults.py's cases fit the job that it runs."""

import importlib
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch


def test_every_case_has_a_fault_that_the_job_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt fault would end the job on the machine with the GPUs."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "bench/gpu"))
    faults, cases = importlib.import_module("job_faults"), importlib.import_module("fault_cases")
    assert {case.fault for case in cases.CASES} == set(faults.FAULTS)
    periods = {"stalls": faults.STALLS, "saves": faults.SAVES, "turns": 2 * faults.TURN}
    evaluations = dict.fromkeys(("evaluates", "evaluates-alone"), faults.EVALUATES)
    assert periods | evaluations == cases.PERIODS
