"""Partial read: verdicts on a recording of which an excerpt was read; between two periods the state is unknown.

Findings are of the steps that were read. Where a verdict's begin or end meets unread steps, it lies anywhere among
these. A rank that is named in no step that was read is not cleared in the others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.model import Job, rows
from hindmost_judge.verdict.schema import STOPS
from hindmost_judge.verdict.wording import OLDER, percent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hindmost_judge.blocks import Blocks
    from hindmost_judge.model import Run
    from hindmost_judge.verdict.schema import Verdict

#: A change is reported up to this many steps away from where it was: noise moves it.
_NEAR = 2


def judged(found: Iterable[Verdict], run: Run, blocks: Blocks | None) -> list[Verdict]:
    """The verdicts, with how far each is known; as they are where all was read."""
    if blocks is None or not len(blocks.steps):
        return list(found)
    if run.job.skipped_ns is None:
        running = run.job.source == Job.source and run.job.ended_ns is None and run.job.exit_code is None
        return [_from_the_edge(one, blocks) for one in found] if running else list(found)
    return [_balanced(one, run, blocks) if one.kind == "balanced" else _dated(one, run, blocks) for one in found]


def _balanced(one: Verdict, run: Run, blocks: Blocks) -> Verdict:
    read, every = len(blocks.steps) + blocks.warmup, run.job.steps
    share = (
        f"{read:,} of {every:,} steps ({percent(read / every)}) were read" if every else "a part of the steps was read"
    )
    return replace(one, evidence=(f"{share} and judged; the others may differ", *one.evidence))


def _dated(one: Verdict, run: Run, blocks: Blocks) -> Verdict:
    told = [
        f"it {what} between steps {min(low - 1, step)} and {max(high + 1, step)}: {low} to {high} were not read"
        for what, step in (("began", one.since_step), ("ended", one.until_step))
        if step is not None and (gap := _unread(step, blocks)) is not None
        for low, high in [gap]
    ]
    after = _after(run, blocks) if one.until_step is None and one.kind not in STOPS else None
    if after is not None:
        told.append(f"steps from {after} on were not read: it may have ended there")
    return replace(one, evidence=(*one.evidence, *told)) if told else one


def _from_the_edge(one: Verdict, blocks: Blocks) -> Verdict:
    """Of a job that is watched for longer than the window remembers: what begins with the window may be older."""
    near = blocks.steps[: _NEAR + 1]
    if one.since_step is None or one.since_step == 0 or not near[0] <= one.since_step <= near[-1]:
        return one
    return replace(
        one, evidence=(*one.evidence, f"{OLDER} {int(near[0])} are no longer in memory: it may have begun earlier")
    )


def _unread(step: int, blocks: Blocks) -> tuple[int, int] | None:
    """The first and last of the steps before this one that were not read, where there are any next to it."""
    at = int(np.searchsorted(blocks.steps, step))
    near = range(max(at - _NEAR, 1), min(at + _NEAR + 1, len(blocks.steps)))
    gaps = [(int(blocks.steps[i - 1]) + 1, int(blocks.steps[i]) - 1) for i in near]
    return max((gap for gap in gaps if gap[0] <= gap[1]), key=lambda gap: gap[1] - gap[0], default=None)


def _after(run: Run, blocks: Blocks) -> int | None:
    """The first step behind the last one that was judged, where more of them were left out than are between two."""
    if run.job.steps is None or not rows(run.steps):
        return None
    end, last = int(run.steps["step"].min()) + run.job.steps - 1, int(blocks.steps[-1])
    return last + 1 if end - last > max(int(np.diff(blocks.steps).max(initial=1)), _NEAR) else None
