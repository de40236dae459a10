"""A bench's processes observed as `hindmost run` would have it, without agent or collector, and what they record."""

from __future__ import annotations

import bisect
import importlib
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
PHASES = ("forward", "backward", "optimizer")
NO_STEP = 1 << 64  # above any number of one


def library(kind: str) -> str:
    """The C ring or the NCCL plugin as `hindmost run` would give it to a job; empty without a compiler."""
    if str(ROOT / "agent") not in sys.path:
        sys.path.insert(0, str(ROOT / "agent"))
    try:
        return str(importlib.import_module("hindmost.native.build").library(kind))
    except importlib.import_module("hindmost.errors").HindmostError:
        return ""


def environment() -> dict[str, str]:
    """What has a process and its children write rings, in a directory of their own."""
    return {
        **os.environ,
        "HINDMOST_JOB_ID": "bench",
        "HINDMOST_RING_DIR": tempfile.mkdtemp(prefix="hindmost-bench-", dir="/dev/shm"),
        "HINDMOST_RING_MODULE": library("ring"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "agent/hindmost/inject"), os.environ.get("PYTHONPATH", "")]),
    }


def own_ring(producer: str = "py") -> Any:
    """A reader of this process's ring."""
    (path,) = Path(os.environ["HINDMOST_RING_DIR"]).glob(f"*.{producer}.{os.getpid()}.ring")
    return importlib.import_module("hindmost.ring").Reader(path)


def train_steps() -> int:
    """The number of the train step in progress."""
    importlib.import_module("hindmost.stepping").attached.flush()  # what hooks saw may be worked off later
    ring = importlib.import_module("hindmost.ring")
    steps = [event.seq for event in own_ring().poll() if (event.kind, event.name) == (ring.STEP, "train")]
    return int(steps[-1]) + 1


def phases(first: int, count: int, *, gpu: bool = True) -> dict[str, dict[int, float]]:
    """The probe's ms of each phase by step, of so many from this one on: the GPU's, or the host's."""
    ring = importlib.import_module("hindmost.ring")
    events = own_ring().poll()
    starts = [(one.start_ns, one.seq) for one in events if (one.kind, one.name) == (ring.STEP, "train")]
    found: dict[str, dict[int, float]] = {name: {} for name in PHASES}
    for event in events:
        # The profiler's forward holds the copy to the GPU, which the probe has apart.
        name = "forward" if event.name == "h2d" else event.name.removeprefix("gpu_")
        if event.kind != ring.PHASE or name not in found or bool(event.flags & ring.GPU_TIME) != gpu:
            continue
        # A time of the GPU's says its step; one of the host's began in it.
        after = bisect.bisect(starts, (event.start_ns, NO_STEP))
        step = event.seq if gpu else starts[after - 1][1] if after else -1
        if first <= step < first + count:
            found[name][step] = found[name].get(step, 0.0) + event.duration_ns / 1e6
    return found


def measure_every_step() -> Callable[[], None]:
    """Have the probe measure GPU times of all steps, whatever that costs; call what is returned to end that."""
    recorder = importlib.import_module("hindmost.stepping").attached
    sampling = recorder.sampling
    reckon, sampling._reckon = sampling._reckon, lambda _: setattr(sampling, "_mask", 0)
    sampling._mask = 0
    for follower in recorder._followers:
        follower.loop.mask = 0
    return lambda: setattr(sampling, "_reckon", reckon)


def ring_events(reader: Any, settle: Callable[[], None]) -> list[Any]:
    """What has been recorded since the last call, once who reports it later has had the time to."""
    settle()
    events, quiet = [], 0
    while quiet < 5:
        time.sleep(0.05)
        new = reader.poll()
        quiet = 0 if new else quiet + 1
        events += new
    return events


class Hooks:
    """Takes what the probe hooked in torch out of this process, and puts it back."""

    def __init__(self, torch: Any) -> None:
        loader = torch.utils.data.dataloader._BaseDataLoaderIter
        places = [(loader, "__next__"), (torch.autograd, "backward")]
        surrounded = [(owner, name, getattr(owner, name)) for owner, name in places]
        #: Functions in whose place others are, and hooks that stand in the functions themselves.
        self.surrounded = [place for place in surrounded if hasattr(place[2], "__wrapped__")]
        recorder = importlib.import_module("hindmost.stepping").attached
        self.entered = [hook for each in recorder._followers for hook in getattr(each, "entered", ())]
        module = importlib.import_module("torch.optim.optimizer")
        self.tables = [module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks]
        self.kept = [dict(table) for table in self.tables]
        assert all(self.kept), "the probe is not in this process"
        assert len(self.surrounded) + len(self.entered) == len(places), "the probe is not in all of its places"

    def put(self, inside: bool) -> None:
        for owner, name, function in self.surrounded:
            setattr(owner, name, function if inside else innermost(function))
        for hook in self.entered:
            (hook.enter if inside else hook.leave)()
        for table, kept in zip(self.tables, self.kept, strict=True):
            table.clear()
            table.update(kept if inside else {})


def innermost(function: Any) -> Any:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function
