"""How bench/gpu/live_faults.py grades what a running job's verdicts said of a fault that was put into it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench/gpu"
MS = 1_000_000


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the bench by its name."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def a_case(bench: Any, name: str, ranks: int = 2) -> Any:
    cases = bench("fault_cases")
    return cases.placed(next(case for case in cases.CASES if case.name == name), ranks)


def verdict(kind: str, ranks: list[int], **more: Any) -> dict[str, Any]:
    return {"kind": kind, "ranks": ranks, "cause": None, "since_step": None, "until_step": None, "evidence": []} | more


def steps_of(*lengths_ms: int) -> list[tuple[int, int]]:
    """A log of steps that took so long each."""
    return [(step, sum(lengths_ms[: step + 1]) * MS) for step in range(len(lengths_ms))]


def test_a_fault_s_effect_is_the_mean_step_s_growth_over_whole_periods(bench: Any) -> None:
    """Of a stall every seventh step none is counted that is not followed by its six others."""
    steps = steps_of(*[10] * 100, *[30 if step % 7 == 0 else 10 for step in range(70)])
    found = bench("fault_effect").effect(steps, steps[99][1], 1 << 62, 7)
    assert found["step_ms_before"] == pytest.approx(10)
    assert found["effect_ms"] == pytest.approx(20 / 7)


def test_too_few_steps_tell_no_effect(bench: Any) -> None:
    """A job that stopped when it was struck has no mean step after it."""
    steps = steps_of(*[10] * 100)
    found = bench("fault_effect").effect(steps, steps[90][1], 1 << 62, 1)
    assert found["step_ms_before"] == pytest.approx(10)
    assert found["effect_ms"] is None


def test_costs_of_stretches_add_up_over_all_steps_since_the_strike(bench: Any) -> None:
    """Two ranks that cost 8 ms in a half of the steps each cost 8 ms a step."""
    case = a_case(bench, "taking-turns")
    told = [
        verdict("straggler", [0], cost_ms_per_step=8.0, since_step=100, until_step=180),
        verdict("straggler", [1], cost_ms_per_step=8.0, since_step=180),
    ]
    found = bench("fault_effect").judged(case, told, 100, 259, 10.0)
    assert found["cost_told_ms"] == pytest.approx(8)
    assert (found["cost_off"], found["cost_right"]) == (pytest.approx(-0.2), True)
    assert (found["onset_off_steps"], found["onset_right"]) == (0, True)


def test_an_onset_long_before_the_strike_is_wrong(bench: Any) -> None:
    """A rank that is said to be slow since the start was not."""
    told = [verdict("straggler", [1], cost_ms_per_step=8.0, since_step=0)]
    found = bench("fault_effect").judged(a_case(bench, "compute-25"), told, 100, 199, 8.0)
    assert (found["onset_off_steps"], found["onset_right"]) == (-100, False)


def test_both_ranks_that_take_turns_have_to_be_told(bench: Any) -> None:
    """One of two culprits is half of the truth."""
    cases, case = bench("fault_cases"), a_case(bench, "taking-turns")
    one, other = (verdict("straggler", [rank], cause="compute") for rank in (0, 1))
    assert not cases.all_right(case, [one])
    assert cases.all_right(case, [one, other])


def test_of_two_ranks_nobody_can_say_which_diverged(bench: Any) -> None:
    """A desync of two ranks may have no name; that of four ranks has to."""
    cases = bench("fault_cases")
    assert cases.all_right(a_case(bench, "mismatch", 2), [verdict("desync", [])])
    assert not cases.all_right(a_case(bench, "mismatch", 2), [verdict("desync", [0])])
    assert not cases.all_right(a_case(bench, "mismatch", 4), [verdict("desync", [])])


def test_every_case_has_a_fault_that_the_job_knows(bench: Any) -> None:
    """A misspelt fault would end the job on the machine with the GPUs."""
    pytest.importorskip("torch")
    faults, cases = bench("job_faults"), bench("fault_cases")
    assert {case.fault for case in cases.CASES} == set(faults.FAULTS)
    periods = {"stalls": faults.STALLS, "saves": faults.SAVES, "turns": 2 * faults.TURN}
    evaluations = dict.fromkeys(("evaluates", "evaluates-alone"), faults.EVALUATES)
    assert periods | evaluations == cases.PERIODS
