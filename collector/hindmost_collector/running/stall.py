"""A job that stands still, before that has lasted for long enough to be called a hang.

The stacks of the ranks that others wait for take up to a second or two to come: they are asked for at half of a hang's
patience, so that the verdict has them when it is first told. And that is as soon as the patience is over, whatever the
pace of judging; once more when stacks come that were late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindmost_proto import telemetry_pb2 as wire

from hindmost_collector.settings import DEFAULT

if TYPE_CHECKING:
    from hindmost_collector.running.jobs import LiveJob
    from hindmost_collector.settings import Settings

#: Ranks whose stacks are asked for before there is a verdict.
_ASKED = 16
#: Shares of the patience from and until which what agents say of a job is looked at with haste: it may be the word that
#: makes the question, the verdict or the verdict's line.
_HASTE = (0.25, 2.0)


class StallWatch:
    """Of one job: acts at half of the patience and at its end, once each, however long the job then stands still."""

    def __init__(self, settings: Settings = DEFAULT) -> None:
        self._settings = settings
        self._asked = self._ripe = 0  # since when the job stood still, the last time that this was done
        self._looked_at: list[int] = []  # ranks whose stacks were asked for
        self._awaited = False  # and are not all there yet, though the patience is over

    def question(self, job: LiveJob) -> wire.Zoom | None:
        """What to ask the agents; ``None`` while the job goes on, and where that was asked."""
        since = job.window.newest_ns
        if since == self._asked or job.window.quiet_ns < self._patience_ns(job) / 2:
            return None
        self._asked = since
        self._looked_at = job.window.absent()[:_ASKED]
        return wire.Zoom(job_id=job.id, ranks=self._looked_at, stacks=True) if self._looked_at else None

    def ripe(self, job: LiveJob) -> bool:
        """Whether the job is to be judged now: when it has stood still for as long as a hang does, and when all stacks
        that were asked for are there; true once each."""
        since, patience = job.window.newest_ns, self._patience_ns(job)
        if job.window.quiet_ns < patience or job.window.waited_ns() < patience:
            return False
        before, self._awaited = self._awaited, not job.window.stacked(since).issuperset(self._looked_at)
        if since == self._ripe:
            return before and not self._awaited
        self._ripe = since
        return True

    def in_haste(self, job: LiveJob) -> bool:
        """Whether the next word on this job is worth looking at as soon as it comes."""
        quiet, patience = job.window.quiet_ns, self._patience_ns(job)
        return job.window.waiting and _HASTE[0] * patience <= quiet < _HASTE[1] * patience

    def _patience_ns(self, job: LiveJob) -> float:
        """As the detector's; without end where the job was not judged yet."""
        if job.report is None:
            return float("inf")
        p99 = (job.report["job"].get("step_ms") or {}).get("p99") or 0.0
        return self._settings.patience_ns(p99 * 1e6)
