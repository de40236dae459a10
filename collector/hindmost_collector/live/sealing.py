"""The end of a job: judge the whole recording once more, and write the report down."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import shlex
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from hindmost import __version__
from hindmost_judge.verdict import missing_ranks

from hindmost_collector import runtime
from hindmost_collector.page import document
from hindmost_collector.report import section_rows, sections
from hindmost_collector.store.meta import tuning

if TYPE_CHECKING:
    from hindmost_judge.model import Run
    from hindmost_judge.overview import Overview

    from hindmost_collector.components import Components
    from hindmost_collector.live.jobs import LiveJob
    from hindmost_collector.store.recorder import Store

log = logging.getLogger(__name__)


def note(components: Components, job: str, meta: dict[str, Any]) -> None:
    """Have what is known of a job as a whole written to its ``meta.json``."""
    live, options = components.job(job), components.options
    ours = job == options.job_id and bool(options.launcher)  # `hindmost run` started us as it starts the job
    known = {
        "job_id": job,
        "command": live.command or components.definitions.command(job),
        "user": components.definitions.user(job),
        "launcher": options.launcher if ours else None,
        "environment": tuning(os.environ) if ours else None,
        "world_size": live.world_size,
        "nodes": sorted(set(live.window.ranks()["node"].tolist())) or None,
        "version": __version__,
        "thresholds": components.settings.other(),
    }
    components.recorder.describe(job, {**known, **meta})


async def finish(components: Components, job: LiveJob, flush: Callable[[], Awaitable[None]]) -> dict[str, Any] | None:
    """Write the end of a job: meta.json and report.json. The report where it could not be written."""
    job.sealed = True
    note(components, job.id, {"started_ns": job.started_ns, **_end_of(components, job)})
    await flush()
    return await asyncio.to_thread(_seal, components, job)


def _end_of(components: Components, job: LiveJob) -> dict[str, Any]:
    """How and when a job ended, as ``meta.json`` and the judge have it."""
    how = {name: getattr(job, name) for name in ("exit_code", "interrupted_by", "no_ring", "entered")}
    return {**how, "ended_ns": job.ended_ns or components.clock.now(), "left": left(components, job.id)}


def left(components: Components, job: str) -> list[str]:
    """The nodes of which the agent that was heard last said goodbye."""
    agents = list(components.ingest.agents.values())  # other streams begin meanwhile
    serving = sorted((one for one in agents if one.job in {job, ""}), key=lambda one: one.last_heard_ns)
    return sorted(node for node, departed in {one.node: one.departed for one in serving}.items() if departed)


def _seal(components: Components, job: LiveJob) -> dict[str, Any] | None:
    """Write ``report.json`` and ``report.html``. The report where they could not be written, else None."""
    judged = components.judging.at_the_end(lambda: whole_run(components, job))
    if judged is None:
        return None
    run, found = judged
    report = job.report = found.to_dict()
    job.reported += 1
    store = components.recorder.store
    if store is None:
        return report
    whole = _with_sections(report, run, found.overview)
    page = partial(_page, whole, run, found.overview, shlex.quote(store.place(job.id)))
    return None if _written(store, job.id, whole, page) else report


def _written(store: Store, job: str, report: dict[str, Any], page: Callable[[], str]) -> bool:
    """Write ``report.json`` and then ``report.html``, which takes longer to make; whether the disk took them."""
    try:
        store.write_file(job, "report.json", json.dumps(_with_short_sections(report), indent=1).encode() + b"\n")
        store.write_file(job, "report.html", page().encode())
    except OSError as error:
        log.error("the report could not be written: %s", error.strerror or error)  # noqa: TRY400 - one line, no traceback
        return False
    return True


#: In a report that this collector had no time to replace.
PRELIMINARY = "hindmost was killed before it judged the whole recording: `hindmost report` on this directory does"


async def preliminary(components: Components, job: LiveJob) -> None:
    """Write the report of the last evaluation, where there was one: to be replaced by that of the whole recording."""
    store = components.recorder.store
    if store is not None and job.report is not None:
        report = {**job.report, "notes": [PRELIMINARY, *job.report.get("notes", ())]}
        page = partial(document.of_report, report, path=shlex.quote(store.place(job.id)))
        await asyncio.to_thread(_written, store, job.id, report, page)


#: Sections of ``report.json``: those of which the text at the end of a job has a line or a column, and no long ones.
_SECTIONS = ("wall_clock", "throughput", "limits", "advice", "phases", "efficiency", "not_measured")


def _with_sections(report: dict[str, Any], run: Run, seen: Overview | None) -> dict[str, Any]:
    """The report with all sections; without any where that fails, which costs no job its report."""
    try:
        return sections.added(report, section_rows.of(run, report, seen))
    except Exception:
        log.warning("the report has no sections", exc_info=True)
        return report


def _with_short_sections(report: dict[str, Any]) -> dict[str, Any]:
    if "sections" not in report:
        return report
    chosen = (*_SECTIONS, *(() if report["ranks"] else sections.OF_PROCESS))
    return {**report, "sections": {name: report["sections"][name] for name in chosen}}


def _page(report: dict[str, Any], run: Run, seen: Overview | None, path: str) -> str:
    """The report as a page; of its words alone where that fails, which costs no job its report."""
    try:
        return document.of_report(report, run, seen, path)
    except Exception:
        log.warning("report.html has no figures by step", exc_info=True)
        return document.of_report(report, path=path)


def whole_run(components: Components, job: LiveJob) -> Run:
    """All that was recorded; the window in memory where recording failed."""
    recorder = components.recorder
    if recorder.failing:
        return from_memory(components, job, f"recording stopped ({recorder.failing})")
    if recorder.store is None:
        return from_memory(components, job)
    try:
        runtime.give_memory_back()
        run = missing_ranks.with_missing(recorder.store.read(job.id))
    except Exception as error:  # noqa: BLE001 - readers of torn files raise errors of their own
        return from_memory(components, job, f"the recording cannot be read ({error})")
    job.window.let_go()  # judging a large job takes as much again
    runtime.give_memory_back()
    return run


def from_memory(components: Components, job: LiveJob, why: str = "") -> Run:
    """A job that is over, as far as its window reaches; ``why`` not all that was recorded, where it was."""
    run = job.snapshot(components.decoder.words)()
    end = _end_of(components, job)
    facts = dataclasses.replace(run.job, **{**end, "left": tuple(end["left"])})
    notes = (f"{why}: judged from the last minutes in memory",) if why else ()
    return dataclasses.replace(run, job=facts, notes=(*run.notes, *notes))
