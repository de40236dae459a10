"""Sends and receives on GPUs, by the plugin and by the PyTorch profiler: a part of parallel_phases.py.

The plugin tells each of them, torch each call, and the profiler kernels, of which one may be several of them at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profile_trace import Trace

NAMES = ("send", "recv")
KERNEL = "send_recv"
#: What the plugin adds before a kernel's first channel (KERNEL_EDGES_NS): of two kernels on end, the second seems to
#: begin so long before the first has ended.
EDGES_NS = 3000


def word(name: str, group: object) -> str:
    """Collectives are told by communicator; messages not, for torch may make one of its own for two ranks."""
    return name if name in NAMES else f"{group}: {name}"


def kernels(events: Sequence[Any]) -> list[tuple[int, int]]:
    """Start and end, ns, of what was one kernel: messages whose channels ran at one time."""
    found: list[tuple[int, int]] = []
    for start, end in sorted((one.start_ns, one.start_ns + one.duration_ns) for one in events if one.name in NAMES):
        if found and start < found[-1][1] - EDGES_NS:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def compared(trace: Trace, events: Sequence[Any]) -> tuple[list[tuple[float, float]], dict[str, Any]]:
    """GPU ms of each step's messages by plugin and profiler, and how many there were.

    Kernels are put side by side in the order of their start, where both have as many of them.
    """
    starts = [start for start, _ in trace.windows("forward")]
    theirs = [one.work for one in trace.collectives() if one.name == KERNEL]
    ours = kernels(events)
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for (start, end), work in zip(ours, theirs, strict=True) if len(ours) == len(theirs) else ():
        of_step = sums[bisect_right(starts, work.launch) - 1]
        of_step[0] += (end - start) / 1e6
        of_step[1] += (work.end - work.start) / 1e3
    plugin = Counter(one.name for one in events if one.name in NAMES)
    called = Counter(what for _, what in trace.messages())
    counts = {"plugin": dict(plugin), "called": dict(called), "kernels": {"plugin": len(ours), "profiler": len(theirs)}}
    equal = plugin == called and len(ours) == len(theirs)
    return [(mine, other) for step, (mine, other) in sorted(sums.items()) if step > 0], {"equal": equal, **counts}
