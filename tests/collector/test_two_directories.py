"""Agents that move between collectors with a directory each: what is stored twice then, and how it is told apart."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import duckdb
import numpy as np
import pytest
from hindmost.cli import report
from hindmost.errors import UsageError
from hindmost_collector.constant import chosen
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.simulate.write import write
from hindmost_collector.store.run_directory import read_together


def test_what_was_not_acknowledged_is_doubled_and_no_more(collecting, fake_agent, tmp_path):
    """What the first collector took and had not acknowledged is in both directories; read together, steps are told
    apart by what the agent measured."""

    async def scenario():
        async with collecting(store=str(tmp_path / "a")) as first, collecting(store=str(tmp_path / "b")) as second:
            agent = fake_agent(first.addresses["grpc"])
            await agent.connect()
            for step in range(3):
                await agent.send(agent.batch(step))
            await agent.until_acked(3)
            first.recorder.last_flush += 600
            for step in range(3, 5):
                await agent.send(agent.batch(step))
            await agent.round_trip()
            await agent.close()
            agent.address = second.addresses["grpc"]
            await agent.connect()
            await agent.send(agent.batch(5))
            await agent.until_acked(6)
            await agent.close()

    asyncio.run(scenario())
    both = f"read_parquet('{tmp_path}/*/j/segments/steps/*.parquet')"
    counts = duckdb.sql(f"select step, count(*) from {both} group by step order by step").fetchall()  # noqa: S608
    assert counts == [(0, 2), (1, 2), (2, 2), (3, 4), (4, 4), (5, 2)]
    once = f"select distinct on (rank, step, kind, duration_ns) * from {both}"  # noqa: S608
    assert duckdb.sql(f"select count(*) from ({once})").fetchall() == [(12,)]  # noqa: S608
    together = read_together([tmp_path / "a/j", tmp_path / "b/j"])
    assert sorted(together.steps["step"].tolist()) == [step for step in range(6) for _ in range(2)]
    assert len(together.collectives["seq"]) == 12


def _parts(folder, *, size=8):
    """The run directories of a job of which each of two collectors saw half of the ranks; rank 6 is slow."""
    run = simulate(Scenario(size, 60, faults=(Fault("compute", (6,), 0.3),))).run
    for name, low in (("a", 0), ("b", size // 2)):
        mine = {
            table: chosen(one, (one["rank"] >= low) & (one["rank"] < low + size // 2)) if "rank" in one else one
            for table, one in run.tables().items()
        }
        mine["ranks"]["world_size"] = np.full(size // 2, size, np.int32)
        write(replace(run, **mine), folder / name, "run")
    return folder / "a", folder / "b"


def test_directories_of_one_job_are_reported_on_together(tmp_path):
    """Whom one half waits for may be in the other; without that nobody is cleared, and with it all ranks are told."""
    first, second = _parts(tmp_path)
    (alone,) = report.judged(first)["verdicts"]
    assert alone["kind"] == "insufficient_data"
    both = report.judged(first, None, (second,))
    assert [(one["kind"], one["ranks"]) for one in both["verdicts"]] == [("straggler", [6])]
    assert [row["rank"] for row in both["ranks"]] == list(range(8))


def test_directories_of_different_jobs_are_refused(tmp_path):
    """In one line that names them."""
    first, second = _parts(tmp_path)
    meta = json.loads((second / "meta.json").read_bytes())
    (second / "meta.json").write_text(json.dumps(meta | {"job_id": "other"}))
    with pytest.raises(UsageError, match=r"run directories of different jobs .* of other"):
        report.judged(first, None, (second,))
