"""What the torch probe says of copies to the GPU, against the PyTorch profiler: a part of torch_probe.py.

A loop whose batches take about a millisecond to copy, pinned and pageable, copied in the loop itself and in a function
of it, with a model that is compiled and one that is not: the probe's ``h2d`` beside the profiler's copies from host to
device of the same steps, all of which are measured meanwhile. Needs Python 3.12 or later; earlier ones measure no
copies. A compiled model must be compiled once with the probe as without.
"""

from __future__ import annotations

import importlib
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import observing

STEPS = 40
WARM_UP = 8


class Loop:
    """Trains a small model on large batches."""

    def __init__(self, device: str, pinned: bool, compiled: bool, helper: bool) -> None:
        self.torch = torch = importlib.import_module("torch")
        torch.manual_seed(0)
        torch._dynamo.reset()
        model = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 16)).to(device)
        self.model = torch.compile(model) if compiled else model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        rows = torch.utils.data.TensorDataset(torch.rand(2048 * 4, 4096), torch.randint(0, 16, (2048 * 4,)))
        self.loader = torch.utils.data.DataLoader(rows, 2048, pin_memory=pinned and device == "cuda")
        self.helper, self.device = helper, device

    def train(self, steps: int) -> None:
        done = 0
        while done < steps:
            for batch in self.loader:
                x, y = move(batch, self.device) if self.helper else (b.to(self.device) for b in batch)
                self.torch.nn.functional.cross_entropy(self.model(x), y).backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                done += 1
        if self.device == "cuda":
            self.torch.cuda.synchronize()


def move(batch: list[Any], device: str) -> list[Any]:
    return [b.to(device, non_blocking=True) for b in batch]


def profiled(loop: Loop, steps: int) -> list[float]:
    """ms of copies from host to device of each step but the first, as the profiler tells: two copies a step."""
    profiler = loop.torch.profiler
    activities = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
    with profiler.profile(activities=activities) as profile:
        loop.train(steps)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        trace = json.loads(Path(file.name).read_text())["traceEvents"]
    copies = [event for event in trace if event.get("cat") == "gpu_memcpy" and "HtoD" in event["name"]]
    copies.sort(key=lambda event: float(event["ts"]))
    took = [float(event["dur"]) / 1e3 for event in copies]
    return [x + y for x, y in zip(took[2::2], took[3::2], strict=True)]


def recorded(first: int, count: int) -> dict[int, float]:
    """The probe's h2d of so many steps from this one on, ms by step."""
    events = observing.own_ring().poll()
    return {one.seq: one.duration_ns / 1e6 for one in events if one.name == "h2d" and first <= one.seq < first + count}


def measure(device: str, pinned: bool, compiled: bool, helper: bool) -> dict[str, Any]:
    loop = Loop(device, pinned, compiled, helper)
    loop.train(20)
    end = observing.measure_every_step()
    loop.train(64 + WARM_UP)
    first = (
        observing.train_steps() + 2
    )  # the step in progress ends with the next fetch; the first waits for the profiler
    theirs = dict(enumerate(profiled(loop, STEPS), first))
    end()
    loop.train(20)  # the probe reads its events some steps later
    ours = recorded(first, STEPS - 1)
    compiles = loop.torch._dynamo.utils.counters["stats"].get("unique_graphs", 0)
    differences = [ours[step] / theirs[step] - 1 for step in ours if step in theirs]
    return {
        "pinned": pinned,
        "compiled": compiled,
        "in_a_function": helper,
        "measured_steps": len(ours),
        "probe_ms": statistics.median(ours.values()) if ours else None,
        "profiler_ms": statistics.median(theirs.values()) if theirs else None,
        "relative_difference": statistics.median(differences) if differences else None,
        "of_each_step": [round(one, 4) for one in differences],
        "graphs_compiled": compiles,
    }


def measured(device: str) -> list[dict[str, Any]]:
    """Each kind of loop; on a CPU there is nothing to see, and the probe must say so."""
    cases = [(True, False, False), (True, False, True), (False, False, False), (True, True, True)]
    return [measure(device, *case) for case in cases]
