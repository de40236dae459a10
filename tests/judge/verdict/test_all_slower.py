"""All ranks slow at once, since some step: no rank is named, and yet the report says what happened."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.report import text
from hindmost_collector.simulate import Fault, Noise, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.verdict import all_slower
from hindmost_judge.verdict.schema import Report, Slowed

from tests.runs import blocks_of
from tests.scenarios.loads import Load, make

_ALL = tuple(range(8))


def _report(*faults: Fault, steps: int = 150, **more: object) -> Report:
    return judge(simulate(Scenario(8, steps, 77, faults=faults, **more)).run)  # type: ignore[arg-type]


@pytest.mark.parametrize("end", [None, 110])
def test_a_slowdown_of_all_ranks_is_reported_with_its_onset(end: int | None) -> None:
    """The verdict names no rank; the note and the JSON say since when, how much longer, and which phases grew."""
    report = _report(Fault("compute", _ALL, 0.2, 60, end))
    (verdict,) = report.verdicts
    assert (verdict.kind, verdict.ranks) == ("balanced", ())
    shown = text.render(report.to_dict(), width=200)
    assert ("SLOW   all ranks, since step 60" in shown) == (end is None)
    assert ("NOTE   steps 60 to 110 took 1" in shown) == (end is not None)
    assert ("ms on every rank; longer: GPU backward" in shown) == (end is not None)
    assert "longer: GPU backward 12" in shown
    reported = report.to_dict()["job"]["slowed"]
    assert (reported["since_step"], reported["until_step"]) == (60, end)
    assert reported["step_ms"] / reported["was_ms"] == pytest.approx(1.19, abs=0.02)
    assert set(reported["phases_ms"]) >= {"gpu_forward", "gpu_backward"}


def test_a_job_of_one_rank_that_became_slower_is_told_when_by_how_much_and_in_what() -> None:
    """It has no peer, and its own past: that is what the report is about."""
    report = judge(make(Load(kind="torch", ranks=1, steps=150, faults=[{"rank": 0, "compute": 4.0, "from": 60}])))
    shown = text.render(report.to_dict(), width=200)
    assert "SLOW   since step 60: steps take" in shown
    assert "WHY    longer: backward 2" in shown
    assert "DO     find what changed at step 60" in shown
    assert not report.notes
    assert judge(make(Load(kind="torch", ranks=1, steps=150))).job.slowed is None


def test_what_grew_is_called_as_in_evidence() -> None:
    """A key of the JSON is no word for a reader."""
    slowed = Slowed(488, 590, 8.3, 11.9, {"device_copy": 1.7, "gpu_backward": 0.5})
    (note,) = all_slower.slowed_note(slowed, [])
    assert note.endswith("; longer: copy call 1.7 ms, GPU backward 0.5 ms")


def test_a_rank_that_became_slow_is_no_slow_down_of_all() -> None:
    """Its verdict says what the steps became longer by."""
    report = _report(Fault("compute", (3,), 0.2, 60))
    assert report.verdicts[0].ranks == (3,)
    assert report.job.slowed is None


def test_where_verdicts_cost_more_than_steps_take_nothing_is_left_to_have_slowed_down() -> None:
    """A mean cost of few long stalls is more than most steps take: "-42046 % longer" is no answer."""
    run = simulate(Scenario(8, 150, 77, faults=(Fault("compute", _ALL, 0.2, 60),))).run
    built = blocks_of(run)
    assert all_slower.find_slowed(built, []) is not None
    stalls = replace(judge(run).verdicts[0], kind="intermittent", since_step=0, cost_ms_per_step=1000.0)
    assert all_slower.find_slowed(built, [stalls]) is None


@pytest.mark.parametrize("seed", range(2))
def test_a_calm_or_a_wandering_job_did_not_become_slow(seed: int) -> None:
    """Neither noise, nor sequence lengths that vary, nor checkpoints are a slow-down of all."""
    noise = Noise(wandering=0.03, wandering_memory=0.99) if seed % 2 else Noise()
    job = Scenario(8, 200, seed, noise=noise, varying_lengths=0.2 * (seed % 3 == 0), checkpoint_every=50)
    assert judge(simulate(job).run).job.slowed is None


def test_what_rises_slowly_has_no_onset() -> None:
    """A ramp is longer in its second half, but since no step; a step of the same height is."""
    ramp, sharp = 1.0 + np.linspace(0, 0.4, 200), np.where(np.arange(200) < 80, 1.0, 1.2)
    assert all_slower.slowed_period(ramp) is None
    assert all_slower.slowed_period(sharp) == slice(80, 200)


@pytest.mark.parametrize(("longer", "reported"), [(0.03, False), (0.07, True)])
def test_some_per_cent_longer_are_no_slow_down(longer: float, reported: bool) -> None:
    """Clocks and neighbours make that of a healthy job: it is reported from a twentieth on."""
    period = np.where(np.arange(200) < 80, 1.0, 1.0 + longer)
    assert all_slower.slowed_period(period) == (slice(80, 200) if reported else None)


@pytest.mark.parametrize(("every", "reported"), [(14, True), (7, False)])
def test_steps_that_are_as_long_now_and_then_are_a_slow_down_s_like(every: int, reported: bool) -> None:
    """Where more than a tenth of the steps before was as long, as a regular part of the job, it did not become slow."""
    period = np.where(np.arange(200) < 80, 1.0, 1.2)
    period[3:80:every] = 1.25
    assert all_slower.slowed_period(period) == (slice(80, 200) if reported else None)
