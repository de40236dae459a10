"""Writing and judging wait for each other, and not for long."""

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest
from hindmost_collector.collector import Collector
from hindmost_collector.ingest.clock import NodeClock
from hindmost_collector.ingest.packed_fields import packed
from hindmost_collector.live import evaluation_loop
from hindmost_collector.live.evaluation_loop import Watch
from hindmost_collector.live.evaluation_schedule import Judging
from hindmost_collector.options import Options
from hindmost_collector.page.history import StepHistory
from hindmost_collector.store import recorder
from hindmost_proto import telemetry_pb2 as wire

from tests.collector.live.pacing import never_ends


async def test_jobs_are_sealed_one_at_a_time_while_others_are_judged():
    """What a whole run takes keeps no running job's verdict waiting, in the watch or in what judging may take."""
    begun, forgotten = [], []

    through = asyncio.Event()

    async def end(job):
        job.sealed = True
        begun.append(job.id)
        await through.wait()
        del jobs[job.id]

    jobs = {
        name: SimpleNamespace(id=name, heard_ns=heard, over=True) for name, heard in (("a", 0), ("b", 0), ("c", 10**12))
    }
    collector = SimpleNamespace(jobs=jobs, outlets=(), options=Options(), clock=SimpleNamespace(now=lambda: 10**12))
    watch = Watch(collector, SimpleNamespace(forget=forgotten.append), end)
    watch._watched = dict.fromkeys(jobs, ((0, 0), False))
    for _ in range(3):
        watch.seal_finished()
        await asyncio.sleep(0)
    meanwhile = list(begun)
    through.set()
    for _ in range(9):
        watch.seal_finished()
        await asyncio.sleep(0)
    assert (meanwhile, list(jobs)) == (["a"], ["c"])
    assert begun == forgotten == ["a", "b"]
    assert list(watch._watched) == ["c"]
    judging = Judging(cpu=iter((0.0, 500.0)).__next__)
    judging.judge = lambda run: "judged"
    assert judging.at_the_end(lambda: "all of it") == ("all of it", "judged")
    assert judging.due("c")
    assert judging.full_evaluations.pays(0.0)


@pytest.mark.parametrize(("now", "pause"), [(-0.5, 0.5), (0.0, 0.25), (0.25, 9.0)])
def test_a_turn_that_waits_for_a_write_begins_as_soon_as_it_can_wait_no_more(now, pause):
    """Not at the next check whether there is one."""
    clock = [-1.5]
    judging = Judging(1.5, clock=lambda: clock[0], cpu=lambda: 0.0)
    judging.begun("j")
    clock[0] = now
    assert judging.pause_s(9.0) == pause


async def test_a_flush_waits_for_the_judging(monkeypatch):
    """What is due is written once judging is through, or has taken too long."""
    collector, found = Collector(Options(flush_seconds=10), None), []
    for busy, overdue in ((False, 1.0), (True, 1.0), (True, recorder.WAIT_S + 1.0), (False, -5.0)):
        monkeypatch.setattr(type(collector.judging), "busy", busy)
        collector.recorder.last_flush = time.monotonic() - 10 - overdue
        found.append(collector.flush_due())
    assert found == [True, False, True, False]


def test_judging_is_busy_while_it_judges():
    """Also when it fails, it is through afterwards."""
    judging = Judging()
    seen = []

    def judge(run):
        seen.append(judging.busy)
        raise ValueError("no such run")

    judging.judge = judge
    assert judging.at_the_end(lambda: None) is None
    assert (seen, judging.busy) == ([True], False)


@pytest.mark.parametrize(
    ("writing", "overdue", "timed_out", "judged"),
    [(False, False, False, True), (True, False, False, False), (True, True, False, True), (True, False, True, True)],
)
async def test_judging_waits_for_a_write(monkeypatch, writing, overdue, timed_out, judged):
    """No job is judged during a write, unless its verdicts get old or it may hang; then all of its steps are."""
    looked, ended = [], []

    stall = SimpleNamespace(urgent=lambda job: True, question=lambda job: None, timed_out=lambda job: timed_out)
    job = SimpleNamespace(
        id="j", sealed=False, revision=1, judged_revision=0, stall=stall, window=SimpleNamespace(still_ns=0, quiet_ns=0)
    )
    collector = SimpleNamespace(
        jobs={"j": job},
        recorder=SimpleNamespace(writing=writing),
        options=Options(out="run", exit_when_stdin_closes=True),
        clock=SimpleNamespace(now=lambda: 0),
        cores_are_full=lambda: False,
    )
    judging = SimpleNamespace(
        prepare=lambda: None,
        due=lambda name, still_s: looked.append(name) or True,
        turn=lambda name: 0,
        overdue=lambda name: overdue,
        pause_s=lambda usual: usual,
    )
    watch = Watch(collector, judging, never_ends)

    async def turn(job, *, whole):
        assert whole == timed_out
        ended.append(job.id)
        job.judged_revision = job.revision

    monkeypatch.setattr(watch, "turn", turn)
    task = asyncio.create_task(watch.run())
    while not (looked or ended or task.done()):
        await asyncio.sleep(0.01)
    task.cancel()
    assert bool(ended) == judged


class Costly:
    """A job whose newest steps are evaluated, with set results, and a full evaluation that takes until released."""

    def __init__(self):
        self.news, self.asked, self.through = False, [], threading.Event()
        self.job = SimpleNamespace(id="j", revision=7, sealed=False, judged=None, report=None)
        self.job.window = SimpleNamespace(last_step=41, quiet_ns=0)
        self.job.history, self.job.events, self.job.reported = StepHistory(), [], 0
        self.job.infer_steps = lambda: None
        self.job.last_step = lambda report: 41
        self.job.first_step = lambda report: None
        self.job.reported_snapshot = self.job.newest = lambda *_: list
        self.now, self.agree = 5, False

    def judging(self):
        return SimpleNamespace(
            costly=lambda name: True,
            rows=lambda name: 50_000,
            evaluate_newest=self.look,
            judged=self.judged,
            full_due=lambda name: self.news is not False,
            settled=lambda name: self.agree,
        )

    def look(self, *_, show):
        self.asked.append("look")
        return self.news

    def judged(self, *_, concurrent, show):
        assert concurrent
        self.asked.append("whole")
        self.through.wait(300)
        return {"verdicts": []}

    def watch(self, judging=None):
        collector = SimpleNamespace(
            clock=SimpleNamespace(now=lambda: self.now),
            decoder=SimpleNamespace(words=None),
            recorder=SimpleNamespace(store=None),
            outlets=(),
            bound_window=lambda job: None,
        )
        return Watch(collector, judging or self.judging(), never_ends)

    def meanwhile(self, *turns, judging=None):
        """What is reported after turns (a claim, and when) without a finished full evaluation."""

        async def scenario():
            watch = self.watch(judging)
            for self.news, self.now in turns:
                await watch.turn(self.job, whole=False)
                await asyncio.sleep(0)  # the full evaluation is begun
            outcome = self.job.judged, self.job.report
            self.through.set()
            await watch.through()
            return outcome

        return asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fails", "last", "judged"),
    [(False, 41, {"time_ns": 5, "last_step": 41}), (False, -1, {"time_ns": 5, "last_step": None}), (True, 41, None)],
)
def test_an_evaluation_without_news_is_reported_too(fails, last, judged):
    """Up to which step, and when, what the report says was seen to hold; one that failed has seen nothing. Where no
    step is known by number it is missing, and no step before the first."""
    costly = Costly()
    costly.news, costly.job.window.last_step = None if fails else False, last
    costly.through.set()
    asyncio.run(costly.watch().turn(costly.job, whole=False))
    assert costly.job.judged == judged


def test_incremental_evaluations_go_on_during_a_full_one():
    """One at a time is; what incremental evaluations find to hold meanwhile is reported, and its own result later."""
    costly = Costly()
    assert costly.meanwhile((True, 5), (True, 6), (False, 7)) == ({"time_ns": 7, "last_step": 41}, None)
    assert sorted(costly.asked) == ["look", "look", "look", "whole"]
    assert costly.job.judged == {"time_ns": 7, "last_step": 41}
    assert costly.job.report == {"verdicts": []}


@pytest.mark.parametrize("agree", [False, True])
def test_a_report_is_as_young_as_the_evaluation_that_confirms_it(agree):
    """An incremental evaluation during the full one, which found something new against the report before."""
    costly = Costly()
    costly.agree = agree
    costly.meanwhile((True, 5), (True, 6))
    assert costly.job.judged == {"time_ns": 6 if agree else 5, "last_step": 41}


def test_a_full_evaluation_that_takes_longer_delays_no_other_evaluation(monkeypatch):
    """It is judged on while its newest steps are looked at."""
    monkeypatch.setattr(evaluation_loop, "EVERY_S", 0.0)
    costly = Costly()
    judging = costly.judging()
    judging.costly, judging.judged = (
        lambda name: False,
        lambda *_, concurrent, show: costly.judged(concurrent=True, show=show),
    )
    assert costly.meanwhile((False, 5), (False, 5), judging=judging) == ({"time_ns": 5, "last_step": 41}, None)
    assert costly.asked == ["whole", "look"]
    assert costly.job.report == {"verdicts": []}


async def test_a_window_that_is_judged_at_once_keeps_no_other_jobs_waiting_in_the_same_round():
    """It is through when its turn is."""
    costly = Costly()
    judging = costly.judging()
    judging.costly, judging.judged = lambda name: False, lambda *_, concurrent, show: {"verdicts": []}

    watch = costly.watch(judging)
    await watch.turn(costly.job, whole=False)
    assert watch.full_evaluations == {}


def test_a_tick_in_parts_keeps_the_order():
    """Rows are recorded before anyone else is served; a tick that comes meanwhile shows them before its own."""
    collector, clock = Collector(Options(http="none"), None), NodeClock(0, 0)
    known = wire.Rank(ref=7, job_id="j", rank=0, world_size=1, node="n")
    collector.definitions.learn(wire.Definitions(ranks=[known]), collector.decoder.job, clock)

    def arrive(step):
        batch = wire.Batch(sequence=step)
        batch.steps.add(rank=7, step=[step], start_ns=[step], duration_ns=[1])
        assert collector.decoder.add(packed(batch), "n", "j", clock) == []

    arrive(1)
    begun = collector.gathering()
    next(begun)
    assert (collector.recorder.pending_bytes > 0, list(collector.jobs)) == (True, [])
    arrive(2)
    collector.gather()
    assert collector.jobs["j"].snapshot(collector.decoder.words)().steps["step"].tolist() == [1, 2]
    assert list(begun) == []
