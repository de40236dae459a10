"""What a recording has when its job ends, its collector is killed, or it cannot be read."""

import asyncio
import json
import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest
from hindmost_collector.live import sealing
from hindmost_collector.recordings.load import load_run_directory
from hindmost_collector.simulate import Scenario, simulate
from hindmost_collector.simulate.write import run_directory
from hindmost_collector.store.parquet.store import ParquetStore
from hindmost_proto import telemetry_pb2 as wire

from tests.waiting import until


async def test_a_signal_ends_the_job_with_its_held_collector(collector_process, fake_agent, tmp_path):
    """At a time limit all processes of a job get SIGTERM, and none is left to say how the job ended."""
    process = collector_process("--out", tmp_path, "--job-id", "j", "--exit-when-stdin-closes")
    async with fake_agent(process.addresses["grpc"]) as agent:
        await agent.send(agent.batch(0))
        os.kill(process.popen.pid, signal.SIGTERM)
        await agent.send(agent.batch(1))
        await agent.stream.write(wire.AgentMessage(goodbye=wire.Goodbye(reason="SIGTERM")))
        await agent.until_acked(2)
    assert process.popen.wait(300) == 0
    assert json.loads((tmp_path / "meta.json").read_text())["interrupted_by"] == "SIGTERM"
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["job"]["steps"] == 2


async def test_a_collector_killed_while_it_judges_leaves_its_last_report(collecting, fake_agent, tmp_path, monkeypatch):
    """SIGKILL may come two seconds after SIGTERM: a report is there by then, and says what it is."""
    monkeypatch.setattr("hindmost_collector.collector.SIGNALLED_S", 0.0)
    monkeypatch.setattr("hindmost_collector.collector.LAST_WORD_S", 0.0)

    async def killed(*_):
        return None

    async with collecting(out=str(tmp_path), job_id="j") as collector:
        async with fake_agent(collector.addresses["grpc"]) as agent:
            await agent.send(agent.batch(0))
            await until(lambda: "j" in collector.jobs and collector.jobs["j"].report is not None)
        monkeypatch.setattr("hindmost_collector.collector.seal", killed)
        await collector.stop("the collector is stopping", asyncio.Event())
    assert "before it judged the whole recording" in json.loads((tmp_path / "report.json").read_text())["notes"][0]
    assert "before it judged the whole recording" in (tmp_path / "report.html").read_text()


async def test_what_came_before_a_signal_is_written_before_its_report(collecting, fake_agent, tmp_path, monkeypatch):
    """On full cores a page takes longer than what is left until SIGKILL: rows come first, and the report's facts."""
    monkeypatch.setattr("hindmost_collector.collector.SIGNALLED_S", 0.0)
    monkeypatch.setattr("hindmost_collector.collector.LAST_WORD_S", 0.0)
    there: list[list[str]] = []

    def seen(*_: Any, **__: Any) -> str:
        there.append(sorted({path.parent.name for path in tmp_path.glob("segments/*/*.parquet")} & {"collectives"}))
        there[-1] += [path.name for path in tmp_path.glob("report.json")]
        return "a page"

    async with collecting(out=str(tmp_path), job_id="j", flush_seconds=3600.0) as collector:
        async with fake_agent(collector.addresses["grpc"]) as agent:
            await agent.send(agent.batch(0))
            await until(lambda: "j" in collector.jobs and collector.jobs["j"].report is not None)
        monkeypatch.setattr(sealing.document, "of_report", seen)
        await collector.stop("the collector is stopping", asyncio.Event())
    assert there[0] == ["collectives", "report.json"]


async def test_nodes_whose_agents_said_goodbye_left_and_others_did_not(collecting, fake_agent, tmp_path):
    """Also where memory is judged. Of a node's agents the newest counts."""
    async with collecting(out=str(tmp_path), job_id="j") as collector:
        for name, node, leaves in (("a", "n0", True), ("b", "n1", False), ("c", "n2", True), ("d", "n2", False)):
            async with fake_agent(collector.addresses["grpc"], name, node) as agent:
                await agent.deliver(range(1))
                if leaves:
                    await agent.stream.write(wire.AgentMessage(goodbye=wire.Goodbye(reason="SIGTERM")))
                    await agent.ended()
        assert sealing.from_memory(collector, collector.jobs["j"]).job.left == ("n0",)
    assert json.loads((tmp_path / "meta.json").read_text())["left"] == ["n0"]


@pytest.mark.parametrize(("runs", "silent_s", "abandoned"), [(True, 60, False), (False, 60, True), (True, 900, True)])
def test_a_recording_has_stopped_once_no_collector_holds_it(tmp_path, runs, silent_s, abandoned):
    """At once where its lock tells; a lock that another host does not see counts for minutes."""
    run_directory([simulate(Scenario(2, 12)).run], tmp_path)
    store = ParquetStore(tmp_path, single=True)
    written = max(path.stat().st_mtime for path in tmp_path.glob("segments/*"))
    if not runs:
        store.close()
    assert load_run_directory(tmp_path, lambda: written + silent_s).job.abandoned is abandoned
    store.close()


class TornError(Exception):
    """What a reader of files raises; no error of the operating system, and none of ours."""


def test_what_memory_holds_is_judged() -> None:
    """Whatever a torn file makes its reader raise."""

    def read(_: str) -> Any:
        raise TornError("page 3")

    run = simulate(Scenario(2, 12)).run
    collector: Any = SimpleNamespace(
        recorder=SimpleNamespace(store=SimpleNamespace(read=read), failing=""),
        decoder=SimpleNamespace(words=None),
        clock=SimpleNamespace(now=lambda: 1),
        ingest=SimpleNamespace(agents={}),
    )
    job: Any = SimpleNamespace(
        id="j",
        snapshot=lambda _: lambda: run,
        exit_code=0,
        ended_ns=None,
        interrupted_by=None,
        no_ring=None,
        entered=True,
    )
    whole = sealing.whole_run(collector, job)
    assert whole.ranks["rank"].tolist() == [0, 1]
    assert any("cannot be read (page 3)" in note for note in whole.notes)
