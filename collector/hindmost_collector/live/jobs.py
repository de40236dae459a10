"""A job while it runs: its window, its counters, its latest report and verdicts, its state, and the stall watch.

A job is running, hung, ended or lost; it is lost when all of its nodes lost contact.

Before a stop lasts long enough to be called a hang, the stacks of the ranks that others wait for are requested. They
take up to a second or two to arrive, so that is done at half of a hang's patience, and the first verdict has them. That
verdict comes as soon as the patience is over, whatever the pace of evaluation, and once more when late stacks arrive.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from hindmost_judge import model
from hindmost_judge.model import Run, world_size
from hindmost_judge.settings import DEFAULT, Settings
from hindmost_judge.verdict import missing_ranks
from hindmost_judge.verdict.schema import STOPS, waiting
from hindmost_proto import telemetry_pb2 as wire

from hindmost_collector.ingest.chunk import Chunk
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.row_builder import Words
from hindmost_collector.ingest.session import AgentSession
from hindmost_collector.live.counter_watch import CounterWatch
from hindmost_collector.live.totals import RankTotals
from hindmost_collector.live.window import INCREMENTAL_ROWS, Window, reported_by_all
from hindmost_collector.page.history import StepHistory

#: A job that does nothing for so long, ns, may stand still.
_STANDS_NS = 1_000_000_000
#: Changes of verdicts that are remembered of a running job.
_EVENTS = 200


class LiveJob:
    """One job in memory. Rebuilt from the next minutes of data when the collector restarts."""

    def __init__(self, job: str, now_ns: int, command: str | None = None, settings: Settings = DEFAULT) -> None:
        self.id, self.command = job, command
        self.started_ns = self.heard_ns = now_ns
        self.history = StepHistory()
        self.events: deque[Mapping[str, Any]] = deque(maxlen=_EVENTS)
        self.reported = 0  # how many reports there were
        self.window, self.totals = Window(), RankTotals()
        self.settings, self.stall, self.counter_watch = settings, StallWatch(settings), CounterWatch()
        self.window.command, self.window.started_ns = command, now_ns
        self.report: Mapping[str, Any] | None = None
        self.judged: Mapping[str, Any] | None = None  # when, up to which step, the report was seen to hold
        self.judged_quiet_ns = 0  # for how long the job stalled when its report was made
        self.exit_code: int | None = None
        self.ended_ns: int | None = None  # when its command ended; agents may be waited for after that
        self.interrupted_by: str | None = None
        self.no_ring: str | None = None
        self.entered = False
        self.revision = 0
        self.judged_revision = 0
        self._lives: dict[int, int] = {}
        self.sealed = False
        self.calls_per_step: int | None = None

    def add(self, chunk: Chunk, words: Words, definitions: Definitions, now_ns: int) -> None:
        """Take a tick in."""
        deque(self.adding(chunk, words, definitions, now_ns), maxlen=0)

    def adding(self, chunk: Chunk, words: Words, definitions: Definitions, now_ns: int) -> Iterator[None]:
        """The same in two parts: each takes long where ranks are many."""
        self.window.add(chunk, definitions)
        yield
        self.totals.add(chunk, words)
        states = chunk.plain.get("rank_states")
        if states is not None:
            self._lives.update(zip(states["rank"].tolist(), states["life"].tolist(), strict=True))
        if chunk.coded or chunk.plain.keys() - {"clocks"}:
            self.heard_ns = now_ns
            self.revision += 1
        elif self.window.waiting:  # nothing new is what a hang looks like
            self.revision += 1

    @property
    def world_size(self) -> int | None:
        """As the ranks say; None before any has."""
        return world_size(self.window.ranks())

    @property
    def over(self) -> bool:
        """Whether every rank that was heard of is gone."""
        return bool(self._lives) and all(life != model.RUNNING for life in self._lives.values())

    def judged_s(self, now_ns: int) -> float | None:
        """How long ago its report was seen to hold; None where there is none."""
        return None if self.judged is None else (now_ns - self.judged["time_ns"]) / 1e9

    def report_until_now(self) -> Mapping[str, Any] | None:
        """The newest report; where the job stands still, its ranks have waited until their agents' last word."""
        seconds = (self.window.quiet_ns - self.judged_quiet_ns) / 1e9
        if self.report is None or self.sealed or seconds <= 0:
            return self.report
        waits = [
            {**one, "waited_s": one["waited_s"] + seconds * len(waiting(one))}
            if one["kind"] in STOPS and one.get("waited_s") and one.get("until_step") is None
            else one
            for one in self.report["verdicts"]
        ]
        return {**self.report, "verdicts": waits}

    def step_seconds(self) -> dict[str, float]:
        """``median`` and ``p99`` of step time over the window, and the ``ideal`` of the newest report: seconds, as far
        as they are known."""
        known = {"median": self._step_ms.get("p50"), "p99": self._step_ms.get("p99")}
        known["ideal"] = ((self.report or {}).get("what_if") or {}).get("ideal_step_ms")
        found = {name: value / 1e3 for name, value in known.items() if value is not None}
        measured = self.window.step_seconds()
        if measured.size:
            found |= zip(("median", "p99"), np.quantile(measured, (0.5, 0.99)).tolist(), strict=True)
        return found

    def counters(self) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
        """``(name, values by rank)`` of every counter, steps inferred where none are marked."""
        yield from self.totals
        yield from self.totals.inferred(self.calls_per_step).items()

    def infer_steps(self) -> None:
        """Learn how many collective calls make a step, where a job marks none."""
        if self.window.last_step < 0:
            self.calls_per_step = self.window.calls_per_step() or self.calls_per_step

    def last_step(self, report: Mapping[str, Any]) -> int:
        """The newest step of any rank; where none are marked, as a report that has just been made counts them."""
        marked = self.window.last_step
        return marked if marked >= 0 else (report["job"]["steps"] or 0) - 1

    def first_step(self, report: Mapping[str, Any]) -> int | None:
        """The first step that the window has of any rank; where none are marked, as the typical step's length tells."""
        marked, step_ms = self.window.first_step, (report["job"].get("step_ms") or {}).get("p50")
        if marked >= 0 or not step_ms:
            return marked if marked >= 0 else None
        return max(self.last_step(report) - int(self.window.lasts_ns / (step_ms * 1e6)), 0)

    @property
    def _step_ms(self) -> Mapping[str, float | None]:
        """The step of the newest report; empty where there is none."""
        return ((self.report or {}).get("job") or {}).get("step_ms") or {}

    @property
    def _step_ns(self) -> float:
        """The typical step of the newest report; 0 where that is unknown."""
        return (self._step_ms.get("p50") or 0.0) * 1e6

    def snapshot(self, words: Words) -> Callable[[], Run]:
        """What makes the window's run, as detectors take it, in any thread."""
        stopped = self.window.quiet_ns >= _STANDS_NS
        made = self.window.snapshot(self.id, words, self._step_ns, stopped=stopped)
        return lambda: missing_ranks.with_missing(made())

    def reported_snapshot(self, words: Words) -> Callable[[], Run]:
        """The same for the time that all ranks have reported.

        A single agent reports all ranks at once. In a stopped job each rank's last operation shows who holds it up."""
        made, window = self.snapshot(words), self.window
        if window.nodes < 2 or window.quiet_ns >= _STANDS_NS:
            return made
        step_ns, gone, begun = self._step_ns, window.gone, window.begun
        return lambda: reported_by_all(made(), step_ns, gone, begun)

    def newest(self, words: Words, least_rows: int = INCREMENTAL_ROWS) -> Callable[[], Run] | None:
        """The same for the newest steps, and at least so many rows; None while the step time is unknown."""
        if not self._step_ns:
            return None
        return self.window.snapshot(self.id, words, self._step_ns, newest=True, least_rows=least_rows)

    def verdicts(self) -> list[Mapping[str, Any]]:
        """The verdicts that still hold, most costly first; ``balanced`` where the newest report found all of them
        ended.

        That is reported only once enough steps for a judgement came since: fewer do not show how they are.
        """
        found = (self.report or {}).get("verdicts") or []
        standing = [one for one in found if one.get("until_step") is None]
        if standing or not found:
            return standing
        since, last = max(one["until_step"] for one in found), self.window.last_step
        well = last < 0 or last - since >= self.settings.min_steps  # a job that marks no steps has no last one
        return [{"kind": "balanced", "since_step": since}] if well else []


#: Ranks whose stacks are requested before there is a verdict.
_ASKED = 16
#: From and until these shares of the patience, agents' data is evaluated at once: it may be what triggers the request,
#: the verdict or its stack line.
_HASTE = (0.25, 2.0)


class StallWatch:
    """The watch over one job: acts at half of the patience and at its end, once each, however long the stop lasts."""

    def __init__(self, settings: Settings = DEFAULT) -> None:
        self._settings = settings
        self._asked = self._ripe = 0  # since when the job was stopped, the last time that this was done
        self._looked_at: list[int] = []  # ranks whose stacks were asked for
        self._awaited = False  # and are not all there yet, though the patience is over
        self._went_on = 0  # how long after the stop began the job was last seen to go on, ns

    def question(self, job: LiveJob) -> wire.EventTraceRequest | None:
        """What to ask the agents; ``None`` while the job goes on, and where that was asked."""
        since = job.window.since_ns
        if since == self._asked or job.window.quiet_ns < self._patience_ns(job) / 2:
            return None
        self._looked_at = job.window.absent()[:_ASKED]
        if not self._looked_at:  # it may be known later, from NCCL's RAS, who is waited for
            return None
        self._asked = since
        return wire.EventTraceRequest(job_id=job.id, ranks=self._looked_at, stacks=True)

    def timed_out(self, job: LiveJob) -> bool:
        """Whether the job is to be judged now: after a hang's patience, when all requested stacks are there, and when a
        job that is said to hang goes on; true once each."""
        since, patience = job.window.since_ns, self._patience_ns(job)
        if job.window.quiet_ns < patience or job.window.waited_ns() < patience:
            return self._goes_on(job, since - self._ripe)
        before, self._awaited = self._awaited, not job.window.stacked(since).issuperset(self._looked_at)
        if since == self._ripe:
            return before and not self._awaited
        self._ripe, self._went_on = since, 0
        return True

    def _goes_on(self, job: LiveJob, for_ns: int) -> bool:
        """At once, and where other ranks may still wait each time that it has gone on for twice as long."""
        said = any(verdict["kind"] == "hang" for verdict in job.verdicts())
        if not said or not self._ripe or for_ns <= 2 * self._went_on:
            return False
        self._went_on = for_ns
        return True

    def urgent(self, job: LiveJob) -> bool:
        """Whether the next word on this job is worth looking at as soon as it comes."""
        quiet, patience = job.window.quiet_ns, self._patience_ns(job)
        return job.window.waiting and _HASTE[0] * patience <= quiet < _HASTE[1] * patience

    def _patience_ns(self, job: LiveJob) -> float:
        """As the detector's; by the steps received where the job was not evaluated yet, once it stands."""
        if job.report is not None:
            p99 = (job.report["job"].get("step_ms") or {}).get("p99") or 0.0
            return self._settings.hang_timeout_ns(p99 * 1e6)
        least = self._settings.hang_timeout_ns(0.0)
        if job.window.quiet_ns < _HASTE[0] * least:
            return least
        return self._settings.hang_timeout_ns(job.step_seconds().get("p99", 0.0) * 1e9)


RUNNING, HUNG, ENDED, LOST = STATES = ("running", "hung", "ended", "lost")

#: A connected agent sends every 4 s or more often, on full cores every 8 s: then one message may be late by 7 s.
_SILENT_NS = 15_000_000_000
#: An agent whose stream broke off tries again at once, and then with longer and longer pauses.
_RETURNS_NS = 8_000_000_000


class Contact:
    """Which nodes are heard of at job time ``now_ns``."""

    def __init__(self, agents: Iterable[AgentSession], now_ns: int) -> None:
        self._agents: dict[str, list[AgentSession]] = defaultdict(list)
        for agent in agents:
            self._agents[agent.node].append(agent)
        self._now_ns = now_ns

    @property
    def lost(self) -> set[str]:
        """The nodes that had an agent and have none now."""
        return {node for node, agents in self._agents.items() if not any(map(self._reached, agents))}

    def lost_of(self, job: LiveJob) -> set[str]:
        """The nodes of a job's ranks from which no agent that serves this job is heard. One of its own leaves at its
        end."""
        serving = self._serving(job)
        return {
            node
            for node, agents in serving.items()
            if agents and not any(self._reached(agent) or (agent.departed and agent.job) for agent in agents)
        }

    def age_ns(self, job: LiveJob) -> int | None:
        """How old the newest word of the agents that serve a job is; ``None`` where it has none."""
        heard = [agent.last_heard_ns for agents in self._serving(job).values() for agent in agents]
        return self._now_ns - max(heard) if heard else None

    def _serving(self, job: LiveJob) -> dict[str, list[AgentSession]]:
        nodes = set(job.window.ranks()["node"].tolist())
        return {node: [one for one in self._agents.get(node, ()) if one.job in {job.id, ""}] for node in nodes}

    def state(self, job: LiveJob) -> str:
        """One of ``STATES``. A job is lost when all of its nodes are; its last verdict says nothing of it then."""
        if job.over or job.sealed:
            return ENDED
        lost = self.lost_of(job)
        if lost and len(lost) == len(set(job.window.ranks()["node"].tolist())):
            return LOST
        return HUNG if any(verdict["kind"] in STOPS for verdict in job.verdicts()) else RUNNING

    def _reached(self, agent: AgentSession) -> bool:
        if agent.departed:
            return False
        patience = _RETURNS_NS if agent.outbox is None else _SILENT_NS
        return self._now_ns - agent.last_heard_ns < patience
