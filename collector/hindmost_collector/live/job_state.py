"""The state of a job: running, hung, ended or lost, and which of its nodes lost contact."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hindmost_judge.verdict.schema import STOPS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hindmost_collector.ingest.session import AgentSession
    from hindmost_collector.live.jobs import LiveJob

RUNNING, HUNG, ENDED, LOST = STATES = ("running", "hung", "ended", "lost")

#: A connected agent sends every 4 s or more often; three of its messages may be late.
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
        """The nodes of a job's ranks from which no agent that serves this job is heard."""
        serving = self._serving(job)
        return {node for node, agents in serving.items() if agents and not any(map(self._reached, agents))}

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
        return HUNG if any(one["kind"] in STOPS for one in job.verdicts()) else RUNNING

    def _reached(self, agent: AgentSession) -> bool:
        if agent.departed:
            return False
        patience = _RETURNS_NS if agent.outbox is None else _SILENT_NS
        return self._now_ns - agent.last_heard_ns < patience
