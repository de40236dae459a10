#!/usr/bin/env python3
"""What the NCCL plugin records on several GPUs, against the PyTorch profiler, and what it costs.

    python bench/gpu/nccl_plugin.py --gpus 4 --out nccl_plugin.json     # about three minutes

counts    DDP, FSDP and a hand-written TP x DP job: collectives of the same steps by the plugin and by the profiler's
          kernels, and the GPU time of each
culprit   DDP with one rank that computes a little more: which rank's all-reduce is shortest
overhead  time of a GPU-bound step of about 30 ms with the plugin asking NCCL for events and not, in alternating
          blocks; and the host's time to enqueue a small all-reduce, likewise
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

import observing
from profile_trace import collective_name

sys.path.insert(0, str(observing.ROOT / "agent"))

from hindmost import ring
from hindmost.native import build

PARTS = ("counts", "culprit", "overhead")
STEPS = 10
PAIRS = 30
BLOCK = 5
TARGET_MS = 30.0
SMALL_CALLS = 500


class Rank:
    """One process of the job: torch, its device and its own ring."""

    def __init__(self) -> None:
        self.torch = importlib.import_module("torch")
        self.dist = importlib.import_module("torch.distributed")
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.torch.cuda.set_device(self.rank)
        self.dist.init_process_group("nccl", device_id=self.torch.device("cuda", self.rank))
        self.group()
        (path,) = Path(os.environ["HINDMOST_RING_DIR"]).glob(f"*.nccl.{os.getpid()}.ring")
        self.reader = ring.Reader(path)

    def observe(self, observed: bool) -> None:
        """Have the plugin ask NCCL for events, or not: NCCL has one mask for all communicators."""
        self.torch.cuda.synchronize()
        ctypes.CDLL(os.environ["NCCL_PROFILER_PLUGIN"]).hindmost_nccl_pause(not observed)

    def group(self, ranks: list[int] | None = None) -> Any:
        """A process group whose communicator exists."""
        made = self.dist.new_group(ranks)
        if ranks is None or self.rank in ranks:
            self.dist.all_reduce(self.torch.zeros(1, device="cuda"), group=made)
            self.torch.cuda.synchronize()
        return made

    def recorded(self) -> list[ring.Event]:
        """What has been recorded since the last call, once NCCL's proxy thread has had time to report it."""
        return observing.ring_events(self.reader, self.torch.cuda.synchronize)

    def transformer(self, width: int = 2048, layers: int = 12) -> Any:
        nn = self.torch.nn
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True, dropout=0.0)
        model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        return model.to("cuda", self.torch.bfloat16)

    def stepper(self, model: Any, batch: int, width: int = 2048, extra: int = 0) -> Callable[[], None]:
        """One training step; ``extra`` square products make this rank slower."""
        torch = self.torch
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        data = torch.randn(batch, 512, width, device="cuda", dtype=torch.bfloat16)
        square = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)

        def step() -> None:
            for _ in range(extra):
                square @ square
            model(data).float().pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step


def ddp(rank: Rank) -> Callable[[], None]:
    """Data parallel: bucketed all-reduces."""
    return rank.stepper(rank.torch.nn.parallel.DistributedDataParallel(rank.transformer(1024, 6)), 4, 1024)


def fsdp(rank: Rank) -> Callable[[], None]:
    """Fully sharded: all-gathers and reduce-scatters."""
    shard = importlib.import_module("torch.distributed.fsdp").fully_shard
    model = rank.transformer(1024, 6)
    for layer in model.layers:
        shard(layer)
    shard(model)
    return rank.stepper(model, 4, 1024)


def tp_dp(rank: Rank) -> Callable[[], None]:
    """Pairs of tensor-parallel ranks, replicated: two all-reduces a layer in the pair, gradients across pairs."""
    torch, dist = rank.torch, rank.dist
    pairs = [rank.group([i, i + 1]) for i in range(0, rank.world, 2)]
    replicas = [rank.group(list(range(i, rank.world, 2))) for i in range(2)]
    pair, replica = pairs[rank.rank // 2], replicas[rank.rank % 2]
    weights = [torch.randn(2048, 1024, device="cuda", requires_grad=True) for _ in range(8)]
    data = torch.randn(4096, 2048, device="cuda")

    def step() -> None:
        hidden = data
        for up, down in zip(weights[::2], weights[1::2], strict=True):
            hidden = torch.relu(hidden @ up) @ down.t()
            part = hidden.detach()
            dist.all_reduce(part, group=pair)
        hidden.pow(2).mean().backward()
        for weight in weights:
            dist.all_reduce(weight.grad, group=replica)
            weight.grad = None
        if rank.world > 2:
            received = torch.empty_like(weights[0])
            ahead, behind = (rank.rank + 2) % rank.world, (rank.rank - 2) % rank.world
            operations = [dist.P2POp(dist.isend, weights[0].detach(), ahead), dist.P2POp(dist.irecv, received, behind)]
            for request in dist.batch_isend_irecv(operations):
                request.wait()

    return step


def kernels(profile: Any) -> list[tuple[str, int]]:
    """NCCL's kernels as the profiler saw them: name and ns, in order."""
    found = []
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        name = collective_name(event.name())
        if name:
            found.append((name, event.duration_ns()))
    return found


def against_profiler(rank: Rank, job: Callable[[Rank], Callable[[], None]]) -> dict[str, Any]:
    """Counts and durations of the same steps by both observers."""
    step = job(rank)
    for _ in range(5):
        step()
    rank.recorded()
    with rank.torch.profiler.profile(activities=[rank.torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(STEPS):
            step()
        rank.torch.cuda.synchronize()
    events = [event for event in rank.recorded() if event.kind in {ring.COLLECTIVE, ring.P2P}]
    seen = kernels(profile)
    return {
        "profiler": dict(Counter(name for name, _ in seen)),
        "plugin": dict(Counter(event.name for event in events)),
        "without_gpu_time": sum(not event.flags & ring.GPU_TIME for event in events),
        "duration_ratio": ratios(events, seen),
        "lost": rank.reader.lost,
    }


def ratios(events: list[ring.Event], seen: list[tuple[str, int]]) -> dict[str, Any]:
    """By collective: the plugin's GPU time over the profiler's, of the same calls; both in order of start."""
    found = {}
    for name in sorted({name for name, _ in seen}):
        theirs = [duration for kernel, duration in seen if kernel == name]
        ours = [e.duration_ns for e in sorted(events, key=lambda e: e.start_ns) if e.name == name]
        if ours and len(ours) == len(theirs):
            each = sorted(a / b for a, b in zip(ours, theirs, strict=True))
            found[name] = {
                "total": sum(ours) / sum(theirs),
                "median": statistics.median(each),
                "p5": each[len(each) // 20],
                "p95": each[-1 - len(each) // 20],
                "calls": len(each),
            }
    return found


def slow_one(rank: Rank) -> list[tuple[int, int, int, int]]:
    """All-reduces of DDP steps in which rank 1 computes more: (communicator, sequence, end, duration), ns."""
    extra = 3 if rank.rank == 1 else 0
    step = rank.stepper(rank.torch.nn.parallel.DistributedDataParallel(rank.transformer()), 8, extra=extra)
    for _ in range(5):
        step()
    rank.recorded()
    for _ in range(40):
        step()
    return [
        (e.comm_id, e.seq, e.start_ns + e.duration_ns, e.duration_ns)
        for e in rank.recorded()
        if e.kind == ring.COLLECTIVE and e.flags & ring.GPU_TIME
    ]


def timed(rank: Rank, call: Callable[[], Any], count: int, wait: bool = True) -> float:
    """Milliseconds a call, over ``count`` of them; without ``wait`` only the host's part."""
    rank.torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        call()
    if wait:
        rank.torch.cuda.synchronize()
    took = time.perf_counter() - start
    rank.torch.cuda.synchronize()
    return took * 1e3 / count


def overhead(rank: Rank) -> dict[str, Any]:
    """Pairs of blocks, observed and not, in an order that is drawn alike on all ranks."""
    torch, dist = rank.torch, rank.dist
    rank.recorded()
    first = torch.tensor([timed(rank, trainer(rank, 8), 10)], device="cuda")
    dist.all_reduce(first, op=dist.ReduceOp.MAX)
    batch = max(1, round(8 * TARGET_MS / first.item()))
    step, small = trainer(rank, batch), torch.zeros(1, device="cuda")

    def call() -> None:
        dist.all_reduce(small)

    order = random.Random(7)  # noqa: S311 - alike on all ranks
    step_ms: dict[bool, list[float]] = {True: [], False: []}
    host_us: dict[bool, list[float]] = {True: [], False: []}
    written = {True: 0, False: 0}
    for _ in range(PAIRS):
        for observed in order.sample([True, False], 2):
            rank.observe(observed)
            before = rank.reader.written
            timed(rank, step, 2)
            step_ms[observed].append(timed(rank, step, BLOCK))
            host_us[observed].append(timed(rank, call, SMALL_CALLS, wait=False) * 1e3)
            time.sleep(0.05)
            written[observed] += rank.reader.written - before
    rank.observe(True)
    records = {"with": written[True], "without": written[False]}
    return {
        "batch": batch,
        "step_ms": compared(step_ms),
        "host_us_per_all_reduce": compared(host_us),
        "records": records,
    }


def trainer(rank: Rank, batch: int) -> Callable[[], None]:
    """Steps of DDP, the first ten of them done."""
    step = rank.stepper(rank.torch.nn.parallel.DistributedDataParallel(rank.transformer()), batch)
    timed(rank, step, 10)
    return step


def compared(values: dict[bool, list[float]]) -> dict[str, float]:
    """Medians, and the mean difference of pairs with its 95 % interval (bootstrap over pairs)."""
    differences = [a - b for a, b in zip(values[True], values[False], strict=True)]
    draw = random.Random(11)  # noqa: S311 - a bootstrap
    means = sorted(statistics.fmean(draw.choices(differences, k=len(differences))) for _ in range(4000))
    without = statistics.median(values[False])
    return {
        "with": statistics.median(values[True]),
        "without": without,
        "difference": statistics.fmean(differences),
        "low": means[100],
        "high": means[3899],
        "ratio": statistics.fmean(differences) / without,
        "pairs": len(differences),
    }


def be_rank(out: Path, parts: list[str]) -> None:
    rank = Rank()
    result: dict[str, Any] = {
        "torch": rank.torch.__version__,
        "nccl": ".".join(map(str, rank.torch.cuda.nccl.version())),
    }
    result["device"] = rank.torch.cuda.get_device_name()
    for job in (ddp, fsdp, tp_dp) if "counts" in parts else ():
        result[job.__name__] = against_profiler(rank, job)
        save(out, rank, result)
    if "culprit" in parts:
        result["all_reduces"] = slow_one(rank)
        save(out, rank, result)
    if "overhead" in parts:
        result["overhead"] = overhead(rank)
    marks = [e for e in rank.recorded() if e.kind == ring.MARK and e.name == "gpu_clock"]
    result["gpu_clock"] = [(e.start_ns, e.value) for e in marks]
    save(out, rank, result)
    rank.dist.destroy_process_group()


def save(out: Path, rank: Rank, result: dict[str, Any]) -> None:
    (out / f"rank{rank.rank}.json").write_text(json.dumps(result))


def launch(gpus: int, out: Path, limit_s: float, parts: list[str], script: str = __file__) -> list[dict[str, Any]]:
    """Run one process a GPU; what each measured by rank, also where a later part failed."""
    rings = tempfile.mkdtemp(prefix="hindmost-bench-", dir="/dev/shm")
    common = {
        **os.environ,
        "NCCL_PROFILER_PLUGIN": str(build.library("nccl")),
        "NCCL_NVLS_ENABLE": "0",
        "HINDMOST_JOB_ID": "bench",
        "HINDMOST_RING_DIR": rings,
        "HINDMOST_RING_CAPACITY": str(1 << 18),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29555",
        "WORLD_SIZE": str(gpus),
    }
    line = [sys.executable, script, "--rank-into", str(out), "--part", *parts]
    ranks = [subprocess.Popen(line, env={**common, "RANK": str(i), "LOCAL_RANK": str(i)}) for i in range(gpus)]
    deadline = time.monotonic() + limit_s
    while any(process.poll() is None for process in ranks) and time.monotonic() < deadline:
        time.sleep(0.5)
    for process in ranks:
        if process.poll() is None:
            print(f"rank process {process.pid} was still running after {limit_s} s", file=sys.stderr)
            process.kill()
            process.wait()
    return [json.loads(path.read_text()) for path in sorted(out.glob("rank*.json"))]


def culprit(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """How often each rank's all-reduce was the shortest, and how far apart the ranks' clocks put the common end."""
    tables = [{(comm, seq): (end, took) for comm, seq, end, took in rank.get("all_reduces", [])} for rank in ranks]
    common = set(tables[0]).intersection(*tables[1:])
    shortest = Counter(min(range(len(tables)), key=lambda r: tables[r][key][1]) for key in common)
    ends = [[table[key][0] - tables[0][key][0] for key in common] for table in tables]
    return {
        "collectives": len(common),
        "shortest_by_rank": {str(rank): shortest[rank] for rank in range(len(tables))},
        "end_after_rank0_us": [
            {"median": statistics.median(e) / 1e3, "stdev": statistics.pstdev(e) / 1e3} for e in ends
        ]
        if common
        else [],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--limit", type=float, default=420, help="seconds for the whole job")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", type=Path, default=Path("nccl_plugin.json"))
    parser.add_argument("--rank-into", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank_into:
        be_rank(arguments.rank_into, arguments.part)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        ranks = launch(arguments.gpus, Path(folder), arguments.limit, arguments.part)
    if len(ranks) != arguments.gpus:
        print(f"only {len(ranks)} of {arguments.gpus} ranks measured anything", file=sys.stderr)
        return 1
    report = {"gpus": arguments.gpus, "culprit": culprit(ranks), "ranks": [dict(r, all_reduces=None) for r in ranks]}
    arguments.out.write_text(json.dumps(report, indent=1))
    for job in ("ddp", "fsdp", "tp_dp"):
        for i, rank in enumerate(ranks):
            print(job, "rank", i, json.dumps(rank.get(job)))
    print("culprit", json.dumps(report["culprit"]))
    for i, rank in enumerate(ranks):
        print("overhead rank", i, json.dumps(rank.get("overhead")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
