"""What the page of running and of stored jobs asks for."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hindmost_collector.live.jobs import LiveJob
from hindmost_collector.serve.live_page import LivePage, condition_of
from hindmost_collector.store.parquet.store import ParquetStore

S = 10**9


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ParquetStore]:
    """A store with one job that is over."""
    made = ParquetStore(tmp_path, single=False)
    made.write_meta("a/b", {"job_id": "a/b", "command": "train.py", "world_size": 4, "started_ns": 7 * S})
    verdict = {"kind": "straggler", "ranks": [2], "cost_ratio": 0.3}
    made.write_file("a/b", "report.json", json.dumps({"job": {"id": "a/b"}, "verdicts": [verdict]}).encode())
    made.write_file("a/b", "report.html", b"<!doctype html>")
    yield made
    made.close()


def collector(store: ParquetStore | None = None, *jobs: LiveJob, agents: tuple[Any, ...] = ()) -> Any:
    """As much of one as a page reads."""
    return SimpleNamespace(
        jobs={job.id: job for job in jobs},
        clock=SimpleNamespace(now=lambda: 100 * S),
        ingest=SimpleNamespace(agents=dict(enumerate(agents))),
        recorder=SimpleNamespace(store=store, trouble=None),
    )


def test_stored_jobs_are_listed_with_verdict_and_cost(store: ParquetStore) -> None:
    """After those that run; each has its report as a page."""
    page = LivePage(collector(store, LiveJob("live", 0)))
    running, stored = page.jobs()
    assert (running["id"], running["state"]) == ("live", "starting")
    row = ("a/b", "stored", "straggler", [2], 0.3, 7.0)
    assert tuple(stored[name] for name in ("id", "state", "kind", "ranks", "cost_ratio", "started_s")) == row
    assert page.report_page("a/b") == b"<!doctype html>"
    assert page.report_page("nosuch") is None


def test_what_is_not_known_is_nothing() -> None:
    """A job without a report or steps; a job, a table and a rank that there are not."""
    page = LivePage(collector(None, LiveJob("live", 0)))
    for of in ("report", "steps"):
        body = page.answer(of, {"job": "live"})
        assert body is not None
        assert json.loads(gzip.decompress(body)) is None
    assert page.answer("nosuch", {"job": "live"}) is None
    assert page.answer("steps", {"job": "nosuch"}) is None
    assert page.state("nosuch") == {"job": "nosuch", "state": "unknown"}
    body = page.answer("rank", {"job": "live", "rank": "²"})
    assert body is not None
    assert json.loads(gzip.decompress(body)) == {"rank": -1, "gauges": [], "stack": None}


def test_a_job_is_said_to_have_ended_with_how_it_did() -> None:
    """A normal end needs no word."""
    job = LiveJob("live", 0)
    for code, why in ((0, ""), (3, "exit code 3")):
        job.exit_code = code
        assert condition_of(job, collector(None, job)) == ("ended", why, None)
