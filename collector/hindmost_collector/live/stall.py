"""A stopped job, before the stop lasts long enough to be called a hang.

Stacks of the ranks that others wait for take up to a second or two to arrive. They are requested at half of a hang's
patience, so that the first verdict has them. That verdict comes as soon as the patience is over, whatever the pace of
evaluation, and once more when late stacks arrive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from hindmost_judge.settings import DEFAULT
from hindmost_proto import telemetry_pb2 as wire

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hindmost_judge.settings import Settings

    from hindmost_collector.live.window import Window

#: Ranks whose stacks are requested before there is a verdict.
_ASKED = 16
#: From and until these shares of the patience, agents' data is evaluated at once: it may be what triggers the request,
#: the verdict or its stack line.
_HASTE = (0.25, 2.0)


class Stalling(Protocol):
    """What is read of a live job."""

    id: str
    window: Window
    report: Mapping[str, Any] | None


class StallWatch:
    """The watch over one job: acts at half of the patience and at its end, once each, however long the stop lasts."""

    def __init__(self, settings: Settings = DEFAULT) -> None:
        self._settings = settings
        self._asked = self._ripe = 0  # since when the job was stopped, the last time that this was done
        self._looked_at: list[int] = []  # ranks whose stacks were asked for
        self._awaited = False  # and are not all there yet, though the patience is over

    def question(self, job: Stalling) -> wire.Zoom | None:
        """What to ask the agents; ``None`` while the job goes on, and where that was asked."""
        since = job.window.newest_ns
        if since == self._asked or job.window.quiet_ns < self._patience_ns(job) / 2:
            return None
        self._asked = since
        self._looked_at = job.window.absent()[:_ASKED]
        return wire.Zoom(job_id=job.id, ranks=self._looked_at, stacks=True) if self._looked_at else None

    def ripe(self, job: Stalling) -> bool:
        """Whether the job is to be judged now: after a hang's patience, and when all requested stacks are there; true
        once each."""
        since, patience = job.window.newest_ns, self._patience_ns(job)
        if job.window.quiet_ns < patience or job.window.waited_ns() < patience:
            return False
        before, self._awaited = self._awaited, not job.window.stacked(since).issuperset(self._looked_at)
        if since == self._ripe:
            return before and not self._awaited
        self._ripe = since
        return True

    def in_haste(self, job: Stalling) -> bool:
        """Whether the next word on this job is worth looking at as soon as it comes."""
        quiet, patience = job.window.quiet_ns, self._patience_ns(job)
        return job.window.waiting and _HASTE[0] * patience <= quiet < _HASTE[1] * patience

    def _patience_ns(self, job: Stalling) -> float:
        """As the detector's; without end where the job was not judged yet."""
        if job.report is None:
            return float("inf")
        p99 = (job.report["job"].get("step_ms") or {}).get("p99") or 0.0
        return self._settings.patience_ns(p99 * 1e6)
