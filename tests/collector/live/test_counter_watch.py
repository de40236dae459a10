"""When a rank seems slow or well again by its counters, and how often full cores let that trigger an evaluation."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hindmost_collector.live.counter_watch import CounterWatch
from hindmost_collector.live.evaluation_schedule import RECHECK_SHARE

from .pacing import Paced

SLOW = {"kind": "straggler", "ranks": [1], "cost_ratio": 0.4}


class Counted:
    """A job with ten calls a second; ``wait`` is the share of the time that each other rank waits for a rank."""

    def __init__(self, ranks: int = 4, **verdict: Any) -> None:
        names = ("step_seconds_total", "collectives_total", "caused_wait_seconds_total")
        self.columns = {name: np.zeros(ranks) for name in names}
        self.verdict, self.named, self.watch = {**SLOW, **verdict}, True, CounterWatch()
        self.reports = 0

    def after(self, seconds: int, *wait: float) -> list[bool]:
        """What is said at the end of each second."""
        return [self._second(np.array(wait)) for _ in range(seconds)]

    def _second(self, wait: Any) -> bool:
        for name, more in zip(self.columns, (1.0, 10.0, wait * (len(wait) - 1)), strict=True):
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


@pytest.mark.parametrize(
    ("kind", "left"),
    [("straggler", 0.4), ("straggler", 0.25), ("intermittent", 0.0)],
    ids=["as slow", "less", "stalls"],
)
def test_a_rank_that_is_still_slow_does_not_seem_well(kind: str, left: float) -> None:
    """One that stalls now and then is well in between."""
    job = Counted(kind=kind)
    job.after(20, 0.0, 0.4, 0.0, 0.0)
    assert not any(job.after(20, 0.0, left, 0.0, 0.0))


def unnamed(ranks: int = 4) -> Counted:
    job = Counted(ranks)
    job.named = False
    return job


def test_a_rank_that_others_begin_to_wait_for_seems_slow_in_two_windows_until_a_report_answers() -> None:
    job = unnamed()
    assert not any(job.after(10, 0.05, 0.05, 0.05, 0.05))
    assert job.after(8, 0.05, 0.4, 0.05, 0.05) == [False] * 6 + [True] * 2
    job.reports += 1
    assert not any(job.after(6, 0.05, 0.4, 0.05, 0.05))


@pytest.mark.parametrize("wait", [0.15, 0.4])
def test_a_rank_that_a_report_did_not_name_seems_slow_again_once_twice_as_much_is_lost(wait: float) -> None:
    """The first evaluation may have had too few slow steps."""
    job, asked = unnamed(), []
    job.after(20, 0.0, 0.0, 0.0, 0.0)
    for second in range(160):
        if any(job.after(1, 0.0, wait, 0.0, 0.0)):
            asked.append(second)
            job.reports += 1
    assert len(asked) >= 4
    assert all(1.8 < later / earlier < 2.8 for earlier, later in pairwise(asked))


@pytest.mark.parametrize("ranks", [4, 8, 64])
def test_a_rank_of_many_that_is_hardly_late_does_not_seem_slow(ranks: int) -> None:
    assert not any(unnamed(ranks).after(60, *(0.05 * (rank == 1) for rank in range(ranks))))


@pytest.mark.parametrize("ranks", [4, 8])
def test_ranks_that_are_last_by_chance_do_not_seem_slow(ranks: int) -> None:
    """One of them each second, for which the others wait a fifth of it."""
    job, last = unnamed(ranks), np.random.default_rng(0).integers(ranks, size=600)
    assert sum(any(job.after(1, *(0.2 * (rank == one) for rank in range(ranks)))) for one in last) <= 6


def test_a_healed_rank_of_many_seems_well() -> None:
    job, healthy = Counted(64), [0.0] * 62
    job.after(20, 0.0, 0.4, *healthy)
    assert any(job.after(10, 0.0, 0.05, *healthy))


@pytest.mark.parametrize("silent", [np.nan, 0.0])
def test_a_rank_without_steps_hides_no_other(silent: float) -> None:
    """It has reported none, or it takes none."""
    job = unnamed()
    job.columns["step_seconds_total"][3] = silent
    seen = []
    for _ in range(20):
        job.after(1, 0.0, 0.4, 0.0, 0.0)
        job.columns["step_seconds_total"][3] = silent
        seen.append(job.asked())
    assert any(seen)


def test_a_node_with_calls_and_no_step_yet_begins_the_watch_anew() -> None:
    job = unnamed()
    job.after(20, 0.0, 0.4, 0.0, 0.0)
    for name in ("collectives_total", "caused_wait_seconds_total"):
        job.columns[name] = np.append(job.columns[name], [20.0, 0.0])
    assert not job.asked()


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


def test_a_job_that_cannot_be_judged_leaves_the_others_judged(caplog: pytest.LogCaptureFixture) -> None:
    """One line in the log, until it can be."""
    jobs = Paced(jobs="ab")

    def broken(job: Any) -> None:
        raise IndexError("a rank too many")

    jobs.jobs["a"].stall.question = broken
    assert jobs.until(10.0)
    assert caplog.messages == ["job a cannot be judged; this is tried again"]
