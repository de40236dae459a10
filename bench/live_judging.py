"""What judging a running job costs: CPU time of a full live window, by the number of ranks.

    python bench/live_judging.py [--ranks 1024 4096 8192] [--layout dp|fsdp] [--fault 20] [--rounds 5] [--json FILE]

A simulated job of data-parallel ranks with one rank 20 % slow (``--fault 0``: none) goes through the collector's own
decoder into its window, as its agents would send it, until the window has let rows go; then the window is judged again
and again, as it is live: snapshot, judge, report as plain types; and so are its newest steps, as the collector looks at
them between two judgements, each time after a full evaluation. Prints the median CPU time of the thread that judges,
what the window contains, and how often the collector makes incremental and full evaluations without news, on 2 and on
16 cores. The verdicts' cost is compared with what the same run takes less without the slow rank.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hindmost_collector.ingest.chunk import finish
from hindmost_collector.ingest.clock import NodeClock
from hindmost_collector.ingest.decode import Decoder
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.packed_fields import packed
from hindmost_collector.live.evaluation_loop import LOOK_S, Watch
from hindmost_collector.live.evaluation_schedule import Judging, load_judge, outcome_of, share_of
from hindmost_collector.live.jobs import LiveJob
from hindmost_collector.live.window import ROWS
from hindmost_collector.simulate import Fault, Scenario, engine
from hindmost_collector.simulate.stream import Job
from hindmost_judge.model import Job as ModelJob
from hindmost_judge.model import Run, rows
from hindmost_judge.verdict.schema import JobSummary, RankRow, Report

PERIOD_S = 1.5
#: For how long the pace of judging is simulated; its second half counts.
SIMULATED_S = 1000.0


def watched(ranks: int, stretches: int, layout: str, percent: float) -> tuple[LiveJob, Decoder, float]:
    """A job of so many ranks and collectives a step, its window full; and what the slow rank costs, ms a step."""
    steps = max(ROWS // (ranks * stretches) + 4, 44)
    faults = (Fault("compute", (ranks // 3,), percent / 100),) if percent else ()
    scenario = Scenario(ranks, steps, layout=layout, stretches=stretches, gpu_bound="compute", faults=faults)
    job = Job.of(scenario)
    definitions = Definitions()
    decoder, clock = Decoder(definitions), NodeClock(0, 10**18)
    for node in job.nodes:
        definitions.learn(packed(job.opening(node)[1].definitions), decoder.job, clock)
    live = LiveJob(job.name, 0)
    for node, ends, message in job.batches():
        decoder.add(packed(message.batch), f"node{node:04d}", job.name, clock)
        if node == job.nodes[-1]:
            live.add(finish(decoder.take()[job.name]), decoder.words, definitions, int(ends * 1e9))
    repaired = engine.run(scenario, job.draws, ())
    saved = float(job.timing.finish[-1].max() - repaired.finish[-1].max())
    return live, decoder, saved / steps / 1e6


def measured(ranks: int, args: argparse.Namespace) -> dict[str, Any]:
    """Of one size: CPU seconds of each judgement, and what it said."""
    stretches, rounds = args.stretches, args.rounds
    live, decoder, truth = watched(ranks, stretches, args.layout, args.fault)
    judge = load_judge()
    took, looked, wall = [], [], []
    for _ in range(rounds + 1):
        began, used = time.perf_counter(), time.thread_time()
        run = live.snapshot(decoder.words)()
        live.report = judge(run).to_dict()
        took.append(time.thread_time() - used)
        wall.append(time.perf_counter() - began)
        newest = live.newest(decoder.words)
        assert newest is not None
        used = time.thread_time()
        outcome_of(judge(newest()))
        looked.append(time.thread_time() - used)
    report, look = judge(run), judge(newest())
    cpu, cpu_look = statistics.median(took[1:]), statistics.median(looked[1:])
    return {
        "ranks": ranks,
        "layout": args.layout,
        "fault_percent": args.fault,
        "collectives_a_step": stretches,
        "collective_rows": rows(run.collectives),
        "step_rows": rows(run.steps),
        "metric_rows": rows(run.metrics),
        "cpu_seconds": round(cpu, 3),
        "cpu_seconds_all": [round(one, 3) for one in took],
        "wall_seconds": round(statistics.median(wall[1:]), 3),
        "look_cpu_seconds": round(cpu_look, 3),
        "look_cpu_seconds_all": [round(one, 3) for one in looked],
        **paces(ranks, cpu, cpu_look),
        "true_ms_per_step": round(truth, 2),
        "verdict": [[one.kind, list(one.ranks), one.cause, one.cost_ms_per_step] for one in report.verdicts],
        "look": [[one.kind, list(one.ranks), one.cost_ms_per_step] for one in look.verdicts],
    }


def paces(ranks: int, whole: float, look: float) -> dict[str, dict[int, float]]:
    """Mean seconds between two evaluations, and between two full evaluations, by the number of cores."""
    any_of, of_whole = {}, {}
    for cores in (2, 16):
        judged = asyncio.run(paced(ranks, cores, whole, look))
        late = [(at, which) for at, which in judged if at > SIMULATED_S / 2]
        any_of[cores] = round(SIMULATED_S / 2 / len({at for at, _ in late}), 1)
        of_whole[cores] = round(SIMULATED_S / 2 / sum(which == "whole" for _, which in late), 1)
    return {"looked_at_every_s": any_of, "judged_every_s": of_whole}


async def paced(ranks: int, cores: int, whole: float, look: float) -> list[tuple[float, str]]:
    """When full and incremental evaluations of a job happen, given their CPU time: without news, and as if incremental
    evaluations took the same time for any number of rows."""
    now, used, judged = 0.0, 0.0, []
    judging = Judging(PERIOD_S, share_of(cores), lambda: now, lambda: used)
    report = Report(JobSummary("j"), (), ranks=tuple(map(RankRow, range(ranks))))
    judging.judge = lambda _: report
    job = LiveJob("j", 0)

    def costing(which: str, seconds: float) -> Run:
        nonlocal used
        used += seconds
        judged.append((now, which))
        return Run(ModelJob("j"))

    job.snapshot = lambda _: partial(costing, "whole", whole)  # type: ignore[method-assign]
    job.newest = lambda *_: partial(costing, "look", look)  # type: ignore[method-assign]
    parts: Any = {
        "jobs": {"j": job},
        "clock": SimpleNamespace(now=lambda: int(now * 1e9)),
        "decoder": SimpleNamespace(words=None),
        "recorder": SimpleNamespace(store=None, writing=False),
        "outlets": (),
    }

    async def never(_: LiveJob) -> None:
        raise AssertionError

    watch = Watch(SimpleNamespace(**parts), judging, never)  # type: ignore[arg-type]
    while now < SIMULATED_S:
        now += LOOK_S
        job.revision += 1
        await watch.round()
        await watch.through()
    return judged


def main() -> None:
    """Measure each size."""
    parser = argparse.ArgumentParser(description="what judging a running job costs")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1024, 4096, 8192])
    parser.add_argument("--stretches", type=int, default=6, help="collectives a step")
    parser.add_argument("--layout", choices=("dp", "fsdp"), default="dp")
    parser.add_argument("--fault", type=float, default=20.0, metavar="PERCENT", help="how slow one rank is; 0: none")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found = []
    for ranks in args.ranks:
        found.append(measured(ranks, args))
        print(json.dumps(found[-1]), flush=True)
    if args.json:
        made_by = f"bench/live_judging.py, {os.cpu_count()} shared cores: CPU time of the judging thread"
        args.json.write_text(json.dumps({"made_by": made_by, "results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
