"""A job that stands still, before that has lasted for long enough to be called a hang.

The stacks of the ranks that others wait for take a second or two to come: they are asked for at half of a hang's
patience, so that the verdict has them when it is first told. And that is as soon as the patience is over, whatever the
pace of judging.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindmost_proto import telemetry_pb2 as wire

from hindmost_collector.settings import DEFAULT

if TYPE_CHECKING:
    from hindmost_collector.jobs import LiveJob
    from hindmost_collector.settings import Settings

#: Ranks whose stacks are asked for before there is a verdict.
_ASKED = 16


class StallWatch:
    """Of one job: acts once at half of the patience and once at its end, however long the job then stands still."""

    def __init__(self, settings: Settings = DEFAULT) -> None:
        self._settings = settings
        self._asked = self._ripe = 0  # since when the job stood still, the last time that this was done

    def question(self, job: LiveJob) -> wire.Zoom | None:
        """What to ask the agents; ``None`` while the job goes on, and where that was asked."""
        since = job.window.newest_ns
        if since == self._asked or job.window.quiet_ns < self._patience_ns(job) / 2:
            return None
        self._asked = since
        absent = job.window.absent()[:_ASKED]
        return wire.Zoom(job_id=job.id, ranks=absent, stacks=True) if absent else None

    def ripe(self, job: LiveJob) -> bool:
        """Whether the job is to be judged now: true once, when it has stood still for as long as a hang does."""
        since, patience = job.window.newest_ns, self._patience_ns(job)
        if since == self._ripe or job.window.quiet_ns < patience or job.window.waited_ns() < patience:
            return False
        self._ripe = since
        return True

    def _patience_ns(self, job: LiveJob) -> float:
        """As the detector's; without end where the job was not judged yet."""
        if job.report is None:
            return float("inf")
        p99 = (job.report["job"].get("step_ms") or {}).get("p99") or 0.0
        return max(self._settings.hang_seconds * 1e9, self._settings.hang_steps * p99 * 1e6)
