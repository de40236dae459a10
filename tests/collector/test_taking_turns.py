"""Writing and judging wait for each other, and not for long."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest
from hindmost_collector.options import Options
from hindmost_collector.running.judging import Judging
from hindmost_collector.running.watching import Watch
from hindmost_collector.service import Collector
from hindmost_collector.store import recording


def test_a_flush_waits_for_the_judging():
    """What is due is written once judging is through, or has taken too long."""

    async def scenario():
        collector, found = Collector(Options(flush_seconds=10), None), []
        for busy, overdue in ((False, 1.0), (True, 1.0), (True, recording.WAIT_S + 1.0), (False, -5.0)):
            collector.judging.busy = busy
            collector.recorder.last_flush = time.monotonic() - 10 - overdue
            found.append(collector._flush_due())
        return found

    assert asyncio.run(scenario()) == [True, False, True, False]


def test_judging_is_busy_while_it_judges():
    """Also when it fails, it is through afterwards."""
    judging = Judging()
    seen = []

    def judge(run):
        seen.append(judging.busy)
        raise ValueError("no such run")

    judging.judge = judge
    assert judging.report("j", lambda: None, whole=True) is None
    assert (seen, judging.busy) == ([True], False)


@pytest.mark.parametrize(
    ("writing", "overdue", "ripe", "judged"),
    [(False, False, False, True), (True, False, False, False), (True, True, False, True), (True, False, True, True)],
)
def test_judging_waits_for_a_write(monkeypatch, writing, overdue, ripe, judged):
    """A job is not judged while a write is under way, unless its verdicts get old or it may hang; then the whole of its
    window is."""
    looked, told = [], []

    async def scenario():
        stall = SimpleNamespace(in_haste=lambda job: True, question=lambda job: None, ripe=lambda job: ripe)
        job = SimpleNamespace(id="j", sealed=False, revision=1, judged_revision=0, stall=stall)
        collector = SimpleNamespace(
            jobs={"j": job}, recorder=SimpleNamespace(writing=writing), options=SimpleNamespace(hold=True)
        )
        judging = SimpleNamespace(
            due=lambda name: looked.append(name) or True, turn=lambda name: 0, overdue=lambda name: overdue
        )
        watch = Watch(collector, judging)

        async def judge(job, *, whole):
            assert whole == ripe
            told.append(job.id)
            job.judged_revision = job.revision

        monkeypatch.setattr(watch, "_judge", judge)
        task = asyncio.create_task(watch.run())
        while not (looked or told or task.done()):
            await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(scenario())
    assert bool(told) == judged


@pytest.mark.parametrize("fails", [False, True])
def test_a_look_that_says_nothing_new_is_told_too(fails):
    """Up to which step, and when, what the report says was seen to hold; one that failed has seen nothing."""

    async def scenario():
        judging = SimpleNamespace(failures=0)

        def report(*_, **__):
            judging.failures += fails

        judging.report = report
        window = SimpleNamespace(last_step=41)
        job = SimpleNamespace(id="j", revision=7, window=window, judged=None)
        job.infer_steps = lambda: None
        job.snapshot = job.newest = lambda words: None
        collector = SimpleNamespace(clock=SimpleNamespace(now=lambda: 5), decoder=SimpleNamespace(words=None))
        await Watch(collector, judging)._judge(job, whole=False)
        return job.judged

    assert asyncio.run(scenario()) == (None if fails else {"time_ns": 5, "last_step": 41})
