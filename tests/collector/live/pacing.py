"""Jobs that are watched on a controlled clock, whose judging takes a set time."""

import asyncio
import atexit
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hindmost_collector.live.evaluation_loop import LOOK_S, Watch
from hindmost_collector.live.evaluation_schedule import LEAST_SHARE, Judging
from hindmost_collector.options import Options
from hindmost_collector.page.history import StepHistory
from hindmost_judge.model import Job, Run
from hindmost_judge.verdict.schema import JobSummary, Report, Verdict

#: When the clock begins, s.
BEGAN = 100.0


def collector(jobs: dict[str, Any], now: Callable[[], float]) -> Any:
    """What a watch asks of a collector, one that records nothing."""
    return SimpleNamespace(
        jobs=jobs,
        clock=SimpleNamespace(now=lambda: int(now() * 1e9)),
        decoder=SimpleNamespace(words=None),
        recorder=SimpleNamespace(store=None, writing=False),
        ingest=SimpleNamespace(ask=lambda job, question: None),
        options=Options(out="run", exit_when_stdin_closes=True),
        outlets=(),
        bound_window=lambda job: None,
        cores_are_full=lambda: False,
    )


async def never_ends(job: Any) -> None:
    """No job of these tests is over."""
    raise AssertionError(f"job {job.id} ended")


async def turn(watch: Watch) -> None:
    """One turn of each job that is due, and the full evaluations that it began, to the end."""
    await watch.round()
    await watch.through()


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """One for all: each has a thread of its own, and some jobs are asked for each second."""
    made = asyncio.new_event_loop()
    atexit.register(made.close)
    return made


class Paced:
    """Jobs that send data all the time. CPU seconds of judging are ``whole_s``, and ``look_s`` by the least rows of an
    incremental evaluation; ``names`` are the ranks that full evaluations and newest steps name."""

    def __init__(
        self,
        *,
        period_s: float = 1.5,
        share: float = LEAST_SHARE,
        jobs: str = "j",
        whole_s: float = 0.4,
        look_s: Callable[[int], float] = lambda rows: 0.02,
        cores_are_full: Callable[[], bool] | None = None,
    ) -> None:
        self.now, self.used, self.whole_s, self.look_s = BEGAN, 0.0, whole_s, look_s
        self.kind = "straggler"
        self.why: dict[str, Any] = {}
        self.names: dict[str, tuple[int, ...]] = {"whole": (), "newest": ()}
        self.judged: list[tuple[float, str]] = []
        self.rows: list[int] = []
        clock, cpu = (lambda: self.now), (lambda: self.used)
        self.judging = Judging(period_s, share, clock=clock, cpu=cpu, cores_are_full=cores_are_full)
        self.judging.judge = self._judge
        self.jobs = {name: self._job(name) for name in jobs}
        components = collector(self.jobs, lambda: self.now)
        components.cores_are_full = cores_are_full or components.cores_are_full
        self.watch = Watch(components, self.judging, never_ends)

    def until(self, seconds: float) -> list[tuple[float, str]]:
        """What was judged, and when, up to then."""
        _loop().run_until_complete(self._until(BEGAN + seconds))
        found, self.judged = self.judged, []
        return found

    async def _until(self, end: float) -> None:
        while self.now < end:
            self.now += LOOK_S
            for job in self.jobs.values():
                job.revision += 1
            await turn(self.watch)

    def _job(self, name: str) -> Any:
        def newest(_: Any, rows: int) -> Callable[[], Run]:
            self.rows.append(rows)
            return lambda: self._spent("newest", self.look_s(rows))

        return SimpleNamespace(
            id=name,
            revision=0,
            judged_revision=-1,
            sealed=False,
            judged=None,
            report=None,
            reported=0,
            events=[],
            history=StepHistory(),
            window=SimpleNamespace(last_step=41, still_ns=0, quiet_ns=0),
            stall=SimpleNamespace(urgent=lambda job: False, question=lambda job: None, timed_out=lambda job: False),
            counter_watch=SimpleNamespace(sees_a_change=lambda *_: False),
            counters=dict,
            verdicts=list,
            infer_steps=lambda: None,
            first_step=lambda report: None,
            last_step=lambda report: 41,
            reported_snapshot=lambda words: lambda: self._spent("whole", self.whole_s),
            newest=newest,
        )

    def _spent(self, which: str, cpu_s: float) -> Run:
        self.used += cpu_s
        self.judged.append((round(self.now - BEGAN, 2), which))
        return Run(Job(which), incremental=which == "newest")

    def _judge(self, run: Run) -> Report:
        return Report(
            JobSummary("j"), tuple(Verdict(self.kind, (rank,), **self.why) for rank in self.names[run.job.id])
        )
