#!/usr/bin/env python3
"""GPU phases and collectives of jobs on several GPUs, by hindmost and by the PyTorch profiler, on the same steps.

    python bench/gpu/parallel_phases.py --gpus 4 --out parallel_phases.json     # two or four GPUs, about two minutes
    python bench/gpu/parallel_phases.py --gpus 2 --job --cost 120               # some of it: no job, but the cost
    python bench/gpu/parallel_phases.py                                         # without a GPU: does it run? gloo, tiny

Under torchrun, with probe and NCCL plugin in every rank as `hindmost run` would have them: DDP, FSDP, and by hand pairs
that are tensor-parallel and pipelines of two stages (both replicated, with four GPUs), each in steps of about 25 ms. Of
each rank and job:

phases    forward, backward and optimizer from the probe's CUDA events, and from the ends of the profiler's kernels
          (of what had been launched where the job's annotations say that the phase began and ended, for which an event
          there waits); sync: GPU time of a step's collectives from the plugin, and of the profiler's NCCL kernels;
          messages: of its sends and receives that are a kernel each, likewise (messages.py says why only those)
counts    collectives of each communicator and step from the plugin, and from the profiler's kernels; sends and receives
          from the plugin and as torch was called, and the kernels that they were
cost      (with --cost SECONDS) time of a step of about 30 ms with probe and plugin in and out by turns: step_cost.py

The bars: a phase's median difference is at most 2 %, and the counts are equal. Exit code 0: both hold in every rank.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import messages
import observing
import step_cost
from profile_trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

JOBS = ("ddp", "fsdp", "tp_dp", "pp_dp")
TARGET_MS, COST_MS = 25.0, 30.0
#: Steps that are profiled back to back, and one by one with the GPU idle after each.
STEPS, SINGLE = 30, 5
BAR = 0.02

Pairs = dict[str, list[tuple[float, float]]]


class Rank:
    """One process of the job, in its process group; ``reader`` reads what the plugin records."""

    def __init__(self) -> None:
        self.torch = importlib.import_module("torch")
        self.dist = importlib.import_module("torch.distributed")
        self.jobs = importlib.import_module("parallel_jobs")
        self.rank, self.gpu = int(os.environ["RANK"]), self.torch.cuda.is_available()
        self.torch.set_float32_matmul_precision("high")
        if self.gpu:
            self.torch.cuda.set_device(self.jobs.device())
            self.dist.init_process_group("nccl", device_id=self.jobs.device())
        else:
            self.torch.set_num_threads(1)
            self.dist.init_process_group("gloo")
        self.dist.all_reduce(self.torch.zeros(1, device=self.jobs.device()))
        self.jobs.settle()
        self.reader = observing.own_ring("nccl") if self.gpu else None

    def profile(self) -> Any:
        profiler = self.torch.profiler
        activities = [profiler.ProfilerActivity.CPU, *([profiler.ProfilerActivity.CUDA] if self.gpu else [])]
        return profiler.profile(activities=activities)

    def recorded(self) -> list[Any]:
        """Collectives, sends and receives that the plugin has recorded since the last call."""
        ring = importlib.import_module("hindmost.ring")
        if self.reader is None:
            return []
        events = observing.ring_events(self.reader, self.jobs.settle)
        return [event for event in events if event.kind in (ring.COLLECTIVE, ring.P2P)]

    def timed(self, job: Any, steps: int) -> float:
        """ms a step, of the slowest rank."""
        took = self.torch.tensor([self.jobs.timed(job, steps)], device=self.jobs.device())
        self.dist.all_reduce(took, op=self.dist.ReduceOp.MAX)
        return float(took)

    def fit(self, job: Any, target_ms: float) -> float:
        return float(self.jobs.fit(job, target_ms, self.timed))

    def words(self, job: Any) -> tuple[dict[str, str], dict[int, str]]:
        """The job's word for each communicator, by torch's name and by the plugin's id of it."""
        by_name, by_id = {}, {}
        for word, group in job.groups.items():
            by_name[group.group_name] = word
            self.recorded()
            self.dist.all_reduce(self.torch.zeros(1, device=self.jobs.device()), group=group)
            by_id |= {event.comm_id: word for event in self.recorded()}
        return by_name, by_id


def measured(rank: Rank, name: str) -> dict[str, Any]:
    """One job: what both saw of the same steps."""
    job = rank.jobs.JOBS[name]()
    step_ms = rank.fit(job, TARGET_MS)
    words = rank.words(job)
    end = observing.measure_every_step()
    rank.timed(job, 140 if rank.gpu else 5)  # until the probe does: with a GPU it may have measured one step in 128
    rank.recorded()
    first = observing.train_steps() + 1  # the step in progress ends with the next fetch
    with rank.profile() as profile:
        for _ in range(STEPS):
            job.step()
        rank.jobs.settle()
    events, trace = rank.recorded(), Trace.of(profile)
    rank.timed(job, 20)  # the probe reads its events some steps later
    pairs = phase_pairs(observing.phases(first, STEPS, gpu=rank.gpu), trace, first, gpu=rank.gpu)
    end()
    sync, counts = collectives(trace, events, *words)
    sent, message_counts = messages.compared(trace, events)
    counts["equal"] &= message_counts["equal"]
    all_pairs = {**pairs, "sync": sync, "messages": sent}
    result: dict[str, Any] = {
        "step_ms": step_ms,
        "batch": job.size,
        "million_parameters": sum(one.numel() for one in job.model.parameters()) / 1e6,
        "phases": {what: difference(found) for what, found in all_pairs.items() if found},
        "communicates": [*(["sync"] if job.groups else []), *(["messages"] if job.has_messages else [])],
    }
    if rank.gpu:
        result["counts"] = {"steps": STEPS, **counts, "messages": message_counts}
        result["counts_step_by_step"] = step_by_step(rank, job, *words)
        result["lost"] = rank.reader.lost
    return result


def cost(rank: Rank, seconds: float) -> dict[str, Any]:
    """What probe and plugin together take of a DDP step of about 30 ms: both in and out by turns, for so long."""
    job = rank.jobs.JOBS["ddp"]()
    step_ms = rank.fit(job, COST_MS)
    hooks = observing.Hooks(rank.torch)
    pause = ctypes.CDLL(os.environ["NCCL_PROFILER_PLUGIN"]).hindmost_nccl_pause if rank.gpu else None

    def put(inside: bool) -> None:
        hooks.put(inside)
        if pause:
            pause(not inside)

    mark = (lambda: step_cost.cuda_mark(rank.torch)) if rank.gpu else step_cost.HostMark
    fours = max(2, round(seconds * 1e3 / step_ms / step_cost.STEPS_OF_FOUR))
    return step_cost.compared(job.step, put, fours, mark, rank.jobs.settle)


def phase_pairs(ours: dict[str, dict[int, float]], trace: Trace, first: int, *, gpu: bool) -> Pairs:
    """Ms of each phase by the probe and by the profiler, of each step that both have.

    The first step is left out: the profiler was still starting.
    """
    forward, backward, optimizer = (trace.windows(name) for name in observing.PHASES)
    pairs: Pairs = {name: [] for name in observing.PHASES}
    for index in range(1, len(optimizer)):
        edge, end = forward[index][0], optimizer[index][1]
        spans: dict[str, float] = defaultdict(float)
        for start, stop in (one for one in backward if edge <= one[0] < end):
            spans["forward"] += length(trace, edge, start, gpu=gpu)
            spans["backward"] += length(trace, start, stop, gpu=gpu)
            edge = stop
        spans["optimizer"] = length(trace, edge, end, gpu=gpu)
        for name, theirs in spans.items():
            mine = ours[name].get(first + index)
            if mine is not None:
                pairs[name].append((mine, theirs))
    return pairs


def length(trace: Trace, start: float, end: float, *, gpu: bool) -> float:
    """Ms between two of the host's moments, on the GPU or on the host."""
    return trace.between(start, end) if gpu else (end - start) / 1e3


def collectives(
    trace: Trace, events: Sequence[Any], by_name: dict[str, str], by_id: dict[int, str]
) -> tuple[list[tuple[float, float]], dict[str, Any]]:
    """GPU ms of each step's collectives by plugin and profiler; and how many of each kind there were in each.

    Calls of one communicator are the same in both, in the order in which they were enqueued.
    """
    starts = [start for start, _ in trace.windows("forward")]
    theirs, ours = defaultdict(list), defaultdict(list)
    for seen in sorted(trace.collectives(), key=lambda one: one.work.launch):
        if seen.name == messages.KERNEL:
            continue
        theirs[by_name.get(seen.group, seen.group), seen.name].append(seen.work)
    for event in sorted((one for one in events if one.name not in messages.NAMES), key=lambda event: event.seq):
        ours[by_id.get(event.comm_id, str(event.comm_id)), event.name].append(event)
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for key, kernels in theirs.items():
        for event, work in zip(ours[key], kernels, strict=False):
            of_step = sums[bisect_right(starts, work.launch) - 1]
            of_step[0] += event.duration_ns / 1e6
            of_step[1] += (work.end - work.start) / 1e3
    table = {
        f"{word}: {name}": {"plugin": len(ours[word, name]), "profiler": len(theirs[word, name])}
        for word, name in sorted(ours.keys() | theirs.keys())
    }
    equal = bool(events) and all(row["plugin"] == row["profiler"] for row in table.values())
    return [(mine, other) for step, (mine, other) in sorted(sums.items()) if step > 0], {"equal": equal, "calls": table}


def step_by_step(rank: Rank, job: Any, by_name: dict[str, str], by_id: dict[int, str]) -> dict[str, Any]:
    """Collectives of single steps, by kind and communicator: what the plugin has when the GPU is idle again."""
    ours: list[Counter[str]] = []
    rank.recorded()
    with rank.profile() as profile:
        for _ in range(SINGLE):
            job.step()
            events = rank.recorded()
            ours.append(Counter(messages.word(one.name, by_id.get(one.comm_id, one.comm_id)) for one in events))
    trace = Trace.of(profile)
    starts = [start for start, _ in trace.windows("forward")]
    seen = [
        (one.work.launch, messages.word(one.name, by_name.get(one.group, one.group)))
        for one in trace.collectives()
        if one.name != messages.KERNEL
    ]
    theirs: list[Counter[str]] = [Counter() for _ in ours]
    for at, what in [*seen, *trace.messages()]:
        theirs[max(bisect_right(starts, at) - 1, 0)][what] += 1
    return {"equal": ours == theirs and all(ours), "plugin": ours, "profiler": theirs}


def difference(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """Of (ours, theirs) of single steps, ms."""
    ratios = [mine / other - 1 for mine, other in pairs if other > 0]
    return {
        "steps": len(pairs),
        "hindmost_ms": statistics.median(mine for mine, _ in pairs),
        "profiler_ms": statistics.median(other for _, other in pairs),
        "median_relative_difference": statistics.median(ratios),
        "worst_relative_difference": max(ratios, key=abs),
    }


def good(found: dict[str, Any]) -> bool:
    """Whether a rank's job holds the bars."""
    phases = found["phases"]
    near = all(abs(one["median_relative_difference"]) <= BAR for one in phases.values())
    whole = set(phases) == {*observing.PHASES, *found["communicates"]}
    return near and whole and found["counts"]["equal"] and found["counts_step_by_step"]["equal"]


def be_rank(out: Path, jobs: list[str], cost_s: float) -> None:
    rank = Rank()
    result: dict[str, Any] = {"torch": rank.torch.__version__, "device": "cpu"}
    if rank.gpu:
        result["device"] = rank.torch.cuda.get_device_name()
        result["nccl"] = ".".join(map(str, rank.torch.cuda.nccl.version()))
    for name in jobs:
        result[name] = measured(rank, name)
        save(out, rank, result)
    if cost_s:
        result["cost"] = cost(rank, cost_s)
        save(out, rank, result)
    rank.dist.barrier()
    rank.dist.destroy_process_group()


def save(out: Path, rank: Rank, result: dict[str, Any]) -> None:
    """As far as it has come."""
    (out / f"rank{rank.rank}.json").write_text(json.dumps(result))


def launch(ranks: int, arguments: list[str], limit_s: float) -> None:
    """Run the ranks under torchrun, until they end or time is up."""
    environ = {**observing.environment(), "NCCL_NVLS_ENABLE": "0", "OMP_NUM_THREADS": "1"}
    environ |= {"HINDMOST_LAUNCHER": "torchrun", "HINDMOST_RING_CAPACITY": str(1 << 17)}
    if plugin := observing.library("nccl"):
        environ["NCCL_PROFILER_PLUGIN"] = plugin
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), __file__]
    try:
        subprocess.run([*line, *arguments], env=environ, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        print(f"the job was still running after {limit_s:.0f} s", file=sys.stderr)
    shutil.rmtree(environ["HINDMOST_RING_DIR"], ignore_errors=True)


def rows(ranks: list[dict[str, Any]]) -> list[str]:
    """What was found, a line a rank and job."""
    lines = []
    for job in JOBS:
        for number, rank in enumerate(ranks):
            if job in rank:
                parts = [
                    f"{name} {one['hindmost_ms']:.3f} / {one['profiler_ms']:.3f} ms"
                    f" ({one['median_relative_difference']:+.2%}, worst {one['worst_relative_difference']:+.2%})"
                    for name, one in rank[job]["phases"].items()
                ]
                counts = rank[job].get("counts", {})
                lines.append(f"{job} rank {number}: {rank[job]['step_ms']:.1f} ms; {'; '.join(parts)}; {counts}")
    lines += [f"cost rank {number}: {rank['cost']}" for number, rank in enumerate(ranks) if "cost" in rank]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2, choices=(2, 4))
    parser.add_argument("--job", nargs="*", choices=JOBS, default=list(JOBS))
    parser.add_argument("--cost", type=float, default=0, help="seconds for measuring what hindmost takes of a step")
    parser.add_argument("--limit", type=float, default=190, help="seconds for the whole job")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rank-into", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank_into:
        be_rank(args.rank_into, args.job, args.cost)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        launch(args.gpus, ["--rank-into", folder, "--cost", str(args.cost), "--job", *args.job], args.limit)
        ranks = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("rank*.json"))]
    whole = len(ranks) == args.gpus and all(job in rank for rank in ranks for job in args.job)
    print(*rows(ranks), sep="\n")
    if not whole:
        print(f"not all of {args.gpus} ranks measured all jobs", file=sys.stderr)
    gpu = whole and "nccl" in ranks[0]
    holds = gpu and all(good(rank[job]) for rank in ranks for job in args.job)
    if args.out:
        args.out.write_text(
            json.dumps({"gpus": args.gpus, "bars_hold": holds if gpu else None, "ranks": ranks}, indent=1)
        )
    print("the bars hold" if holds else "the bars do not hold" if gpu else "there are no GPU times without a GPU")
    return 0 if holds or (whole and not gpu) else 1


if __name__ == "__main__":
    sys.exit(main())
