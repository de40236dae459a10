"""When a rank seems slow or well again by its counters, and how often full cores let that trigger an evaluation."""

from typing import Any

import numpy as np
import pytest
from hindmost_collector.live.counter_watch import CounterWatch
from hindmost_collector.live.evaluation_schedule import RECHECK_SHARE

from .pacing import Paced

SLOW = {"kind": "straggler", "ranks": [1], "cost_ratio": 0.4}


class Counted:
    """A job of four ranks with ten calls a second; ``wait`` is the share of the time that others wait for each."""

    def __init__(self, **verdict: Any) -> None:
        self.columns = {
            name: np.zeros(4) for name in ("step_seconds_total", "collectives_total", "caused_wait_seconds_total")
        }
        self.verdict, self.named, self.watch = {**SLOW, **verdict}, True, CounterWatch()
        self.reports = 0

    def after(self, seconds: int, *wait: float) -> list[bool]:
        """What is said at the end of each second."""
        return [self._second(np.array(wait)) for _ in range(seconds)]

    def _second(self, wait: Any) -> bool:
        for name, more in zip(self.columns, (1.0, 10.0, wait), strict=True):
            self.columns[name] = self.columns[name] + more
        return self.asked()

    def asked(self) -> bool:
        """What is said now."""
        return self.watch.sees_a_change(self.columns, [self.verdict] if self.named else [], self.reports)


def test_a_named_rank_seems_well_once_others_wait_for_it_no_longer_than_for_any() -> None:
    """Seconds of it are measured first, and some seconds are of before."""
    job = Counted()
    assert not any(job.after(20, 0.05, 1.2, 0.05, 0.05))
    assert job.after(6, 0.05, 0.05, 0.05, 0.05) == [False] * 4 + [True] * 2


def test_a_rank_that_was_healed_before_it_was_named_seems_well() -> None:
    job = Counted()
    job.named = False
    job.after(20, 0.0, 0.4, 0.0, 0.0)
    job.named = True
    job.after(1, 0.0, 0.4, 0.0, 0.0)
    assert any(job.after(8, 0.0, 0.0, 0.0, 0.0))


def test_a_delay_that_the_counters_never_showed_does_not_seem_over() -> None:
    assert not any(Counted().after(30, 0.0, 0.0, 0.0, 0.0))


@pytest.mark.parametrize("left", [0.4, 0.25])
def test_a_rank_that_is_still_slow_does_not_seem_well(left: float) -> None:
    job = Counted()
    job.after(20, 0.0, 0.4, 0.0, 0.0)
    assert not any(job.after(20, 0.0, left, 0.0, 0.0))


def test_a_rank_that_stalls_now_and_then_is_well_in_between() -> None:
    job = Counted(kind="intermittent")
    job.after(20, 0.0, 0.4, 0.0, 0.0)
    assert not any(job.after(20, 0.0, 0.0, 0.0, 0.0))


def test_a_rank_that_others_begin_to_wait_for_seems_slow_until_a_report_answers() -> None:
    """And again when it is twice as slow as then."""
    job = Counted()
    job.named = False
    assert not any(job.after(10, 0.05, 0.05, 0.05, 0.05))
    assert job.after(4, 0.05, 0.4, 0.05, 0.05) == [False, True, True, True]
    job.reports += 1
    assert not any(job.after(10, 0.05, 0.4, 0.05, 0.05))
    assert job.after(10, 0.05, 0.9, 0.05, 0.05)[-1]


def test_a_rank_that_a_verdict_names_does_not_seem_slow_anew() -> None:
    assert not any(Counted(cost_ratio=0.2).after(20, 0.05, 0.3, 0.05, 0.05))


def test_a_job_that_stands_does_not_seem_well() -> None:
    job = Counted()
    job.after(20, 0.0, 0.4, 0.0, 0.0)
    assert not any(job.asked() for _ in range(60))


def full_cores(cores_are_full: bool = True) -> Paced:
    """A job of which a rank was named long ago."""
    job = Paced(cores_are_full=lambda: cores_are_full)
    job.names["whole"] = (1,)
    job.until(40.0)
    return job


def test_a_rank_that_seems_well_is_judged_at_once_and_again_until_that_is_reported() -> None:
    """Full cores, where the next evaluation is half a minute away: a verdict is over when two reports say so."""
    job = full_cores()
    idle = job.until(50.0)
    job.jobs["j"].counter_watch.sees_a_change = lambda *_: True
    wholes = [at for at, which in job.until(54.0) if which == "whole"]
    assert ([which for _, which in idle], wholes) == (["newest"], [50.25, 52.25])


def test_a_rank_that_comes_and_goes_is_judged_no_more_than_the_share_of_full_cores_allows() -> None:
    still, flapping = full_cores(), full_cores()
    flapping.jobs["j"].counter_watch.sees_a_change = lambda *_: int(flapping.now) % 20 < 10
    usual, more = (sum(which == "whole" for _, which in job.until(4000.0)) for job in (still, flapping))
    assert 4 <= more - usual <= 4 + 4000 * RECHECK_SHARE / flapping.whole_s


def test_free_cores_judge_a_rank_that_seems_well_in_its_turn() -> None:
    job, usual = full_cores(cores_are_full=False), full_cores(cores_are_full=False)
    job.jobs["j"].counter_watch.sees_a_change = lambda *_: True
    assert job.until(60.0) == usual.until(60.0)
