"""A simulated job sent to a collector arrives as what it is."""

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import hindmost_cli
import pytest
from hindmost.errors import HindmostError
from hindmost_collector.recordings.load import load
from hindmost_collector.simulate import Fault, Scenario
from hindmost_collector.simulate.record import sampled
from hindmost_collector.simulate.scenario import CAUSES, STOPS
from hindmost_collector.simulate.stream import Job, send
from hindmost_judge.judge import judge
from hindmost_proto import telemetry_pb2 as wire

from tests.collecting import MESSAGES, collecting, serving
from tests.waiting import until

#: So many steps that a pause of the machine, which all of them show, hides no fault.
FAULTY = Scenario(ranks=16, steps=60, seed=5, faults=(Fault("gpu_throttle", (13,), 0.2),))


def collected(folder: Path, scenario: Scenario, seen: str = "") -> int:
    """Send the job to a collector of this process, which stops once the verdict ``seen`` is; how many batches."""

    async def go() -> int:
        async with collecting(http="none", out=str(folder), job_id="simulated-5") as collector:
            count = await asyncio.to_thread(send, scenario, collector.addresses["grpc"])
            if seen:
                jobs = collector.jobs
                await until(lambda: any(one["kind"] == seen for job in jobs.values() for one in job.verdicts()))
            return count

    return asyncio.run(go())


def test_what_is_sent_is_what_is_judged(tmp_path: Path) -> None:
    """Steps, collectives and samples of two nodes arrive whole: the slow rank is named with its cause."""
    assert collected(tmp_path / "run", FAULTY) == 2 * 15
    run = load(tmp_path / "run")
    assert len(run.steps["rank"]) == 16 * 60
    assert set(run.ranks["node"].tolist()) == {"node0000", "node0001"}
    (verdict,) = judge(run).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (13,), "gpu_throttle")


def test_what_a_node_has_is_sent_once_and_not_by_each_rank(tmp_path: Path) -> None:
    """A node's pressure has one series a resource, and is the cause of who stands still for it."""
    fault = Fault("memory", (13,), 0.2)
    collected(tmp_path / "run", Scenario(ranks=16, steps=40, seed=5, faults=(fault,)))
    run = load(tmp_path / "run")
    waiting = run.metrics["name"] == "hindmost_node_pressure_waiting_seconds_total"
    sampled = zip(*(run.metrics[name][waiting].tolist() for name in ("node", "labels", "time_ns")), strict=True)
    assert len(set(sampled)) == waiting.sum() > 0
    (verdict,) = judge(run).verdicts
    assert (verdict.ranks, verdict.cause) == ((13,), "memory")


def test_what_all_nodes_have_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thousand nodes say hello in seconds: none of them makes the samples of all ranks anew."""
    made = []

    def counted(*known: Any) -> Any:
        made.append(known)
        return sampled(*known)

    monkeypatch.setattr("hindmost_collector.simulate.stream.sampled", counted)
    job = Job.of(FAULTY, 0)
    opened = [job.opening(node) for node in job.nodes]
    assert len(list(job.batches())) == 2 * 15
    assert len(made) == 1
    places = [
        (communicator.rank_in, communicator.size)
        for _, definitions in opened
        for communicator in definitions.definitions.communicators
    ]
    assert places == [(rank, 16) for rank in range(16)]


def test_without_a_listener_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong address ends in one error that names it."""
    monkeypatch.setattr("hindmost_collector.simulate.stream.WELCOME_S", 0.2)
    with pytest.raises(HindmostError, match=r"no collector answers at 127\.0\.0\.1:9"):
        send(Scenario(ranks=2, steps=2), "127.0.0.1:9")


#: How many batches each node sends of 40 steps.
BATCHES = 10


@pytest.mark.parametrize("after", [1, BATCHES])
@pytest.mark.parametrize(("said", "reason"), [("", "it gave no reason"), ("the disk is full", "the disk is full")])
async def test_a_collector_may_leave(capsys: pytest.CaptureFixture[str], after: int, said: str, reason: str) -> None:
    """Whatever ends the streams before all is durable, one line names the collector and what it said; nothing else."""

    async def leaving(messages: Any, context: Any) -> None:
        async for message in messages:
            if message.HasField("hello"):
                await context.write(wire.CollectorMessage(welcome=wire.Welcome()))
            if message.batch.sequence == after:
                await context.abort(grpc.StatusCode.UNAVAILABLE, said) if said else None
                return

    async with serving(leaving, *MESSAGES) as port:
        words = ["simulate", "--collector", f"127.0.0.1:{port}", "--ranks", "16", "--steps", "40"]
        assert await asyncio.to_thread(hindmost_cli.main, words) == 1
    line = f"hindmost simulate: the collector at 127.0.0.1:{port} left before it had all of the job ("
    (err,) = capsys.readouterr().err.splitlines()
    # A sender that still writes may meet the end before its message arrives; one that has sent all waits for it.
    told_as = {reason} if after == BATCHES else {reason, "it gave no reason"}
    assert err.removeprefix(line).split("): see")[0] in told_as


@pytest.mark.parametrize("cause", ["hang", "desync"])
def test_a_job_that_stops_is_named_live(tmp_path: Path, cause: str) -> None:
    """Its streams tell what is open: the live judge says who did not come, or came with something else."""
    fault = Fault(cause, (5,), onset=30)
    assert collected(tmp_path / "run", Scenario(ranks=16, steps=40, seed=5, faults=(fault,)), cause) == 2 * (8 + 2)
    events = [json.loads(line) for line in (tmp_path / "run" / "verdicts.jsonl").read_text().splitlines()]
    assert [(one["event"], one["verdict"]["kind"], one["verdict"]["ranks"]) for one in events] == [
        ("opened", cause, [5])
    ]
    assert int(load(tmp_path / "run").steps["step"].max()) == 29
    assert {(verdict.kind, verdict.ranks) for verdict in judge(load(tmp_path / "run")).verdicts} == {(cause, (5,))}


@pytest.mark.parametrize("cause", sorted(set(CAUSES) - set(STOPS)))
def test_every_fault_is_reported_from_what_a_collector_was_sent(tmp_path: Path, cause: str) -> None:
    """The rank with its cause, or a network that became slow, as from a run directory."""
    fault = Fault(cause, (5,), 0.2, onset=30 if cause == "network" else 0)
    collected(tmp_path / "run", Scenario(ranks=8, steps=64, seed=5, layout="fsdp", faults=(fault,)))
    (verdict,) = judge(load(tmp_path / "run")).verdicts
    who = ("slow_link", ()) if cause == "network" else ("straggler", (5,))
    assert (verdict.kind, verdict.ranks, verdict.cause) == (*who, cause)


async def test_jobs_at_one_collector_stay_apart(tmp_path: Path) -> None:
    """Each job's rows are of its own ranks, though ranks and nodes of both have the same numbers."""
    jobs = [Scenario(ranks=ranks, steps=12, seed=seed) for seed, ranks in ((5, 16), (6, 8))]
    async with collecting(http="none", store=str(tmp_path)) as collector:
        await asyncio.gather(*(asyncio.to_thread(send, job, collector.addresses["grpc"]) for job in jobs))
    runs = [load(tmp_path / f"simulated-{job.seed}") for job in jobs]
    assert [len(run.steps["step"]) for run in runs] == [16 * 12, 8 * 12]
    assert [set(run.ranks["rank"].tolist()) for run in runs] == [set(range(16)), set(range(8))]
