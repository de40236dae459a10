#!/usr/bin/env python3
"""By how much the NCCL plugin's GPU times fall short of the profiler's kernel times: a share, or so much a call.

    python bench/gpu/nccl_offset.py --gpus 4 --out nccl_offset.json     # under a minute

Every call of all-reduces of growing size, one at a time and back to back, and of a DDP and a TP x DP job: the kernel's
start and duration by CUPTI and the operation's by the plugin. Per rank a line is fitted, missing = constant + share x
duration: the constant is what a kernel does before its first channel starts and after its last one stops. The plugin
adds what this bench found (KERNEL_EDGES_NS in nccl_operations.c): measured again it should be near zero.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nccl_plugin
from nccl_plugin import Rank
from profile_trace import collective_name

from hindmost import ring  # isort: skip - nccl_plugin makes it importable

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
CALLS = 50
NAMES = ("start_kernel", "kernel", "start_plugin", "plugin")


def observe(rank: Rank, work: Callable[[], None]) -> dict[str, list[list[int]]]:
    """By collective the calls of ``work`` that both saw: ``NAMES`` in ns, in order of start, each by its own clock."""
    rank.recorded()
    with rank.torch.profiler.profile(activities=[rank.torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        rank.torch.cuda.synchronize()
    ours = [e for e in rank.recorded() if e.kind == ring.COLLECTIVE and e.flags & ring.GPU_TIME]
    theirs = []
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        name = collective_name(event.name())
        if name:
            theirs.append((name, event.start_ns(), event.duration_ns()))
    found = {}
    for name in sorted({name for name, _, _ in theirs} - {"send_recv"}):  # one kernel, but two operations
        kernels = [(start, took) for kernel, start, took in theirs if kernel == name]
        events = sorted((e.start_ns, e.duration_ns) for e in ours if e.name == name)
        if len(kernels) == len(events):
            found[name] = [[*a, *b] for a, b in zip(kernels, events, strict=True)]
        else:
            print(f"rank {rank.rank}: {len(kernels)} kernels, {len(events)} events of {name}", file=sys.stderr)
    return found


def all_reduces(rank: Rank, size: int, *, alone: bool) -> dict[str, list[list[int]]]:
    """All-reduces of so many bytes, each waited for or all enqueued at once."""
    data = rank.torch.zeros(size // 4, device="cuda")

    def work() -> None:
        for _ in range(CALLS):
            rank.dist.all_reduce(data)
            if alone:
                rank.torch.cuda.synchronize()

    work()
    return observe(rank, work)


def training(rank: Rank, job: Callable[[Rank], Callable[[], None]]) -> dict[str, list[list[int]]]:
    """Ten steps of a job."""
    step = job(rank)
    for _ in range(5):
        step()
    return observe(rank, lambda: [step() for _ in range(nccl_plugin.STEPS)] and None)


def be_rank(out: Path) -> None:
    """Measure everything in one process of the job."""
    rank = Rank()
    result: dict[str, Any] = {"device": rank.torch.cuda.get_device_name(), "torch": rank.torch.__version__}
    result["nccl"] = ".".join(map(str, rank.torch.cuda.nccl.version()))
    calls: dict[str, Any] = {}
    result["calls"] = calls
    for size in SIZES:
        for alone in (True, False):
            calls[f"{size} bytes, {'one at a time' if alone else 'back to back'}"] = all_reduces(
                rank, size, alone=alone
            )
    nccl_plugin.save(out, rank, result)
    for job in (nccl_plugin.tp_dp, nccl_plugin.ddp, nccl_plugin.fsdp):
        calls[job.__name__] = training(rank, job)
        nccl_plugin.save(out, rank, result)
    rank.dist.destroy_process_group()


def summary(calls: list[list[int]]) -> dict[str, float]:
    """Of many calls: medians in us, the spread of what is missing, and the ratio of the totals."""
    missing = sorted((kernel - ours) / 1e3 for _, kernel, _, ours in calls)
    return {
        "calls": len(calls),
        "kernel_us": statistics.median(kernel for _, kernel, _, _ in calls) / 1e3,
        "missing_us": statistics.median(missing),
        "missing_p5_us": missing[len(missing) // 20],
        "missing_p95_us": missing[-1 - len(missing) // 20],
        "ratio": sum(ours for _, _, _, ours in calls) / sum(kernel for _, kernel, _, _ in calls),
    }


def line(calls: list[list[int]]) -> dict[str, float]:
    """missing = constant + share x duration, by medians of slopes (Theil-Sen on calls sorted by duration)."""
    points = sorted((kernel / 1e3, (kernel - ours) / 1e3) for _, kernel, _, ours in calls)
    half = len(points) // 2
    pairs = zip(points[:half], points[-half:], strict=True)
    share = statistics.median((d[1] - c[1]) / (d[0] - c[0]) for c, d in pairs if d[0] > c[0])
    constant = statistics.median(missing - share * took for took, missing in points)
    rest = sorted(abs(missing - constant - share * took) for took, missing in points)
    return {"constant_us": constant, "share": share, "rest_p50_us": rest[half], "rest_p95_us": rest[-1 - half // 10]}


def main() -> int:
    """Launch the ranks, or be one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--limit", type=float, default=85, help="seconds for the whole job")
    parser.add_argument("--out", type=Path, default=Path("nccl_offset.json"))
    parser.add_argument("--rank-into", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--part", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank_into:
        be_rank(arguments.rank_into)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        ranks = nccl_plugin.launch(arguments.gpus, Path(folder), arguments.limit, [], script=__file__)
    if len(ranks) != arguments.gpus:
        print(f"only {len(ranks)} of {arguments.gpus} ranks measured anything", file=sys.stderr)
        return 1
    for number, rank in enumerate(ranks):
        every = [call for part in rank["calls"].values() for calls in part.values() for call in calls]
        rank["line"] = line(every)
        rank["summary"] = {f"{what}, {name}": summary(c) for what, p in rank["calls"].items() for name, c in p.items()}
        print(f"rank {number} {json.dumps(rank['line'])}")
        for what, found in rank["summary"].items():
            print(f"  {what:<42}", {key: round(value, 4) for key, value in found.items()})
    arguments.out.write_text(json.dumps({"gpus": arguments.gpus, "columns": NAMES, "ranks": ranks}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
