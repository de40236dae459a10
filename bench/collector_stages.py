"""CPU time that a collector takes a simulated second, stage by stage, without gRPC and without a wall clock.

The agents of bench/collector_load are made in a process of their own. What they send goes into a real collector, with
its store and its judge, by a clock that the bench moves on. So other work on the machine changes what a second costs
only as far as it takes caches, and two versions can be compared on a busy machine: run them in turns.

    python -m bench.collector_stages [--agents 1024] [--settle 40] [--seconds 40]

``receive`` is the parsing of messages and the answers to them, ``gather`` what each tick moves to windows, counters and
recorder, ``flush`` the writing of segments, ``judge`` all evaluations. ``tick_ms`` is the mean of a gathering, and
``tick_part_ms`` the median, 90th and 99th percentile of the parts between which the event loop serves others.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import resource
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

TICK_S = 0.5
#: Between two ticks the collector looks so often whether a job is to be judged.
LOOKS = 2
STAGES = ("receive", "gather", "flush", "judge")


def send(count: int, end: int, out: Connection) -> None:
    """What agents send, tick after tick: the bytes of messages by agent."""
    from bench.collector_load import agents  # noqa: PLC0415 - in the process of the agents

    ticks = min(max(-(-count // 256), 2), agents.MOST_TICKS)  # as the collector asks of so many
    every = [agents.Agent(number, count * agents.RANKS) for number in range(count)]
    out.send([one.hello() for one in every])
    due = [(number * 0.6180339887) % 1.0 * ticks for number in range(count)]
    at = 0.0
    while at < end:
        messages = []
        for number, one in enumerate(every):
            while due[number] < at + TICK_S:
                step = int(due[number] // ticks) * ticks
                messages += [(number, raw) for raw in one.messages(step, int((step + ticks) * 1e9), ticks)]
                due[number] += ticks
        out.send(messages)
        at += TICK_S


@contextmanager
def timed(spent: dict[str, float], stage: str) -> Iterator[None]:
    """Add the CPU time of what is done within to this stage's."""
    began = time.process_time()
    yield
    spent[stage] += time.process_time() - began


async def measured(count: int, settle: int, seconds: int, source: Connection) -> dict[str, Any]:
    """Feed a collector for so many simulated seconds after it has settled."""
    from hindmost_collector.collector import Collector  # noqa: PLC0415 - not in the agents' process
    from hindmost_collector.live.evaluation_schedule import Judging, share_of  # noqa: PLC0415
    from hindmost_collector.options import Options  # noqa: PLC0415
    from hindmost_collector.store.parquet.store import ParquetStore  # noqa: PLC0415

    now = 0.0
    with tempfile.TemporaryDirectory() as directory:
        collector = Collector(Options(), ParquetStore(Path(directory), single=False))
        collector.clock._monotonic_ns = lambda: int(now * 1e9)
        collector.watch._judging = collector.judging = Judging(1.5, share_of(2), lambda: now)
        ingest, spent = collector.ingest, defaultdict[str, float](float)
        every = [await ingest.greet(ingest.inbox.parsed(hello).hello) for hello in source.recv()]
        for _ in every:
            ingest.inbox._bytes = 0
        ingest.throttle(False, 0)
        held: list[float] = []  # for how long a part of a tick keeps the event loop, CPU s
        ticks, last_flush, judged = int((settle + seconds) / TICK_S), 0.0, 0
        for tick in range(ticks):
            if tick == int(settle / TICK_S):
                spent.clear()
                held.clear()
                judged = _reports(collector)
            messages = source.recv()
            now += TICK_S
            with timed(spent, "receive"):
                for number, raw in messages:
                    agent, outbox = every[number]
                    await ingest.handle(agent, outbox, ingest.inbox.parsed(raw))
                    outbox.clock_reply(int(now * 1e9), int(now * 1e9), with_ack=True)
                    for message in outbox.drain():
                        message.SerializeToString()
            with timed(spent, "gather"):
                began = len(held), time.thread_time()
                for _ in collector.gathering():
                    held.append(time.thread_time() - began[1] - sum(held[began[0] :]))
                held.append(time.thread_time() - began[1] - sum(held[began[0] :]))
            if now - last_flush >= collector.options.flush_period:
                last_flush = now
                with timed(spent, "flush"):
                    await collector.flush()
            with timed(spent, "judge"):
                for _ in range(LOOKS):
                    await collector.watch.round()
                    await collector.watch.through()
        (job,) = collector.jobs.values()
        report: Any = job.report or {"verdicts": []}
        return {
            "agents": count,
            "cpu_of_a_core": {name: round(spent[name] / seconds, 4) for name in STAGES},
            "tick_part_ms": [round(1e3 * one, 1) for one in np.quantile(held, (0.5, 0.9, 0.99))],
            "tick_ms": round(1e3 * sum(held) / (seconds / TICK_S), 1),
            "sum": round(sum(spent.values()) / seconds, 4),
            "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
            "rss_mib": int(next(_resident())) >> 10,
            "full_evaluations": _reports(collector) - judged,
            "verdicts": [(one["kind"], one["ranks"][:4], one["evidence"]) for one in report["verdicts"]],
        }


def _reports(collector: Any) -> int:
    return sum(job.reported for job in collector.jobs.values())


def _resident() -> Iterator[str]:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return (line.split()[1] for line in lines if line.startswith("VmRSS"))


def main() -> None:
    """Measure once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=1024)
    parser.add_argument("--settle", type=int, default=40, help="simulated seconds that do not count")
    parser.add_argument("--seconds", type=int, default=40, help="simulated seconds that count")
    args = parser.parse_args()
    source, out = multiprocessing.get_context("fork").Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(
        target=send, args=(args.agents, args.settle + args.seconds, out), daemon=True
    )
    child.start()
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
    from hindmost import daemon_process  # noqa: PLC0415 - as a collector starts
    from hindmost_collector import runtime  # noqa: PLC0415
    from hindmost_collector.main import GARBAGE  # noqa: PLC0415

    daemon_process.set_up_allocator()
    runtime.put_off_pandas()
    gc.freeze()
    gc.set_threshold(*GARBAGE)
    print(json.dumps(asyncio.run(measured(args.agents, args.settle, args.seconds, source))), flush=True)
    child.kill()


if __name__ == "__main__":
    main()
