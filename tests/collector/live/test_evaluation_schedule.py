"""How often a job is judged: less while all cores are busy, soon where it stands still; which claims are checked."""

import asyncio
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost import daemon_process
from hindmost_collector import main
from hindmost_collector.collector import Collector, tend
from hindmost_collector.live.evaluation_loop import HASTE_S
from hindmost_collector.live.evaluation_schedule import Judging, UnconfirmedClaims
from hindmost_collector.options import Options
from hindmost_collector.store.parquet.compaction import Upkeep
from hindmost_collector.store.parquet.store import ParquetStore
from hindmost_judge.model import Job, Run
from hindmost_judge.verdict.schema import JobSummary, Report

from tests.collector.live.pacing import Paced


def times(paced: Paced, seconds: float, of: str = "whole") -> list[float]:
    return sorted({at for at, which in paced.until(seconds) if which == of})


@pytest.mark.parametrize(("full", "first_s"), [(False, 2.0), (True, 5.0)])
def test_a_job_has_its_first_verdict_within_seconds(full: bool, first_s: float) -> None:
    """A user looks at a job that has just started; a job of a few seconds on full cores loses nothing to it."""
    assert first_s <= times(Paced(cores_are_full=lambda: full), 110.0)[0] <= first_s + 0.5


def test_what_a_first_judgement_leaves_open_is_judged_again_soon() -> None:
    """A job of long steps has too few of them at first."""
    paced = Paced(cores_are_full=lambda: True, whole_s=0.07)
    assert len(times(paced, 40.0)) == 1
    unsure = Paced(cores_are_full=lambda: True, whole_s=0.07)
    unsure.kind = "insufficient_data"
    unsure.names = {"whole": (0,), "newest": (0,)}
    assert len(times(unsure, 40.0)) == 2


@pytest.mark.parametrize(
    ("whole_s", "until", "least", "most"), [(0.06, 240.0, 59.0, 63.0), (2.0, 1100.0, 297.0, 322.0)]
)
def test_judging_takes_a_thousandth_of_full_cores(whole_s: float, until: float, least: float, most: float) -> None:
    """A judgement of 60 ms comes every 60 s, after the first; one of 2 s every five minutes all the same."""
    judged = times(Paced(cores_are_full=lambda: True, whole_s=whole_s), until)
    assert [least < after - before < most for before, after in itertools.pairwise(judged)] == [True] * 3


def test_what_asks_about_a_job_begins_no_turn_of_it() -> None:
    """A job waits from when its turn could first come; of one that is forgotten nothing is kept."""
    now = [0.0]
    judging = Judging(clock=lambda: now[0], cores_are_full=lambda: True)
    judging.turn("j"), judging.rows("j"), judging.costly("j"), judging.window_rows("j", 9), judging.overdue("j")
    now[0] = 200.0
    assert not judging.due("j")
    now[0] = 400.0
    assert judging.due("j")
    judging.forget("j")
    judging.turn("j")
    now[0] = 600.0
    assert not judging.due("j")


@pytest.mark.parametrize("full", [True, False])
def test_while_a_window_is_judged_no_other_is_while_cores_are_full(full: bool) -> None:
    """Two at once would take a core from two ranks."""
    now, due = [0.0], []
    judging = Judging(clock=lambda: now[0], cores_are_full=lambda: full)

    def judge(run: Run) -> Report:
        due.append(judging.due("other"))
        return Report(JobSummary(run.job.id), ())

    judging.judge = judge
    assert not judging.due("other")
    now[0] = 200.0
    judging.judged("j", lambda: Run(Job("j")))
    assert due == [not full]
    assert judging.due("other")


@pytest.mark.parametrize(
    ("full", "first", "took", "most"),
    [
        (True, 50_000, 0.25, 120_000),
        (True, 50_000, 0.05, 300_000),
        (True, 50_000, 2.0, 50_000),
        (False, 400_000, 0.2, 400_000),
    ],
)
def test_a_window_is_as_long_as_full_cores_allow(full: bool, first: int, took: float, most: int) -> None:
    """A quarter of a second for 100,000 rows: 120,000 may take three tenths. Windows grow by three at most."""
    used = [0.0]
    judging = Judging(cpu=lambda: used[0], cores_are_full=lambda: full)

    def judge(run: Run) -> Report:
        used[0] += took
        return Report(JobSummary(run.job.id), ())

    judging.judge = judge
    assert judging.window_rows("j", 400_000) == first
    judging.judged("j", lambda: Run(Job("j"), collectives={"rank": np.zeros(100_000, np.int32)}))
    assert judging.window_rows("j", 400_000) == most


def test_what_changes_is_judged_within_seconds_however_much_a_judgement_takes() -> None:
    """The newest steps are looked at, which takes little; what they show is judged in full."""
    paced = Paced(cores_are_full=lambda: True, whole_s=0.3)
    assert len(times(paced, 190.0)) == 1
    paced.names = {"whole": (3,), "newest": (3,)}
    first, *_ = times(paced, 220.0)
    assert first < 212.0


#: The same for windows that are judged in full, and for those whose newest steps are.
KINDS = pytest.mark.parametrize(("whole_s", "last"), [(0.07, "whole"), (0.3, "newest")])


def with_a_slow_rank(whole_s: float) -> Paced:
    """A job on full cores, of which one rank is slow from its 700th second on."""
    paced = Paced(cores_are_full=lambda: True, whole_s=whole_s, look_s=lambda rows: 0.07)
    times(paced, 700.0)
    paced.names = {"whole": (3,), "newest": (3,)}
    return paced


@KINDS
def test_a_rank_that_was_just_named_is_judged_again_within_seconds(whole_s: float, last: str) -> None:
    """It may be well again: a window shows that, or the newest steps, which a window is to confirm."""
    paced = with_a_slow_rank(whole_s)
    named = next(float(second) for second in range(701, 1100) if times(paced, float(second)))
    assert times(paced, named + 16.0, last)


@KINDS
def test_judging_takes_no_more_of_full_cores_while_a_rank_stays_named(whole_s: float, last: str) -> None:
    """A thousandth of a core each for windows and newest steps: a rank that is slow for hours is the usual case."""
    paced = with_a_slow_rank(whole_s)
    times(paced, 1200.0)
    before = paced.used
    times(paced, 4200.0)
    assert (paced.used - before) / 3000.0 < (0.0011 if last == "whole" else 0.0021)


@pytest.mark.parametrize("whole_s", [0.3, 2.0])
def test_a_job_whose_verdicts_change_all_the_time_costs_no_more_in_the_long_run(whole_s: float) -> None:
    """Ranks that are a little late in turn are news each time."""
    paced = Paced(cores_are_full=lambda: True, whole_s=whole_s)
    judged = []
    for number in range(1, 121):
        paced.names = {"whole": (number % 4,), "newest": (number % 4,)}
        judged += times(paced, 20.0 * number)
    assert len([at for at in judged if at < 700.0]) <= 7
    assert len([at for at in judged if at > 1200.0]) <= 5


def test_what_stays_open_is_judged_less_and_less_often() -> None:
    """A verdict that is in doubt at each judgement must not take more of the ranks than one that stands."""
    paced = Paced(cores_are_full=lambda: True, whole_s=0.1)
    judged = []
    for second in range(1, 401):
        found = times(paced, float(second))
        judged += found
        if found:
            paced.judging.again("j", 2.0)
    gaps = [after - before for before, after in itertools.pairwise(judged)]
    assert gaps[:3] == pytest.approx([20, 40, 80], abs=2.0)
    assert gaps[3] > 95.0


def test_a_job_that_stands_still_is_judged_soon() -> None:
    """It may hang."""
    paced = Paced(cores_are_full=lambda: True)
    for job in paced.jobs.values():
        job.window.still_ns = 10_000_000_000
    assert times(paced, 12.0)[0] < 6.0


def test_a_job_that_stays_still_is_judged_each_time_that_lasted_twice_as_long() -> None:
    """Ranks that compute for long without a word look the same, and lose what judging takes."""
    paced = Paced(cores_are_full=lambda: True, whole_s=0.2)
    judged = []
    for second in range(1, 61):
        paced.jobs["j"].window.still_ns = second * 1_000_000_000
        judged += times(paced, float(second))
    assert len(judged) <= 6
    assert all(after >= 1.8 * before for before, after in itertools.pairwise(judged))


@pytest.mark.parametrize(("full", "until", "then"), [(True, 5.0, 9.0), (False, 1.5, 4.5)])
def test_what_the_last_evaluation_sees_of_the_cores_decides_from_then_on(full: bool, until: float, then: float) -> None:
    """Once a core is free the job is judged at its own pace. Cores are idle until ranks have started: the first
    judgement waits until an evaluation has seen these at work."""
    now = [full]
    paced = Paced(cores_are_full=lambda: now[0])
    assert times(paced, until) == []
    now[0] = not full
    assert bool(times(paced, then)) is full


def test_the_session_is_raised_once_the_ranks_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Next to other work on full cores, the agent's last samples would else wait longer than the agent does."""
    raised: list[int] = []
    seen: list[list[int]] = []

    def stdin() -> Iterator[str]:
        seen.append(list(raised))
        yield '{"exit_code": 0}'
        seen.append(list(raised))  # stdin stays open until the agent is done

    monkeypatch.setattr(daemon_process, "set_session_priority", raised.append)
    monkeypatch.setattr(sys, "stdin", stdin())
    job, clock = SimpleNamespace(), SimpleNamespace(now=lambda: 7)
    collector: Any = SimpleNamespace(options=SimpleNamespace(job_id="j"), clock=clock, job=lambda job_id: job)
    main.follow_stdin(collector, Any, ())
    assert seen == [[], [0]]
    assert job.ended_ns == 7


def test_the_time_of_a_job_begins_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector is there before it: what `hindmost run` takes to start is no start-up of the job."""
    monkeypatch.setattr(sys, "stdin", iter(['{"begun":true}\n']))
    job = SimpleNamespace(started_ns=1, window=SimpleNamespace(started_ns=1))
    clock = SimpleNamespace(now=lambda: 7)
    collector: Any = SimpleNamespace(options=SimpleNamespace(job_id="j"), clock=clock, job=lambda job_id: job)
    main.follow_stdin(collector, Any, ())
    assert (job.started_ns, job.window.started_ns) == (7, 7)


@pytest.mark.parametrize(
    ("began_s", "full", "due"), [(9.0, False, False), (11.0, False, True), (29.0, True, False), (31.0, True, True)]
)
async def test_writing_waits_while_ranks_start_and_while_cores_are_full(began_s: float, full: bool, due: bool) -> None:
    """Agents keep what is not written: a second's rows are worth no time of a rank, a minute's are."""
    collector = Collector(Options(out="run", job_id="j", exit_when_stdin_closes=True), None)
    collector.cores_are_full = lambda: full
    collector.began = collector.recorder.last_flush = time.monotonic() - began_s
    assert collector.flush_due() is due


@pytest.mark.parametrize(("full", "merges"), [(True, 2), (False, 13)])
async def test_segments_are_merged_little_by_little_while_cores_are_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, full: bool, merges: int
) -> None:
    """Merging takes more than all writing, and is bounded in each round, however much there is."""
    store, slept, done = ParquetStore(tmp_path, single=True), [0.0], []
    collector = Collector(Options(out=str(tmp_path)), store)
    collector.cores_are_full = lambda: full

    async def sleep(seconds: float) -> None:
        slept[0] += seconds
        if slept[0] > 390.0:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(Upkeep, "compact", lambda *_: done.append("merge") or full)
    monkeypatch.setattr(Upkeep, "expire", lambda _: done.append("expire"))
    with pytest.raises(asyncio.CancelledError):
        await tend(collector)
    store.close()
    assert (done.count("merge"), done.count("expire")) == (merges, 1 if full else merges)


@pytest.fixture
def on_full_cores(monkeypatch: pytest.MonkeyPatch) -> Collector:
    """A collector three seconds after a time at which agents make their batches; sleeping takes no time."""
    collector, now = Collector(Options(out="run", job_id="j", exit_when_stdin_closes=True), None), [11.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(collector, "cores_are_full", lambda: True)
    return collector


async def ticks(collector: Collector) -> list[float]:
    """When the next three are, s."""
    found = []
    for _ in range(3):
        await collector.next_tick()
        found.append(time.time())
    return found


@pytest.mark.parametrize(("full", "at"), [(True, [16.0, 24.0, 32.0]), (False, [11.5, 12.0, 12.5])])
async def test_a_collector_works_when_agents_do_while_cores_are_full(
    on_full_cores: Collector, *, full: bool, at: list[float]
) -> None:
    """A rank waits for each of them: at once, and not for one after the other. A free core is taken from no rank."""
    on_full_cores.cores_are_full = lambda: full
    assert await ticks(on_full_cores) == at


async def test_a_collector_works_at_once_where_a_job_may_hang(on_full_cores: Collector) -> None:
    """Its ranks wait, and leave the cores to others."""
    stall = SimpleNamespace(urgent=lambda _: True)
    on_full_cores.jobs["j"] = SimpleNamespace(stall=stall)  # type: ignore[assignment]
    await on_full_cores.next_tick()
    assert time.time() == 11.0 + HASTE_S


async def test_an_agent_that_speaks_out_of_turn_is_heard_soon(on_full_cores: Collector) -> None:
    """Its ranks stand still, or write much. What it said may have been taken meanwhile: another agent has left."""
    agent, outbox = SimpleNamespace(), SimpleNamespace(closed=True)
    for _ in range(2):
        on_full_cores.ingest.inbox.add(agent, outbox, Any, 0)  # type: ignore[arg-type]
        on_full_cores.ingest.inbox.empty()
    await on_full_cores.next_tick()
    assert time.time() == 13.0
    on_full_cores.gather()
    assert await ticks(on_full_cores) == [16.0, 24.0, 32.0]


@pytest.mark.parametrize(("over", "at"), [(False, 16.0), (True, 13.0)])
async def test_what_may_end_a_verdict_waits_for_no_turn(on_full_cores: Collector, *, over: bool, at: float) -> None:
    stall, watch = SimpleNamespace(urgent=lambda _: False), SimpleNamespace(change=over)
    job = SimpleNamespace(stall=stall, counter_watch=watch, report={})
    on_full_cores.jobs["j"] = job  # type: ignore[assignment]
    on_full_cores.ingest.inbox.add(Any, Any, Any, 0)
    await on_full_cores.next_tick()
    assert time.time() == at


async def test_who_leaves_waits_for_no_turn(on_full_cores: Collector) -> None:
    """An agent goes once its last batch is written."""
    on_full_cores.ingest.agents["a"] = SimpleNamespace(departed=True, outbox=object())  # type: ignore[assignment]
    await on_full_cores.next_tick()
    assert time.time() == 13.0


KEY, OTHER = ("straggler", (3,)), ("straggler", (4,))


def asked_in_vain(times: int) -> tuple[UnconfirmedClaims, float]:
    """Doubts of what was asked so many times, each as soon as it was worth it, and when the last time was."""
    doubts, now = UnconfirmedClaims(), 0.0
    for _ in range(times):
        while not doubts.worth({KEY}, now):
            now += 0.5
        doubts.evaluated({KEY}, (), {KEY}, now)
    return doubts, now


def test_each_time_it_waits_for_twice_as_long_and_for_a_minute_at_most() -> None:
    """One second, two, four, … after it was first asked."""
    assert [asked_in_vain(times)[1] for times in (1, 2, 3, 4, 5)] == [0.0, 1.0, 3.0, 7.0, 15.0]
    assert asked_in_vain(20)[1] - asked_in_vain(19)[1] == 60.0


def test_what_is_said_no_more_for_as_long_as_it_waited_is_asked_at_once_when_it_comes_again() -> None:
    """Sooner it is what looks say now and then."""
    doubts, now = asked_in_vain(4)
    assert doubts.worth((), now + 15.0) == set()
    assert KEY in doubts
    assert doubts.worth((), now + 17.0) == set()
    assert KEY not in doubts
    assert doubts.worth({KEY}, now + 18.0) == {KEY}


def test_a_claim_never_checked_before_does_not_wait() -> None:
    """And has others asked about soon again: what is new may be about them."""
    doubts, now = asked_in_vain(6)
    assert doubts.worth({KEY, OTHER}, now + 1.0) == {OTHER}
    assert doubts.worth({KEY, OTHER}, now + 99.0, again=False) == {OTHER}
    doubts.evaluated({OTHER}, {OTHER}, {KEY}, now + 1.0)
    assert doubts.worth({KEY}, now + 2.0) == {KEY}
