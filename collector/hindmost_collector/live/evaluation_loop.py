"""The loop that judges running jobs: where their verdicts go, and when a job is over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hindmost.errors import one_line
from hindmost_proto import telemetry_pb2 as wire

from hindmost_collector.live.evaluation_schedule import EVERY_S
from hindmost_collector.live.notification import Notification
from hindmost_collector.live.verdicts import VerdictLog, event_trace_request, line

if TYPE_CHECKING:
    from hindmost_collector.components import Components
    from hindmost_collector.live.evaluation_schedule import Judging
    from hindmost_collector.live.jobs import LiveJob

log = logging.getLogger(__name__)

#: How often is looked whether a job is to be judged; and how often that and a tick come where a job may hang.
LOOK_S, HASTE_S = 0.25, 0.05
#: What agents are asked comes at their next tick, with all that they have read until then: the cause may be in it.
ANSWER_S = 0.5
#: The first of them while cores are full.
FULL_LOOK_S = 2.0
#: A job without data for this long is over; if all ranks are gone, a tenth of it is enough.
SILENCE_NS = 300_000_000_000


class Watch:
    """Judges a collector's jobs while they run, until it is cancelled; ``end`` writes down one that is over."""

    def __init__(self, components: Components, judging: Judging, end: Callable[[LiveJob], Awaitable[None]]) -> None:
        self._components, self._judging, self._end_of = components, judging, end
        self._verdicts: dict[str, VerdictLog] = {}
        self._one_at_a_time = asyncio.Lock()
        self.full_evaluations: dict[
            str, asyncio.Task[None]
        ] = {}  # windows being judged; of those that cost much one at a time
        self.sealing: asyncio.Task[None] | None = None  # of a job that is over, until that is written down
        self._waits_for_stacks: set[str] = set()  # jobs that go on, a verdict of which waits for stacks
        self._failing: set[str] = set()  # jobs of which it is in the log that they cannot be judged
        self._looked: dict[str, dict[str, int]] = {}  # when each job's newest steps were looked at last
        #: What each job's counters showed, and after how many ticks and reports, which alone change that.
        self._watched: dict[str, tuple[tuple[int, int], bool]] = {}

    def pause_s(self, usual_s: float) -> float:
        """How long to wait before the next evaluation: less where a job may hang."""
        jobs = self._components.jobs.values()
        return HASTE_S if any(job.stall.urgent(job) for job in jobs) else usual_s

    async def run(self) -> None:
        """Look, judge, and seal what is over; for ever."""
        try:
            while True:
                full = self._components.cores_are_full()
                await asyncio.sleep(self.pause_s(FULL_LOOK_S if full else self._judging.pause_s(LOOK_S)))
                await self.round()
                self.seal_finished()
        finally:
            for task in (*self.full_evaluations.values(), self.sealing):
                if task:
                    task.cancel()

    async def through(self) -> None:
        """Wait for windows that are being judged."""
        if self.full_evaluations:
            await asyncio.wait(self.full_evaluations.values())

    async def round(self) -> None:
        """One turn of each job that is to be judged."""
        for ended in [name for name, whole in self.full_evaluations.items() if whole.done()]:
            with self._alone(ended):
                self.full_evaluations.pop(ended).result()
        for job in sorted(self._components.jobs.values(), key=lambda job: self._judging.turn(job.id)):
            if not job.sealed and job.judged_revision != job.revision:
                with self._alone(job.id):
                    await self._round_of(job)

    @contextlib.contextmanager
    def _alone(self, job: str) -> Iterator[None]:
        """What fails of a job leaves the others judged."""
        try:
            yield
        except Exception:
            if job not in self._failing:
                log.exception("job %s cannot be judged; this is tried again", one_line(job))
            self._failing.add(job)

    async def _round_of(self, job: LiveJob) -> None:
        self._ask(job.id, job.stall.question(job))
        due = self._judging.due(job.id, job.window.still_ns / 1e9)
        due = due and (not self._components.recorder.writing or self._judging.overdue(job.id))
        at_once = job.stall.timed_out(job) | self._answered(job) | self._changed(job)
        if due or at_once:
            await self.turn(job, whole=at_once)

    def _answered(self, job: LiveJob) -> bool:
        """Whether the first stacks came that a verdict asked for: once for each, as a full evaluation costs much."""
        answered = job.id in self._waits_for_stacks and job.window.answered
        if answered:
            self._waits_for_stacks.discard(job.id)
        return answered

    def _changed(self, job: LiveJob) -> bool:
        """Whether a rank seems slow or well again by its counters, which full cores would show late."""
        if not self._components.cores_are_full():
            return False
        before, change = self._watched.get(job.id, (None, False))
        if before != (news := (job.revision, job.reported)):
            change = job.counter_watch.sees_a_change(dict(job.counters()), job.verdicts(), job.reported)
            self._watched[job.id] = news, change
        return change and self._judging.recheck(job.id)

    async def turn(self, job: LiveJob, *, whole: bool) -> None:
        """Judge the window of a job, the ``whole`` of it whatever that costs where the job may hang.

        Otherwise, if that costs much or is under way, only the newest steps are evaluated, and the full evaluation
        runs in parallel.
        """
        name, judging = job.id, self._judging
        looking = not whole and (judging.costly(name) or name in self.full_evaluations)
        newest = job.newest(self._components.decoder.words, judging.rows(name)) if looking else None
        if newest is None:
            if looking and judging.costly(name) and not judging.full_due(name):
                return  # the step time is unknown: nothing to evaluate meanwhile
            if name in self.full_evaluations:
                await self.full_evaluations[name]
            self.full_evaluations[name] = asyncio.create_task(self._judge(job))
            done, _ = await asyncio.wait([self.full_evaluations[name]], timeout=EVERY_S / 2)
            if done:
                self.full_evaluations.pop(name).result()
            return
        seen = self._evaluated_until(job)
        news = await asyncio.to_thread(judging.evaluate_newest, name, newest, show=job.history)
        if news is False:
            job.judged = seen
        if news is not None and not job.sealed:
            self._looked[name] = seen
        if not self.full_evaluations and judging.full_due(name):
            self.full_evaluations[name] = asyncio.create_task(self._judge(job, concurrent=True))

    def _evaluated_until(self, job: LiveJob) -> dict[str, Any]:
        """When, and up to which step, a job is looked at now; ``None`` where its steps are not known by number."""
        job.judged_revision = job.revision
        job.infer_steps()
        last = job.window.last_step
        return {"time_ns": self._components.clock.now(), "last_step": last if last >= 0 else None}

    async def _judge(self, job: LiveJob, *, concurrent: bool = False) -> None:
        """Run a full evaluation of a job, and report what is new."""
        components, seen = self._components, self._evaluated_until(job)
        components.bound_window(job)
        snapshot, quiet_ns = job.reported_snapshot(components.decoder.words), job.window.quiet_ns
        report = await asyncio.to_thread(
            self._judging.judged, job.id, snapshot, concurrent=concurrent, show=job.history
        )
        if report is None or job.sealed:
            return
        log = self._verdicts.setdefault(job.id, VerdictLog())
        steps = {"first_step": job.first_step(report), "last_step": job.last_step(report)}
        events = list(log.update(report["verdicts"], components.clock.now(), **steps))
        report["verdicts"] = log.standing(report["verdicts"])
        job.judged = self._confirmed(job, seen, changed=bool(events))
        job.events.extend(events)
        self._notify(job.id, events, report)
        if events and components.recorder.store:
            components.shielded.begin(self._write_down(job.id, [line(event) for event in events]))
        questions = [question for event in events if (question := event_trace_request(job.id, event)) is not None]
        for question in questions:
            self._ask(job.id, question)
            if question.stacks and question.last_step:
                self._waits_for_stacks.add(job.id)
                job.window.answered = False
        if questions:
            self._judging.again(job.id, ANSWER_S)
        if log.doubtful:
            self._judging.again(job.id, EVERY_S)
        job.report, job.judged_quiet_ns = report, quiet_ns
        self._failing.discard(job.id)
        job.reported += 1

    def _confirmed(self, job: LiveJob, seen: Mapping[str, int], *, changed: bool) -> Mapping[str, int]:
        """Until when a report, ``seen`` to hold then and reported now, was seen to last: incremental evaluations went
        on meanwhile.

        They confirm the previous report, unless they name the same ranks as this one.
        """
        looked = self._looked.get(job.id, seen) if self._judging.settled(job.id) else seen
        known = [seen, looked] if changed or not job.judged else [seen, looked, job.judged]
        return max(known, key=lambda one: one["time_ns"])

    def _notify(self, job: str, events: Iterable[Mapping[str, Any]], report: Mapping[str, Any]) -> None:
        for event in events if self._components.outlets else ():
            one = Notification.of(job, event, report, self._components.definitions.pods.get(job))
            for outlet in self._components.outlets:
                outlet.put(one)

    def ended(self, job: LiveJob) -> None:
        """Notify of a job that is over and judged as a whole: its verdicts are closed."""
        log = self._verdicts.pop(job.id, None) or VerdictLog()
        if self._components.outlets and job.report is not None:
            self._notify(job.id, log.ended(job.report["verdicts"], self._components.clock.now()), job.report)

    def _ask(self, job: str, question: wire.EventTraceRequest | None) -> None:
        if question is not None:
            self._components.ingest.ask(job, question)

    async def _write_down(self, job: str, lines: list[str]) -> None:
        """Append verdicts, one judging after the other; a hanging disk blocks nothing else."""
        recorder = self._components.recorder
        assert recorder.store is not None  # noqa: S101 - for the type checker
        async with self._one_at_a_time:
            try:
                for text in lines:
                    await asyncio.to_thread(recorder.store.append_line, job, "verdicts.jsonl", text)
            except OSError as error:
                recorder.failing = recorder.failing or error.strerror or str(error)

    def seal_finished(self) -> None:
        """Have each job that is over sealed, one after the other, while others are judged on."""
        if self.sealing:
            if not self.sealing.done():
                return
            self.sealing.result()
        now = self._components.clock.now()
        jobs = [job for job in self._components.jobs.values() if not self._ends_with_stdin(job)]
        over = [job for job in jobs if now - job.heard_ns > SILENCE_NS / (10 if job.over else 1)]
        self.sealing = asyncio.create_task(self._seal(over[0])) if over else None

    def _ends_with_stdin(self, job: LiveJob) -> bool:
        """Whether the process at the other end of stdin says when a job is over: its own, and all of one recording."""
        options = self._components.options
        return options.exit_when_stdin_closes and bool(options.out or job.id == options.job_id)

    async def _seal(self, job: LiveJob) -> None:
        """Judge, once and whole, a job that is over, and forget it."""
        await self._end_of(job)
        self.ended(job)
        self._looked.pop(job.id, None)
        self._watched.pop(job.id, None)
        self._waits_for_stacks.discard(job.id)
        self._failing.discard(job.id)
        self._judging.forget(job.id)
