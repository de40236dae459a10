"""Source lines of stack dumps: where a rank is, and where a slow one mostly is while it is off the CPU."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from hindmost_judge.model import Run

#: A Python function and its line, as stack dumps have them.
_FRAME = re.compile(r"([\w.<>]+) \((.+\.py:\d+)\)")
#: The main thread where it is off the CPU; one that never imported threading has no name.
_OFF_CPU = re.compile(r'^Thread \S+ \(idle\)(?:: "MainThread")?$\n((?:^ .*\n?)*)', re.MULTILINE)
#: So many stacks of a rank at one line are no chance.
_ENOUGH = 2


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


def off_cpu(run: Run, ranks: Sequence[int]) -> dict[int, tuple[str, str]]:
    """Rank to the line at which most stacks have it off the CPU, and in how many of them: ``9 of 16 stacks``."""
    found = {}
    for rank in ranks:
        texts = run.stacks["text"][run.stacks["rank"] == rank].tolist()
        lines = Counter(source_line(idle[1]) for text in texts if (idle := _OFF_CPU.search(text)))
        line, often = max(lines.items(), key=lambda one: one[1], default=("", 0))
        if often >= _ENOUGH and 2 * often > lines.total():
            found[rank] = line, f"{often} of {len(texts)} stacks"
    return found
