#!/usr/bin/env python3
"""What is left in a collector after a day of jobs that come and go on its nodes.

    python bench/collector_years.py [--hours 24] [--minutes-a-job 5] [--out FILE]

A real collector (decoder, windows, judge, reports, store with retention, page of metrics) without its ports: its clock
is handed in, and an agent of a node is played message by message. Each job is two ranks with a metric schema and a
communicator of their own, which train for a minute and end; then it is judged, written down and forgotten. ``held``:
objects and bytes that the collector leads to.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hindmost_collector import collector as service
from hindmost_collector.main import open_store
from hindmost_collector.options import Options
from hindmost_collector.store.parquet.compaction import Retention, Upkeep
from hindmost_proto import retry
from hindmost_proto import telemetry_pb2 as wire

from bench.agent_years import memory_of

if TYPE_CHECKING:
    from hindmost_collector.ingest.session import AgentSession, Outbox

RANKS, BATCHES, STEPS = 2, 15, 4
NS = 1_000_000_000
BATCH_NS = 4 * NS
STEP_NS = BATCH_NS // STEPS
METRICS = [f"hindmost_process_{name}_total" for name in ("cpu_seconds", "read_bytes", "minor_faults")]
RETENTION = 16 << 20
#: A job that is over is forgotten long before, s after its begin.
FORGOTTEN_S = 1200


class Service:
    """A collector with a store in ``folder``, and one agent of a node."""

    def __init__(self, folder: Path, **options_of: Any) -> None:
        options = Options(store=str(folder / "store"), http="none", **options_of)
        self.collector = service.Collector(options, open_store(options))
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
            await self.later(service.UPKEEP_S)
        await self.later(max(minutes * 60 - (self.now_ns - begun_ns) / NS, 0))
        while self.upkeep.compact() or self.upkeep.expire():
            pass

    async def later(self, seconds: float) -> None:
        """So much time passes; then a turn, and what ``tend`` does between turns."""
        self.now_ns += int(seconds * NS)
        await self.turn()
        service._prune(self.collector)

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
        while collector.watch._end is not None and not collector.watch._end.done():
            await asyncio.sleep(0.001)
        collector.endpoints.jobs_text()

    async def close(self) -> None:
        """The agent leaves, and the collector ends."""
        await retry.cancel(self.pump)
        self.collector.ingest.part(*self.agent)
        await self.collector.stop("the bench is over")

    def state(self, jobs: int) -> dict[str, Any]:
        """What there is after so many jobs."""
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        folder = Path(self.collector.options.store)
        return {
            "hours": round(self.now_ns / NS / 3600, 2),
            "jobs": jobs,
            "rss_mib": round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1),
            "held": memory_of(self.collector),
            "open_files": len(list(Path("/proc/self/fd").iterdir())),
            "store_mib": round(sum(one.stat().st_size for one in folder.rglob("*") if one.is_file()) / 2**20, 2),
        }


async def run(hours: float, minutes: float) -> list[dict[str, Any]]:
    """A state after each tenth of the time."""
    states, jobs = [], 0
    with tempfile.TemporaryDirectory() as folder:
        one = Service(Path(folder))
        await one.connect()
        while one.now_ns < hours * 3600 * NS:
            await one.job(jobs, minutes)
            jobs += 1
            if one.now_ns >= (len(states) + 1) * hours * 360 * NS:
                states.append(one.state(jobs))
                print(json.dumps(states[-1]), flush=True)
        await one.close()
    return states


def main() -> None:
    """Run, and write the states down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--minutes-a-job", type=float, default=5.0)
    parser.add_argument("--out", type=Path, help="also write the results here, as JSON")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    states = asyncio.run(run(args.hours, args.minutes_a_job))
    if args.out:
        what = "bench/collector_years.py: jobs of two ranks that come and go, by an injected clock"
        args.out.write_text(json.dumps({"what": what, "minutes_a_job": args.minutes_a_job, "states": states}, indent=1))


if __name__ == "__main__":
    main()
