"""What the torch probe says of copies to the GPU, against the PyTorch profiler: a part of torch_probe.py.

Loops whose batches take about a millisecond to copy: pinned and pageable, blocking and not, in the loop itself and in a
function of it, with batches that are waited for (the GPU is idle when a copy begins) and batches that are ready (it has
the step before to do), with a model that is compiled and one that is not. The probe's ``h2d`` is compared with

call      what the profiler saw of a blocking copy on the host: from when ``aten::to`` began, or when the GPU was
          through with what had been launched before, until it returned
memcpy    the profiler's copies from host to device on the GPU

of the same steps, all of which are measured meanwhile. The bar: at most 2 % from ``call`` where copies block, as those
of pageable memory do in any case, and from ``memcpy`` where they do not. Needs Python 3.12 or later; earlier ones
measure no copies. A compiled model must be compiled once with the probe as without.
"""

from __future__ import annotations

import importlib
import statistics
from typing import Any, NamedTuple

import observing
from profile_trace import Trace

STEPS = 40
WARM_UP = 8
ROWS, WIDTH = 2048, 4096


class Case(NamedTuple):
    """How a loop copies."""

    pinned: bool
    blocks: bool
    ready: bool = False  # batches are there before they are asked for
    compiled: bool = False
    in_a_function: bool = False

    @property
    def holds_host(self) -> bool:
        return self.blocks or not self.pinned


CASES = (
    Case(pinned=True, blocks=True),
    Case(pinned=True, blocks=True, ready=True),
    Case(pinned=False, blocks=True),
    Case(pinned=False, blocks=True, ready=True),
    Case(pinned=False, blocks=False),
    Case(pinned=True, blocks=False),
    Case(pinned=True, blocks=False, ready=True),
    Case(pinned=True, blocks=False, in_a_function=True),
    Case(pinned=True, blocks=False, compiled=True, in_a_function=True),
)


class Loop:
    """Trains a small model on large batches."""

    def __init__(self, device: str, case: Case) -> None:
        self.torch = torch = importlib.import_module("torch")
        torch.manual_seed(0)
        torch._dynamo.reset()
        rows, width = (ROWS, WIDTH) if device == "cuda" else (4, 8)
        layers = (torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 16))
        model = torch.nn.Sequential(*layers).to(device)
        self.model = torch.compile(model) if case.compiled else model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.case, self.device = case, device
        x, y = torch.rand(rows * 4, width), torch.randint(0, 16, (rows * 4,))
        pinned = case.pinned and device == "cuda"
        load = torch.utils.data.DataLoader
        if case.ready:
            batch = [one[:rows].pin_memory() if pinned else one[:rows] for one in (x, y)]
            self.loader = load([batch] * 4, batch_size=None)
        else:
            self.loader = load(torch.utils.data.TensorDataset(x, y), rows, pin_memory=pinned)

    def train(self, steps: int) -> None:
        done = 0
        while done < steps:
            for batch in self.loader:
                if self.case.in_a_function:
                    x, y = move(batch, self.device, self.case.blocks)
                else:
                    x, y = (one.to(self.device, non_blocking=not self.case.blocks) for one in batch)
                self.torch.nn.functional.cross_entropy(self.model(x), y).backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                done += 1
        if self.device == "cuda":
            self.torch.cuda.synchronize()


def move(batch: list[Any], device: str, blocks: bool) -> list[Any]:
    return [one.to(device, non_blocking=not blocks) for one in batch]


def profiled(loop: Loop, steps: int) -> list[tuple[float, float]]:
    """ms of call and memcpy of each step but the first, as the profiler tells: two copies a step."""
    profiler = loop.torch.profiler
    activities = [profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.CUDA]
    with profiler.profile(activities=activities) as profile:
        loop.train(steps)
    trace = Trace.of(profile)
    copies = [
        ((copy.returned - trace.passed(copy.called)) / 1e3, (copy.work.end - copy.work.start) / 1e3)
        for copy in trace.copies()
    ]
    return [(x[0] + y[0], x[1] + y[1]) for x, y in zip(copies[2::2], copies[3::2], strict=True)]


def recorded(first: int, count: int) -> dict[int, float]:
    """The probe's h2d of so many steps from this one on, ms by step."""
    events = observing.own_ring().poll()
    return {one.seq: one.duration_ns / 1e6 for one in events if one.name == "h2d" and first <= one.seq < first + count}


def measure(device: str, case: Case) -> dict[str, Any]:
    loop = Loop(device, case)
    loop.train(20)
    end = observing.measure_every_step()
    loop.train(64 + WARM_UP)
    # The fetch that found the epoch at its end has ended its last step; the first that is profiled waits for that.
    first = observing.train_steps() + 1
    theirs = dict(enumerate(profiled(loop, STEPS), first))
    end()
    loop.train(20)  # the probe reads its events some steps later
    ours = recorded(first, STEPS - 1)
    both = [(ours[step], *theirs[step]) for step in ours if step in theirs]
    differences = [mine / (call if case.holds_host else memcpy) - 1 for mine, call, memcpy in both]
    found: dict[str, Any] = {**case._asdict(), "against": "call" if case.holds_host else "memcpy"}
    found["measured_steps"] = len(ours)
    if both:
        found |= {
            f"{name}_ms": statistics.median(ms)
            for name, ms in zip(("probe", "call", "memcpy"), zip(*both, strict=True), strict=True)
        }
        found["relative_difference"] = statistics.median(differences)
        found["difference_us_a_call"] = (
            1e3 / 2 * statistics.median(mine - (call if case.holds_host else memcpy) for mine, call, memcpy in both)
        )
        found["relative_difference_of_the_mean"] = (
            sum(mine for mine, *_ in both) / sum(call if case.holds_host else memcpy for _, call, memcpy in both) - 1
        )
    found["of_each_step"] = [round(one, 4) for one in differences]
    found["graphs_compiled"] = loop.torch._dynamo.utils.counters["stats"].get("unique_graphs", 0)
    return found


def measured(device: str) -> list[dict[str, Any]]:
    """Each kind of loop; on a CPU there is nothing to see, and the probe must say so."""
    return [measure(device, case) for case in CASES]
