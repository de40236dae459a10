"""Sends and receives on GPUs, by the plugin and by the PyTorch profiler: a part of parallel_phases.py.

The plugin tells each of them, torch each call, and the profiler kernels, of which one may be several of them at once.
Of those NCCL takes the time by the kernel's first thread, which is one of a send's where there is one: it does not say
when the others ended. So the times of messages that were a kernel each are compared; for the others the table gives the
share of the kernel that they seem to have taken.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profile_trace import Trace

NAMES = ("send", "recv")
KERNEL = "send_recv"
#: What the plugin adds before a kernel's first channel (KERNEL_EDGES_NS): of two kernels on end, the second seems to
#: begin so long before the first has ended.
EDGES_NS = 3000


def word(name: str, group: object) -> str:
    """Collectives are identified by communicator; messages are not, for torch may make one of its own for two ranks."""
    return name if name in NAMES else f"{group}: {name}"


class Kernel(NamedTuple):
    """Messages whose channels ran at one time: start and end, ns, and how many."""

    start: int
    end: int
    messages: int


def kernels(events: Sequence[Any]) -> list[Kernel]:
    """What was one kernel, in order."""
    found: list[Kernel] = []
    for start, end in sorted((one.start_ns, one.start_ns + one.duration_ns) for one in events if one.name in NAMES):
        last = found[-1] if found else Kernel(0, 0, 0)
        if start < last.end - EDGES_NS:
            found[-1] = Kernel(last.start, max(last.end, end), last.messages + 1)
        else:
            found.append(Kernel(start, end, 1))
    return found


def compared(trace: Trace, events: Sequence[Any]) -> tuple[list[tuple[float, float]], dict[str, Any]]:
    """GPU ms of each step's messages by plugin and profiler, and how many there were.

    Kernels are put side by side in the order of their start, where both have as many of them.
    """
    starts = [start for start, _ in trace.windows("forward")]
    theirs = [one.work for one in trace.collectives() if one.name == KERNEL]
    ours = kernels(events)
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    together = []
    for mine, work in zip(ours, theirs, strict=True) if len(ours) == len(theirs) else ():
        took = (mine.end - mine.start) / 1e6, (work.end - work.start) / 1e3
        if mine.messages > 1:
            together.append(took[0] / took[1])
            continue
        of_step = sums[bisect_right(starts, work.launch) - 1]
        of_step[0] += took[0]
        of_step[1] += took[1]
    plugin = Counter(one.name for one in events if one.name in NAMES)
    called = Counter(what for _, what in trace.messages())
    counts = {
        "equal": plugin == called and len(ours) == len(theirs),
        "plugin": dict(plugin),
        "called": dict(called),
        "kernels": {"plugin": len(ours), "profiler": len(theirs)},
        "of_several": {"kernels": len(together), "shares": [round(one, 3) for one in _quartiles(together)]},
    }
    return [(mine, other) for step, (mine, other) in sorted(sums.items()) if step > 0], counts


def _quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values) if len(values) > 1 else values
