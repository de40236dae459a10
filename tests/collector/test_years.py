"""A collector that runs for years: what it holds is of the jobs that run, not of those that ran."""

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hindmost_collector import collector as maintenance
from hindmost_collector.ingest.session import AgentSession, Outbox
from hindmost_collector.main import open_store
from hindmost_collector.options import Options
from hindmost_collector.store.parquet.compaction import Retention, Upkeep
from hindmost_proto import retry
from hindmost_proto import telemetry_pb2 as wire

from tests.memory import memory_of

RANKS, BATCHES, STEPS = 2, 15, 4
NS = 1_000_000_000
BATCH_NS = 4 * NS
STEP_NS = BATCH_NS // STEPS
METRICS = [f"hindmost_process_{name}_total" for name in ("cpu_seconds", "read_bytes", "minor_faults")]
RETENTION = 16 << 20
#: A job that is over is forgotten long before, s after its begin.
FORGOTTEN_S = 1200
#: Of 40 minutes each: those of the last hour may still be known.
WARM, MORE, MINUTES = 3, 3, 40


class Service:
    """A collector with a store in ``folder``, without its ports, and one agent of a node; its clock is handed in. Each
    job is two ranks with a metric schema and a communicator of their own, which train for a minute and end."""

    def __init__(self, folder: Path, **options_of: Any) -> None:
        options = Options(store=str(folder / "store"), http="none", **options_of)
        self.collector = maintenance.Collector(options, open_store(options))
        self.now_ns = self.sequence = 0
        self.began_ns = self.collector.clock.now()
        self.collector.clock.now = lambda: self.began_ns + self.now_ns  # type: ignore[method-assign]
        self.upkeep = Upkeep(self.collector.recorder.store, Retention(0.0, RETENTION))
        self.agent: tuple[AgentSession, Outbox]

    async def connect(self) -> None:
        """The agent comes, and reads whatever it is sent."""

        async def read(message: wire.CollectorMessage) -> None:
            pass

        hello = wire.Hello(protocol=1, agent_id="a", node="n", boot_id="b", monotonic_ns=self.now_ns)
        self.agent = await self.collector.ingest.greet(hello)
        self.pump = asyncio.create_task(self.agent[1].pump(read))

    async def job(self, number: int, minutes: float) -> None:
        """One job from its first message until it is forgotten; ``minutes`` later the next may begin."""
        begun_ns = self.now_ns
        first = number * 16
        ranks = [
            wire.Rank(ref=first + rank, job_id=f"job{number}", rank=rank, world_size=RANKS, node="n", pid=first + rank)
            for rank in range(RANKS)
        ]
        labels = {"job": f"job{number}", "rank": "0"}
        series = [wire.Series(name=name, kind="COUNTER", help="A count.", labels=labels) for name in METRICS]
        members = [wire.Communicator(ref=first + 8 + one, rank=first + one, id=first, size=RANKS) for one in range(2)]
        await self.send(
            wire.AgentMessage(
                definitions=wire.Definitions(
                    ranks=ranks, schemas=[wire.Schema(ref=first + 4, series=series)], communicators=members
                )
            )
        )
        for batch in range(BATCHES):
            await self.send(wire.AgentMessage(batch=self.batch(first, batch)))
            self.now_ns += BATCH_NS
            await self.turn()
        self.sequence += 1
        ended = wire.Batch(sequence=self.sequence)
        for rank in range(RANKS):
            ended.rank_states.add(rank=first + rank, time_ns=self.now_ns, life="FINISHED", events_total=BATCHES)
        await self.send(wire.AgentMessage(batch=ended))
        await self.turn()
        while f"job{number}" in self.collector.jobs:
            if self.now_ns - begun_ns > FORGOTTEN_S * NS:
                raise RuntimeError(f"job{number} is over, and not forgotten")
            await self.later(maintenance.UPKEEP_S)
        await self.later(max(minutes * 60 - (self.now_ns - begun_ns) / NS, 0))
        while self.upkeep.compact() or self.upkeep.expire():
            pass

    async def later(self, seconds: float) -> None:
        """So much time passes; then a turn, and what ``tend`` does between turns."""
        self.now_ns += int(seconds * NS)
        await self.turn()
        maintenance.prune(self.collector)

    def batch(self, first: int, number: int) -> wire.Batch:
        """The steps of four seconds, each with a collective, and one sample of each metric."""
        self.sequence += 1
        batch, refs = wire.Batch(sequence=self.sequence), [first + rank for rank in range(RANKS)]
        steps = list(range(number * STEPS, (number + 1) * STEPS)) * RANKS
        start = [self.now_ns + step % STEPS * STEP_NS for step in steps]
        rows: dict[str, Any] = {"ranks": refs, "rows": [STEPS] * RANKS, "start_ns": start}
        batch.metrics.add(schema=first + 4, time_ns=[self.now_ns], values=[float(number)] * len(METRICS))
        batch.steps.add(**rows, step=steps, duration_ns=[STEP_NS] * len(steps))
        calls = {"op_names": ["all_reduce"], "op": [0] * len(steps), "comm": [first] * len(steps), "seq": steps}
        batch.collectives.add(**rows, **calls, duration_ns=[STEP_NS // 4] * len(steps))
        for ref in refs:
            batch.rank_states.add(rank=ref, time_ns=self.now_ns, life="RUNNING", events_total=number)
        return batch

    async def send(self, message: wire.AgentMessage) -> None:
        """As it comes over the wire."""
        ingest = self.collector.ingest
        await ingest.handle(*self.agent, ingest.inbox.parsed(message.SerializeToString()))

    async def turn(self) -> None:
        """What a collector does all the time: gather, write, judge, seal what is over."""
        collector = self.collector
        collector.gather()
        await collector.flush()
        await collector.watch.round()
        await collector.watch.through()
        collector.watch.seal_finished()
        await asyncio.sleep(0)
        while collector.watch.sealing is not None and not collector.watch.sealing.done():
            await asyncio.sleep(0.001)
        collector.endpoints.jobs_text()

    async def close(self) -> None:
        """The agent leaves, and the collector ends."""
        await retry.cancel(self.pump)
        self.collector.ingest.part(*self.agent)
        await self.collector.stop("the test is over")


async def test_a_collector_holds_nothing_of_jobs_that_are_over(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many jobs leave no more objects and bytes: each was judged, written down and forgotten."""
    monkeypatch.setattr("hindmost_collector.store.parquet.store.MOST_DIRECTORIES", 8)
    # The default starts a second thread, which it keeps, where the first is still about to wait for work.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    service, states = Service(tmp_path), []
    await service.connect()
    for number in range(WARM + MORE):
        await service.job(number, MINUTES)
        if number in {WARM - 1, WARM + MORE - 1}:
            states.append(memory_of(service.collector))
    await service.close()
    before, after = states
    assert after["objects"] - before["objects"] < MORE
    assert after["bytes"] - before["bytes"] < 4096


async def test_schemas_of_processes_that_ended_are_held_for_minutes(tmp_path) -> None:
    """Each process makes a schema of its own: those of the last ten minutes are known."""
    service, known = Service(tmp_path), []
    await service.connect()
    for number in range(5):
        await service.job(number, 5)
        known.append(len(service.collector.definitions.schemas))
    await service.close()
    assert max(known) <= 3


async def test_what_a_job_leaves_does_not_wait_for_the_garbage_collector(tmp_path) -> None:
    """That rarely runs in a collector, and until then each job would leave types and windows in memory."""
    service = Service(tmp_path)
    await service.connect()
    await service.job(0, MINUTES)
    gc.collect()
    gc.disable()
    try:
        await service.job(1, MINUTES)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
    finally:
        gc.set_debug(0)
        gc.enable()
    left = {type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith(("hindmost", "ctypes"))}
    gc.garbage.clear()
    await service.close()
    assert not left


async def test_the_end_of_stdin_ends_its_own_job_alone(tmp_path):
    """A collector that serves until its stdin closes still forgets jobs that end before: those that run are kept."""
    service = Service(tmp_path, exit_when_stdin_closes=True)
    await service.connect()
    await service.job(0, MINUTES)
    assert not service.collector.jobs
    await service.close()
