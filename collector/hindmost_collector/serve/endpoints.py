"""What each HTTP endpoint answers: /metrics, reports, jobs, health."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from hindmost_proto.exposition import JOB_LABEL
from prometheus_client import generate_latest

from hindmost_collector.live.jobs import HUNG, RUNNING, Contact
from hindmost_collector.options import LEVELS
from hindmost_collector.serve.exposition import CORE, JOB, RANK, fitting, of_process
from hindmost_collector.serve.http import Site
from hindmost_collector.serve.job_metrics import JobPage
from hindmost_collector.serve.live_page import LivePage
from hindmost_collector.serve.own_metrics import of_agents, of_collector, torn

if TYPE_CHECKING:
    from hindmost_collector.components import Components
    from hindmost_collector.live.jobs import LiveJob


class Endpoints(Site):
    """Reads a running collector from another thread."""

    def __init__(self, parts: Components) -> None:
        self._parts = parts
        self._jobs, self._remote_jobs = JobPage(), JobPage()
        self.live: LivePage = LivePage(parts)
        self._registry = of_process(parts.lag.histogram)
        self._one_at_a_time = threading.Lock()

    def metrics(self) -> bytes:
        """The whole ``/metrics`` page."""
        parts = self._parts
        with self._one_at_a_time:
            jobs, contact = self._jobs_now()
            ranks = self._jobs.count(jobs)
            counts = parts.nodes.counts()
            counts = (*counts[:RANK], counts[RANK] + ranks, counts[CORE])
            wanted = LEVELS.index(parts.options.metrics_level)
            level = fitting(wanted, counts, parts.options.metrics_series)
            parts.withheld_series = sum(counts[level + 1 : wanted + 1])
            over = {job.id for job in jobs if contact.state(job) not in {RUNNING, HUNG}}
            pages = [
                self._jobs.text(jobs, contact, level, parts.definitions.pods),
                of_agents(parts),
                of_collector(parts),
            ]
            if level > JOB:
                pages.append(parts.nodes.text(level, contact.lost, over))
            return self._labelled("".join(pages)).encode() + generate_latest(self._registry)

    def jobs_text(self) -> str:
        """The part of the page that is about jobs, ranks, verdicts and agents."""
        with self._one_at_a_time:
            text = self._remote_jobs.text(*self._jobs_now(), pods=self._parts.definitions.pods)
            return self._labelled(text + of_agents(self._parts))

    def _jobs_now(self) -> tuple[list[LiveJob], Contact]:
        parts = self._parts
        return list(parts.jobs.values()), Contact(list(parts.ingest.agents.values()), parts.clock.now())

    def _labelled(self, text: str) -> str:
        """The text with the label of jobs that is set; within a value a quote is escaped, so none is taken for one."""
        label = self._parts.options.job_label
        if label == JOB_LABEL:
            return text
        return text.replace(f'{{{JOB_LABEL}="', f'{{{label}="').replace(f',{JOB_LABEL}="', f',{label}="')

    def forget(self, job: str) -> None:
        """A job is over: stop showing it."""
        with self._one_at_a_time:
            self._jobs.forget(job)
            self._remote_jobs.forget(job)

    def jobs(self) -> list[dict[str, Any]]:
        return self.live.jobs()

    def newest(self, name: str | None) -> dict[str, Any] | None:
        """What ``hindmost top`` shows of a job, or of the only one."""
        return self.live.tables.picture(name)

    def report(self, name: str | None) -> dict[str, Any] | None:
        """The newest report of a job, or of the only one; the stored one of a job that is over; None when none is."""
        jobs = self._parts.jobs
        job = jobs.get(name) if name else next(iter(list(jobs.values())), None)
        if job is None:
            known = self.live.stored(name, "report.json") if name else None
            return known if known and known["job"]["id"] == name else None
        report = job.report_until_now()
        if report is None:
            return None
        return {**report, "judged": job.judged, "recording": self._parts.recorder.trouble}

    def owner(self, name: str) -> str | None:
        """The user who runs a job, or ran the stored one; None where that is not known."""
        return self._parts.definitions.user(name) or self.live.stored_user(name)

    def ready(self) -> str | None:
        """Why this collector is not ready; None when it is."""
        if not self._parts.ready:
            return "starting or stopping"
        trouble = self._parts.recorder.trouble
        return f"recording fails: {trouble}" if trouble else None

    def damage(self) -> list[str]:
        """What is lost and stays so, a line each: no reason to send agents elsewhere."""
        return [f"torn, left out by every reader: {path}" for path in torn(self._parts)]
