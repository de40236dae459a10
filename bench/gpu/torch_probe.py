#!/usr/bin/env python3
"""What the torch probe measures on a GPU, against the PyTorch profiler, and what it costs.

    python bench/gpu/torch_probe.py --out torch_probe.json     # one GPU, about two minutes
    python bench/gpu/torch_probe.py --part host                # some of it
    python bench/gpu/torch_probe.py --device cpu --part host --hooks python    # without the hooks in C

Three parts, in one process that is observed as `hindmost run` would have it:

phases    gpu_forward, gpu_backward, gpu_optimizer of the same steps from the probe and from the profiler's kernels
overhead  time of a GPU-bound step of about 30 ms with the hooks in and out by turns, on the GPU's clock: step_cost.py
host      what the probe takes of a step of a tiny model, which the host bounds, and of what: host_cost.py
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import host_cost
import observing
import step_cost
from observing import PHASES, Hooks
from profile_trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS = ("phases", "overhead", "host")


def observed(hooks: str) -> None:
    """Start this script again with the probe injected, its ring in a directory of its own."""
    environ = {
        **observing.environment(hooks),
        "HINDMOST_LAUNCHER": "python",
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
    }
    os.execve(sys.executable, [sys.executable, *sys.argv], environ)  # noqa: S606 - this script again


class Training:
    """A small transformer on one device, trained from a DataLoader."""

    def __init__(self, device: str, width: int, layers: int, batch: int, length: int, batches: int = 8) -> None:
        torch = importlib.import_module("torch")
        self.torch, self.device = torch, device
        layer = torch.nn.TransformerEncoderLayer(width, max(1, width // 64), 4 * width, batch_first=True, dropout=0.0)
        self.model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=device == "cuda")
        data = torch.utils.data.TensorDataset(torch.rand(batch * batches, length, width))
        self.loader = torch.utils.data.DataLoader(data, batch, pin_memory=device == "cuda")
        self.batches = iter(())

    def step(self) -> None:
        mark = self.torch.profiler.record_function
        batch = next(self.batches, None)
        if batch is None:
            self.batches = iter(self.loader)
            batch = next(self.batches)
        with mark("forward"):
            loss = self.model(batch[0].to(self.device, non_blocking=True)).square().mean()
        with mark("backward"):
            loss.backward()
        with mark("optimizer"):
            self.optimizer.step()
        self.optimizer.zero_grad()

    def steps(self, count: int) -> float:
        """Seconds a step over so many steps, the GPU's work included."""
        self.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            self.step()
        self.synchronize()
        return (time.perf_counter() - start) / count

    def synchronize(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()


def overhead(torch: Any, seconds: float) -> dict[str, Any]:
    """For so long: what the hooks take of a step of a large transformer, whose batches are ready."""
    jobs = importlib.import_module("parallel_jobs")
    job = jobs.Job(jobs.transformer(), {})
    step_ms = jobs.fit(job, 30.0)
    fours = max(5, round(seconds * 1e3 / step_ms / step_cost.STEPS_OF_FOUR))
    return step_cost.compared(job.step, Hooks(torch).put, fours, lambda: step_cost.cuda_mark(torch), jobs.settle)


def profiled(training: Training, steps: int) -> dict[str, list[float]]:
    """GPU ms of each phase of so many steps as the profiler's kernels tell: first start to last end."""
    torch = training.torch
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        training.steps(steps)
    trace = Trace.of(profile)
    return {name: [trace.span(window) for window in trace.windows(name)] for name in PHASES}


def compare_phases(training: Training, steps: int) -> dict[str, Any]:
    """Relative differences of the probe's GPU phases from the profiler's, on the same steps."""
    training.steps(10)
    before = observing.train_steps() + 1  # the step in progress ends with the next fetch
    theirs = profiled(training, steps)
    training.steps(20)  # the probe reads its events some steps later
    ours = observing.phases(before, steps)
    result = {}
    for name in PHASES:
        pairs = [
            (ours[name][before + index], theirs[name][index])
            for index in range(1, steps)  # the first step waited for the profiler to start
            if before + index in ours[name]
        ]
        result[name] = {
            "steps": len(pairs),
            "probe_ms": statistics.median(mine for mine, _ in pairs),
            "profiler_ms": statistics.median(other for _, other in pairs),
            "median_relative_difference": statistics.median(mine / other - 1 for mine, other in pairs),
            "worst_relative_difference": max((mine / other - 1 for mine, other in pairs), key=abs),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=60, help="for each of the parts overhead and host")
    parser.add_argument("--device", default="cuda", help="cpu: the host part only")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--hooks", choices=("c", "python"), default="c", help="c: where there is a compiler")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    args = parser.parse_args()
    if "HINDMOST_JOB_ID" not in os.environ:
        observed(args.hooks)
    torch = importlib.import_module("torch")
    torch.set_float32_matmul_precision("high")
    if args.device == "cpu":
        torch.set_num_threads(1)  # threads that wait for each other's turn on a busy machine measure that
    result: dict[str, Any] = {"torch": torch.__version__, "device": args.device}
    result["c_ring"] = bool(os.environ.get("HINDMOST_RING_MODULE"))
    if args.device == "cuda":
        result["gpu"] = torch.cuda.get_device_name()
    for name, part in parts(torch, args).items():
        if name not in args.part:
            continue
        result[name] = part()
        text = json.dumps(result, indent=2)
        if args.out:  # as far as it has come: a machine may be taken away
            args.out.write_text(text + "\n")
    print(text)
    shutil.rmtree(os.environ["HINDMOST_RING_DIR"], ignore_errors=True)


def parts(torch: Any, args: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """What is measured, in order."""
    found: dict[str, Callable[[], Any]] = {}
    if args.device == "cuda":
        found["phases"] = lambda: compare_phases(Training("cuda", args.width, args.layers, args.batch, 512), 160)
        found["overhead"] = lambda: overhead(torch, args.seconds)
    tiny = Training(args.device, 64, 1, 2, 8, batches=8192)  # a step that begins an epoch is another than the rest
    tiny.steps(200)
    found["host"] = lambda: host_cost.compared(torch, tiny.step, tiny.synchronize, args.seconds)
    return found


if __name__ == "__main__":
    main()
