"""Source lines of stack dumps: where a rank is, and where a slow one mostly is while it is off the CPU."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from hindmost_judge.encoding import chosen
from hindmost_judge.model import GPU_TIME, NONBLOCKING, Run
from hindmost_judge.types import UNREAD

#: A Python function and its line, as stack dumps have them.
_FRAME = re.compile(r"([\w.<>]+) \((.+\.py:\d+)\)")
#: A thread: whether it is off the CPU, its name, its frames. The main thread comes first, and may have no name.
_THREAD = re.compile(r'^Thread \S+ \((\S+)\)(?:: "(.*)")?$\n((?:^ .*\n?)*)', re.MULTILINE)
#: Share of all stacks at one line that is no chance, and share of these that may be taken inside of recorded calls: a
#: line of which each stack falls into a call as chance has it is in either too many calls or too few stacks.
_ENOUGH = _IN_CALLS = 0.25


def source_line(stack: str) -> str:
    """``train.py:49, in load()``: the innermost Python frame of a stack dump outside of libraries."""
    frames = [line.strip() for line in stack.splitlines() if "(" in line and ")" in line and ":" in line]
    foreign = ("site-packages", "/lib/python", "hindmost/probes/")
    own = [line for line in frames if ".py" in line and not any(place in line for place in foreign)]
    line = (own or frames or [stack.strip().partition("\n")[0] or "an empty stack"])[0]
    frame = _FRAME.fullmatch(line)
    if frame is None:
        return line
    return frame[2] if frame[1] == "<module>" else f"{frame[2]}, in {frame[1]}()"


def off_cpu(run: Run, ranks: Sequence[int], delay: float, usual: float) -> dict[int, tuple[str, str]]:
    """Rank to the line at which it mostly is off the CPU, and in how many stacks: ``9 of 16 stacks``.

    A line inside of recorded calls shows where the rank waits for others. One whose share of the stacks is nearer to
    the ``usual`` share of a step that peers are off the CPU is theirs, too; others have the ``delay``, a share of the
    step, alone or next to it. Without recorded calls none is known.
    """
    found = {}
    calls = chosen(run.collectives, (run.collectives["flags"] & (GPU_TIME | NONBLOCKING)) == 0)
    for rank in ranks:
        its, of_rank = chosen(run.stacks, run.stacks["rank"] == rank), chosen(calls, calls["rank"] == rank)
        read = [(text, at) for text, at in zip(*(its[name].tolist() for name in ("text", "time_ns")), strict=True)]
        read = [(text, at) for text, at in read if not text.startswith(UNREAD)]
        begins = np.sort(of_rank["start_ns"])
        ends = np.maximum.accumulate((of_rank["start_ns"] + of_rank["duration_ns"])[np.argsort(of_rank["start_ns"])])
        lines: Counter[str] = Counter()
        in_calls: Counter[str] = Counter()
        for text, at in read if len(begins) else ():
            if (frames := _idle(text)) is not None:
                before = int(np.searchsorted(begins, at, side="right"))
                lines[source_line(frames)] += 1
                in_calls[source_line(frames)] += before > 0 and at < ends[before - 1]
        own = Counter({line: often for line, often in lines.items() if in_calls[line] <= _IN_CALLS * often})
        for line, often in list(own.items()):
            share = often / len(read)
            if abs(share - usual) < min(abs(share - delay), abs(share - delay - usual)):
                del own[line]
        line, often = max(own.items(), key=lambda one: one[1], default=("", 0))
        if often >= max(_ENOUGH, delay / 2) * len(read) and 2 * often > own.total():
            found[rank] = line, f"{often} of {len(read)} stacks"
    return found


def _idle(stack: str) -> str | None:
    """The frames of the main thread where it is off the CPU."""
    threads = _THREAD.findall(stack)
    state, _, frames = next((one for one in threads if one[1] == "MainThread"), threads[0] if threads else ("",) * 3)
    return frames if state == "idle" else None
