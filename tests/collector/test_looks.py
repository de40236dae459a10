"""Looks at the newest steps of a window that costs much to judge, and when they have all of it judged."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hindmost_collector.judge import judge
from hindmost_collector.judgement.verdict import JobSummary, RankRow, Report, Verdict
from hindmost_collector.model import Job, Run
from hindmost_collector.running import newest
from hindmost_collector.running.judging import AHEAD_S, Judging
from hindmost_collector.running.looks import Seen, differ, seen, settled
from hindmost_collector.running.pieces import Piece, piece
from hindmost_collector.simulate import Fault, Scenario, simulate

if TYPE_CHECKING:
    from collections.abc import Callable

SLOW = ("straggler", (3,))
NOW_AND_THEN = ("intermittent", (5,))
NOTHING = Seen({}, 100.0, 10.0)


def costs(**found: float) -> Seen:
    """Steps in which these hold, by what they cost."""
    names = {"slow": SLOW, "stalls": NOW_AND_THEN}
    return Seen({names[name]: cost for name, cost in found.items()}, 100.0, 10.0)


@pytest.mark.parametrize(
    ("held", "before", "now", "new"),
    [
        (NOTHING, NOTHING, NOTHING, False),
        (NOTHING, NOTHING, costs(slow=5.0), True),
        (costs(slow=5.0), NOTHING, costs(slow=5.0), False),
        (costs(slow=5.0), costs(slow=5.0), NOTHING, True),
        (NOTHING, costs(slow=5.0), NOTHING, False),
        (costs(slow=5.0), costs(slow=5.0), costs(slow=7.0), False),
        (costs(slow=5.0), costs(slow=5.0), costs(slow=9.0), True),
        (costs(stalls=5.0), costs(stalls=5.0), NOTHING, False),
        (NOTHING, NOTHING, costs(stalls=5.0), True),
        (NOTHING, NOTHING, Seen({}, 115.0, 10.0), True),
        (NOTHING, NOTHING, Seen({}, 103.0, 12.0), True),
        (Seen({}, 100.0, 0.5), Seen({}, 100.0, 0.5), Seen({}, 100.0, 1.0), False),
    ],
)
def test_news_is_who_begins_or_ends_and_what_becomes_dearer_or_longer(
    held: Seen, before: Seen, now: Seen, new: bool
) -> None:
    """Beside what looks said when the whole window was judged: a long window names whom few steps do not show."""
    assert differ(held, before, now) == new


def test_what_has_ended_is_not_seen() -> None:
    """Nor what is no trouble; steps and transfers are those of the typical step and rank."""
    verdicts = (
        Verdict("balanced"),
        Verdict("straggler", (3,), cost_ms_per_step=4.0),
        Verdict("straggler", (4,), until_step=9),
    )
    ranks = tuple(RankRow(rank, transfer_ms=ms) for rank, ms in enumerate((1.0, 2.0, 9.0, None)))
    report = Report(JobSummary("j", step_ms={"p50": 20.0}), verdicts, ranks)
    assert seen(report) == Seen({SLOW: 4.0}, 20.0, 2.0)


def test_who_is_slow_now_and_then_is_settled_in_any_steps() -> None:
    """Newest steps without a stall contradict no window with some."""
    assert settled(costs(slow=5.0, stalls=3.0), costs(slow=2.0))
    assert not settled(costs(slow=5.0), NOTHING)


def test_a_look_names_whom_a_judgement_does_and_describes_a_few() -> None:
    """The same judge on the same steps, without what only a reader asks."""
    run = simulate(Scenario(100, 60, seed=5, faults=(Fault("compute", (3,), 0.2),))).run
    whole, look = judge(run), judge(replace(run, look=True))
    assert [(one.kind, one.ranks) for one in look.verdicts] == [("straggler", (3,))]
    assert seen(look).costs == seen(whole).costs
    assert seen(look).step_ms == seen(whole).step_ms
    assert seen(look).transfer_ms == pytest.approx(seen(whole).transfer_ms, rel=0.05)
    assert 32 < len(look.ranks) <= 64


class Looked:
    """A job whose whole window costs 0.4 s to judge and its newest steps 0.02 s, unless told, and what they say."""

    def __init__(self, period_s: float = 1.5, look_s: float = 0.02) -> None:
        self.now, self.used, self.look_s = 100.0, 0.0, look_s
        self.names: dict[str, tuple[int, ...]] = {"whole": (), "newest": ()}
        self.judging = Judging(period_s, 0.05, clock=lambda: self.now, cpu=lambda: self.used)
        self.judging.judge = self._judge
        self.judged: list[tuple[float, str]] = []
        self.judging.report("j", self.run("whole", 0.4))
        self.judged.clear()

    def run(self, which: str, cost: float) -> Callable[[], Run]:
        def made() -> Run:
            self.used += cost
            self.judged.append((round(self.now - 100.0, 2), which))
            return Run(Job(which))

        return made

    def _judge(self, run: Run) -> Report:
        return Report(JobSummary("j"), tuple(Verdict("straggler", (rank,)) for rank in self.names[run.job.id]))

    def until(self, seconds: float) -> list[tuple[float, str]]:
        """What was judged, and when, up to then."""
        while self.now < 100.0 + seconds:
            self.now += 0.25
            if self.judging.due("j"):
                self.judging.report("j", self.run("whole", 0.4), newest=self.run("newest", self.look_s))
        found, self.judged = self.judged, []
        return found


def test_newest_steps_are_looked_at_each_period_and_the_whole_window_when_the_share_pays_for_it() -> None:
    """A look each 1.5 s is 1.3 % of a core; what is left of a twentieth is a whole window each 11 s."""
    job = Looked()
    judged = job.until(120.0)
    looks = [at for at, which in judged if which == "newest"]
    whole = [at for at, which in judged if which == "whole"]
    assert max(np.diff(looks[1:])) <= 2.0
    assert len(whole) == pytest.approx(120 / 11, abs=2)
    assert job.used < 0.05 * 130


def test_without_a_least_time_looks_leave_the_whole_window_a_part_of_the_share() -> None:
    """Each 0.8 s they take half of a twentieth of a core, and a whole window each 16 s the other half."""
    job = Looked(period_s=0.0)
    judged = [which for _, which in job.until(200.0)]
    assert judged.count("newest") >= 190
    assert judged.count("whole") == pytest.approx(200 / 16, abs=2)


def test_looks_that_the_share_does_not_pay_for_come_every_two_seconds_all_the_same() -> None:
    """Looks of 0.12 s are 0.08 of a core; whole windows have half of the share beside them, and no more."""
    job = Looked(look_s=0.12)
    judged = job.until(200.0)
    looks = [at for at, which in judged if which == "newest"]
    assert max(np.diff(looks)) <= 2.0
    assert [which for _, which in judged].count("whole") == pytest.approx(200 / 16, abs=2)
    assert job.used < 0.11 * 200


def test_of_many_jobs_all_are_looked_at_seldomer() -> None:
    """Together they take a fifth of a core at most, whatever each of them were to take."""
    job = Looked(look_s=0.12)
    for _ in range(4 * 200):
        job.now += 0.25
        for name in "jklmn":
            if job.judging.due(name):
                job.judging.report(name, job.run("whole", 0.4), newest=job.run("newest", 0.12))
    assert job.used < 0.2 * (200 + AHEAD_S)


def test_news_has_the_whole_window_judged_at_once() -> None:
    """And soon again where it does not say so yet, but ever seldomer as long as it does not."""
    job = Looked()
    assert job.until(40.0)
    job.names["newest"] = (3,)
    whole = [at for at, which in job.until(75.0) if which == "whole"]
    assert whole[0] - 40.0 <= 2.0
    gaps = np.diff(whole)
    assert gaps[0] <= 2.0
    assert (np.diff(gaps) > 0).all()


def test_what_is_spent_ahead_has_an_end() -> None:
    """Looks that say something else each time have no more judged than the share, and twenty seconds of it."""
    job = Looked()
    for second in range(300):
        job.names["newest"] = (second % 7,)
        job.until(float(second))
    assert job.used < 0.05 * (300 + AHEAD_S) + 0.5


def test_an_answer_has_the_whole_window_judged() -> None:
    """What was asked for may hold a verdict's cause, which looks do not ask for."""
    job = Looked()
    job.until(30.0)
    job.judging.again("j", 0.5)
    assert (pytest.approx(30.5, abs=0.3), "whole") in job.until(31.5)


def table(first: int, stop: int, ranks: int, step_ns: int, each: int = 1) -> Piece:
    """Rows of so many ranks, ``each`` in each of these steps."""
    return rows_of(first, stop, np.arange(ranks), step_ns, each)


def rows_of(first: int, stop: int, ranks: Any, step_ns: int, each: int = 1) -> Piece:
    """The same of these ranks."""
    start = np.repeat(np.arange(first, stop) * step_ns, len(ranks) * each)
    return piece({"start_ns": start, "rank": np.tile(np.repeat(ranks, each), stop - first)})


def steps_of(pieces: list[Piece], step_ns: int) -> int:
    """How many steps pieces are of."""
    return len(np.unique(np.concatenate([one.table["start_ns"] for one in pieces]))) if step_ns and pieces else 0


def test_the_newest_steps_are_a_small_part_of_a_full_window() -> None:
    """Of few ranks those that fill some rows; of many as many as can be judged, of each table by its own clock."""
    of_hosts = [table(at, at + 5, 64, 10**8) for at in range(1000, 2000, 5)]
    of_gpus = [table(at, at + 5, 64, 10**8, 6) for at in range(0, 1000, 5)]
    kept = newest.parts({"steps": of_hosts, "collectives": of_gpus}, 1e8, 64)
    assert 130 <= steps_of(kept["collectives"], 10**8) <= 140
    assert 130 <= steps_of(kept["steps"], 10**8) <= 140
    large = [table(at, at + 2, 8192, 10**9) for at in range(0, 44, 2)]
    kept = newest.parts({"steps": large, "collectives": [table(38, 44, 8192, 10**9, 6)], "intervals": []}, 1e9, 8192)
    assert 12 <= steps_of(kept["steps"], 10**9) <= 14
    assert kept["collectives"] == kept["intervals"] == []


def test_each_rank_is_seen_in_as_many_steps_as_a_judgement_needs_though_agents_send_in_turn() -> None:
    """A quarter of the agents tells each second what the four before it brought: of the others nothing is newer."""
    turns = [
        rows_of(10 * (second - 3), 10 * (second + 1), np.arange(second % 4, 8192, 4), 10**8) for second in range(4, 16)
    ]
    kept = newest.parts({"steps": turns}, 1e8, 8192)["steps"]
    assert set(np.concatenate([one.table["rank"] for one in kept]).tolist()) == set(range(8192))
    assert len(kept) == 4
    gone = newest.parts({"steps": turns}, 1e8, 16_384)["steps"]
    assert 4 < len(gone) < len(turns)


def test_a_few_ticks_of_metrics_are_enough() -> None:
    """The newest, as many as hold enough samples; of a job that is larger than any node those of its CPUs."""
    assert newest.of_samples([9000] * 10) == 7
    assert newest.of_samples([100, 100]) == 0
    metrics = {
        "name": np.array(["hindmost_node_cpus", "hindmost_gpu_power_watts"], object),
        "value": np.array([8.0, 1.0]),
    }
    assert newest.needed(metrics, 8) is metrics
    assert newest.needed(metrics, 1024)["value"].tolist() == [8.0]
