#!/usr/bin/env python3
"""What the torch probe says of copies to the GPU, against the PyTorch profiler, on the same kind of steps.

    python bench/gpu/h2d.py --out h2d.json     # one GPU, under a minute; Python 3.12 or later

A loop whose batches take about a millisecond to copy, pinned and pageable, copied in the loop itself and in a function
of it, with a model that is compiled and one that is not: the probe's ``h2d`` of its measured steps beside the
profiler's copies from host to device of others. A compiled model must be compiled once with the probe as without.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from torch_probe import observed, train_steps

STEPS = 300


class Loop:
    """Trains a small model on large batches."""

    def __init__(self, pinned: bool, compiled: bool, helper: bool) -> None:
        self.torch = torch = importlib.import_module("torch")
        torch.manual_seed(0)
        torch._dynamo.reset()
        model = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 16)).cuda()
        self.model = torch.compile(model) if compiled else model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        rows = torch.utils.data.TensorDataset(torch.rand(2048 * 4, 4096), torch.randint(0, 16, (2048 * 4,)))
        self.loader = torch.utils.data.DataLoader(rows, 2048, pin_memory=pinned)
        self.helper = helper

    def train(self, steps: int) -> None:
        done = 0
        while done < steps:
            for batch in self.loader:
                x, y = move(batch) if self.helper else (b.to("cuda", non_blocking=True) for b in batch)
                self.torch.nn.functional.cross_entropy(self.model(x), y).backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                done += 1
        self.torch.cuda.synchronize()


def move(batch: list[Any]) -> list[Any]:
    return [b.cuda(non_blocking=True) for b in batch]


def profiled(loop: Loop, steps: int) -> float:
    """ms a step of copies from host to device, as the profiler tells."""
    profiler = loop.torch.profiler
    activities = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
    with profiler.profile(activities=activities) as profile:
        loop.train(steps)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        trace = json.loads(Path(file.name).read_text())["traceEvents"]
    copies = [event["dur"] for event in trace if event.get("cat") == "gpu_memcpy" and "HtoD" in event["name"]]
    return float(sum(copies) / steps / 1e3)


def recorded(first: int) -> list[float]:
    """The probe's h2d of its measured steps from this one on, ms."""
    ring = importlib.import_module("hindmost.ring")
    (path,) = Path(os.environ["HINDMOST_RING_DIR"]).glob("*.ring")
    return [event.duration_ns / 1e6 for event in ring.Reader(path).poll() if event.name == "h2d" and event.seq >= first]


def measure(pinned: bool, compiled: bool, helper: bool) -> dict[str, Any]:
    loop = Loop(pinned, compiled, helper)
    loop.train(20)
    first = train_steps() + 1
    loop.train(STEPS)
    importlib.import_module("hindmost.stepping")._recorder.flush()
    ours = recorded(first)
    compiles = loop.torch._dynamo.utils.counters["stats"].get("unique_graphs", 0)
    theirs = profiled(loop, 20)
    return {
        "pinned": pinned,
        "compiled": compiled,
        "in_a_function": helper,
        "measured_steps": len(ours),
        "probe_ms": statistics.median(ours) if ours else None,
        "profiler_ms": theirs,
        "relative_difference": statistics.median(ours) / theirs - 1 if ours else None,
        "graphs_compiled": compiles,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if "HINDMOST_JOB_ID" not in os.environ:
        observed()
    torch = importlib.import_module("torch")
    cases = [(True, False, False), (True, False, True), (False, False, False), (True, True, True)]
    result = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(), "loops": [measure(*c) for c in cases]}
    text = json.dumps(result, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")
    shutil.rmtree(os.environ["HINDMOST_RING_DIR"], ignore_errors=True)


if __name__ == "__main__":
    main()
