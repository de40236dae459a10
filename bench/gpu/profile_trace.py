"""What the PyTorch profiler saw of one process's GPU, read from the trace that it exports. Times are its us.

The kernels are CUPTI's; annotations of the bench's own jobs say which part of a step launched them. Nothing here
comes from CUDA events or from NCCL, by which the probe and the plugin measure.
"""

from __future__ import annotations

import bisect
import itertools
import json
import re
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

#: NCCL's names in kernels, and the ring's.
KERNELS = {
    "AllReduce": "all_reduce",
    "ReduceScatter": "reduce_scatter",
    "AllGather": "all_gather",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "SendRecv": "send_recv",
}
NCCL = re.compile(r"nccl(?:Symk)?(?:Dev)?Kernel_([A-Za-z]+)")
LAUNCHES = ("cuda_runtime", "cuda_driver")
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
GROUP = "Process Group Name"
WHAT = "Collective name"

#: Start, end and arguments of a call on the host.
Call = tuple[float, float, dict[str, Any]]


class Work(NamedTuple):
    """Something that the GPU did, and when the host launched it."""

    launch: float
    start: float
    end: float


class Collective(NamedTuple):
    """One kernel of NCCL's; ``group`` is the process group's name as torch has it, empty where the trace lacks it."""

    name: str
    group: str
    work: Work


def collective_name(kernel: str) -> str | None:
    """What a kernel does, in the ring's words; ``None`` of one that is not NCCL's."""
    match = NCCL.match(kernel)
    return KERNELS.get(match[1], match[1]) if match else None


class Trace:
    """A trace's events in the shape of Chrome's trace format."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self._events = events
        self._launches = {
            event["args"]["correlation"]: event
            for event in events
            if event.get("cat") in LAUNCHES and "correlation" in event.get("args", {})
        }
        done = (event for event in events if event.get("cat") in WORK)
        #: In order of launch.
        self.work = sorted(self._work(event) for event in done if event["args"].get("correlation") in self._launches)
        self._launched = [work.launch for work in self.work]
        self._done = list(itertools.accumulate((work.end for work in self.work), max))

    @classmethod
    def of(cls, profile: Any) -> Trace:
        """The trace of a ``torch.profiler.profile`` that has ended."""
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            profile.export_chrome_trace(file.name)
            return cls(json.loads(Path(file.name).read_text())["traceEvents"])

    def _work(self, event: dict[str, Any]) -> Work:
        launch = float(self._launches[event["args"]["correlation"]]["ts"])
        return Work(launch, float(event["ts"]), float(event["ts"]) + float(event["dur"]))

    def windows(self, name: str) -> list[tuple[float, float]]:
        """The host's intervals of one annotation, in order."""
        found = [event for event in self._events if event.get("cat") == "user_annotation" and event["name"] == name]
        return sorted((float(event["ts"]), float(event["ts"]) + float(event["dur"])) for event in found)

    def span(self, window: tuple[float, float]) -> float:
        """ms from the first start to the last end of what was launched within a window."""
        inside = [work for work in self.work if window[0] <= work.launch <= window[1]]
        return (max(work.end for work in inside) - min(work.start for work in inside)) / 1e3

    def passed(self, host: float) -> float:
        """When the GPU was through with all that had been launched by then, on whatever stream.

        That is when it would pass an event recorded there on a stream that has joined the others.
        """
        before = bisect.bisect_right(self._launched, host)
        return max(self._done[before - 1], host) if before else host

    def between(self, first: float, last: float) -> float:
        """ms on the GPU between events recorded at two of the host's moments."""
        return (self.passed(last) - self.passed(first)) / 1e3

    def collectives(self) -> list[Collective]:
        """NCCL's kernels in order of their start."""
        calls = self._calls("record_param_comms")
        found = []
        for event in self._events:
            name = collective_name(event["name"]) if event.get("cat") == "kernel" else None
            launch = self._launches.get(event["args"].get("correlation")) if name else None
            if name and launch:
                call = _around(calls[launch["tid"]], float(launch["ts"]))
                group = event["args"].get(GROUP) or (call[2].get(GROUP, "") if call else "")
                found.append(Collective(name, str(group), self._work(event)))
        return sorted(found, key=lambda one: one.work.start)

    def messages(self) -> list[tuple[float, str]]:
        """When torch was called to send or to receive something, and which, in order."""
        calls = [call for each in self._calls("record_param_comms").values() for call in each]
        named = ((start, str(arguments.get(WHAT, ""))) for start, _, arguments in calls)
        return sorted((start, what) for start, what in named if what in ("send", "recv"))

    def _calls(self, name: str) -> dict[Any, list[Call]]:
        """By thread, the calls of one of torch's functions, in order."""
        calls: dict[Any, list[Call]] = defaultdict(list)
        for event in self._events:
            if event.get("name") == name and "dur" in event:
                start = float(event["ts"])
                calls[event["tid"]].append((start, start + float(event["dur"]), event.get("args", {})))
        for each in calls.values():
            each.sort(key=lambda call: call[:2])
        return calls


def _around(calls: list[Call], moment: float) -> Call | None:
    """The innermost call that was going on."""
    after = bisect.bisect_right(calls, moment, key=lambda call: call[0])
    return next((call for call in reversed(calls[:after]) if call[1] >= moment), None)
