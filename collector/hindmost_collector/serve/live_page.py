"""What the page of a running job asks for: its state each second, and what changed when it did."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hindmost.errors import HindmostError
from hindmost_judge.verdict.schema import STOPS

from hindmost_collector.live.jobs import ENDED, HUNG, LOST, RUNNING, Contact
from hindmost_collector.page import data
from hindmost_collector.report.verdict_lines import waited
from hindmost_collector.serve.live_tables import LiveTables

if TYPE_CHECKING:
    from hindmost_collector.components import Components
    from hindmost_collector.live.jobs import LiveJob

#: Answers that are kept for other pages with the same question.
_KEPT = 64
#: Tables of communication, nodes and GPUs are this old at most, s.
_TABLES_S = 10.0
#: Stored jobs that are listed.
STORED = 200


class Condition(NamedTuple):
    """How a job is, what else to say of that, and how old the newest word of its agents is, ns; None: there is none."""

    state: str
    why: str
    age_ns: int | None


#: A job that runs and of which there is no report yet.
STARTING = "starting"


def condition_of(job: LiveJob, parts: Components) -> Condition:
    """One of :data:`hindmost_collector.live.jobs.STATES`, or ``STARTING``."""
    contact = Contact(list(parts.ingest.agents.values()), parts.clock.now())
    age = contact.age_ns(job)
    state = ENDED if job.exit_code is not None else contact.state(job)
    why, lost = "", sorted(contact.lost_of(job))
    if state == ENDED:
        code = "" if not job.exit_code else f"exit code {job.exit_code}"
        why = str(((job.report or {}).get("job") or {}).get("ended") or code)
    elif state == LOST:
        why = "no agent has sent anything" + (f" for {age / 1e9:.0f} s" if age is not None else "")
    elif lost:
        why = f"no contact with {', '.join(lost[:3])}{f' and {len(lost) - 3} more nodes' if len(lost) > 3 else ''}"
    return Condition(STARTING if state == RUNNING and job.report is None else state, why, age)


class LivePage:
    """Reads a running collector from the threads that serve."""

    def __init__(self, parts: Components, condition: Callable[[LiveJob], Condition] | None = None) -> None:
        self._parts, self.tables = parts, LiveTables(parts)
        self._condition = condition or (lambda job: condition_of(job, parts))
        self._kept: OrderedDict[tuple[Any, ...], tuple[Any, bytes]] = OrderedDict()
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, int], dict[str, Any]] = {}  # of stored jobs, by when they were written to last

    def job(self, name: str | None) -> LiveJob | None:
        """The running job of that name, or the first."""
        jobs = self._parts.jobs
        return jobs.get(name) if name else next(iter(list(jobs.values())), None)

    def state(self, name: str | None) -> dict[str, Any]:
        """How a job is now, some hundred bytes: sent each second to every page that is open."""
        job = self.job(name)
        if job is None:
            return {"job": name, "state": "unknown" if name else "waiting"}
        job.history.watched = time.monotonic()
        state, why, age_ns = self._condition(job)
        pace = job.history.pace() if state == "running" else None
        report = job.report_until_now() if state == HUNG else None
        return {
            "job": job.id,
            "command": job.command,
            "state": state,
            "why": why,
            "step": job.window.last_step if job.window.last_step >= 0 else job.history.last_step,
            "steps_s": pace[0] if pace else None,
            "work_s": pace[1] if pace else None,
            "waited": next((waited(one) for one in report["verdicts"] if one["kind"] in STOPS), "") if report else "",
            "judged_s": job.judged_s(self._parts.clock.now()),
            "age_s": None if age_ns is None else round(max(age_ns, 0) / 1e9, 1),
            "started_s": job.started_ns / 1e9,
            "ranks": len(job.window.ranks()["rank"]),
            "world_size": job.world_size,
            "nodes": job.window.nodes,
            "recording": self._parts.recorder.trouble,
            "revisions": [job.reported, job.history.revision, len(self._parts.jobs)],
        }

    def answer(self, what: str, query: Mapping[str, str]) -> bytes | None:
        """JSON, gzipped; None where there is nothing of that name."""
        made = self._ANSWERS.get(what)
        job = self.job(query.get("job"))
        if made is None or job is None:
            return None
        now = time.monotonic()
        stale = now // _TABLES_S if what in ("communication", "machines") else 0
        key = what, job.id, *sorted(query.items())
        revision = job.reported, job.history.revision, stale
        with self._lock:
            known = self._kept.get(key)
            if known is not None and known[0] == revision:
                self._kept.move_to_end(key)
                return known[1]
        found = made(self, job, query)
        body = gzip.compress(json.dumps(found, separators=(",", ":")).encode(), 1)
        with self._lock:
            self._kept[key] = revision, body
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return body

    def _report(self, job: LiveJob, _: Mapping[str, str]) -> Any:
        if job.report is None:
            return None
        return {"report": data.of_report(job.report, path=self.path(job.id)), "ranks": data.of_ranks(job.report)}

    def _steps(self, job: LiveJob, query: Mapping[str, str]) -> Any:
        first, last = range_of(query.get("steps"))
        return data.of_steps(job.history, job.window.nodes_of(), query.get("by", "node"), first, last)

    def _rank(self, job: LiveJob, query: Mapping[str, str]) -> Any:
        number = query.get("rank", "")
        rank = int(number) if number.isdecimal() else -1
        stack = job.window.stack(rank)
        return {"rank": rank, "gauges": data.of_gauges(job.history, rank), "stack": stack}

    _ANSWERS: Mapping[str, Callable[[LivePage, LiveJob, Mapping[str, str]], Any]] = {
        "report": _report,
        "steps": _steps,
        "rank": _rank,
        "communication": lambda self, job, _: data.of_communication(job.snapshot(self._parts.decoder.words)()),
        "machines": lambda self, job, _: self.tables.machines(job),
        "verdicts": lambda _, job, __: list(job.events),
    }

    def jobs(self) -> list[dict[str, Any]]:
        """Running jobs, those in trouble first, then the stored ones, newest first."""
        found = [_row(job, *self._condition(job)[:2]) for job in list(self._parts.jobs.values())]
        running = {one["id"] for one in found}
        stored = [one for one in self._stored() if one["id"] not in running]
        return [*sorted(found, key=lambda one: (one["state"] != "hung", -(one["cost_ratio"] or 0.0))), *stored]

    def _stored(self) -> list[dict[str, Any]]:
        listed = getattr(self._parts.recorder.store, "recent_jobs", None)
        if listed is None:
            return []
        try:
            recent = listed(STORED)
        except (OSError, ValueError):  # readiness says what is wrong with the store
            return []
        self._rows = {
            (name, written): self._rows.get((name, written))
            or stored_row(name, self.stored(name, "meta.json") or {}, self.stored(name, "report.json"))
            for name, written in recent
        }
        return list(self._rows.values())

    def stored_user(self, name: str) -> str | None:
        """Who ran a stored job; None where that is not known."""
        found = (self.stored(name, "meta.json") or {}).get("user")
        return found if isinstance(found, str) else None

    def stored(self, name: str, file: str) -> dict[str, Any] | None:
        """What a JSON file of a stored job holds; None where there is none."""
        try:
            found: dict[str, Any] | None = json.loads(self._file(name, file) or b"null")
        except ValueError:
            return None
        return found

    def _file(self, name: str, file: str) -> bytes | None:
        store = self._parts.recorder.store
        try:
            return store.read_file(name, file) if store and name else None
        except (OSError, ValueError, HindmostError):  # no such job, or the store is away: readiness says which
            return None

    def path(self, name: str) -> str:
        """Where a job is recorded, as commands take it; empty where it is not."""
        return self.tables.path(name)

    def report_page(self, name: str) -> bytes | None:
        """The page of a job that is over, as it was stored; None where there is none."""
        return self._file(name, "report.html")


def range_of(text: str | None) -> tuple[int | None, int | None]:
    """``120-300``, ``120-`` or ``120`` as steps; None for what is not a number."""
    low, dash, high = (text or "").partition("-")
    first = int(low) if low.isdecimal() else None
    last = int(high) if high.isdecimal() else None
    return first, last if dash else first


def _row(job: LiveJob, state: str, why: str) -> dict[str, Any]:
    verdicts = job.verdicts()
    first = verdicts[0] if verdicts else {}
    return {
        "id": job.id,
        "command": job.command,
        "world_size": job.world_size,
        "last_step": job.window.last_step,
        "state": state,
        "why": why,
        **_of_verdict(first),
        "started_s": job.started_ns / 1e9,
    }


def _of_verdict(one: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": one.get("kind"), "ranks": list(one.get("ranks") or ())[:8], "cost_ratio": one.get("cost_ratio")}


def stored_row(name: str, meta: Mapping[str, Any], report: Mapping[str, Any] | None) -> dict[str, Any]:
    """The same of a stored job, by its ``meta.json`` and ``report.json``."""
    first = ((report or {}).get("verdicts") or [{}])[0]
    started = meta.get("started_ns")
    return {
        "id": name,
        "command": meta.get("command"),
        "world_size": meta.get("world_size"),
        "last_step": None,
        "state": "stored",
        "why": "" if report else "no report",
        **_of_verdict(first),
        "started_s": started / 1e9 if isinstance(started, (int, float)) else None,
    }
