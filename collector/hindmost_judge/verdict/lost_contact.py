"""Lost contact: a foreign recording in which nothing ends any more though GPUs are busy, without a readable dump.

The report says that the job stopped and where its ranks stood, not which rank they wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes.telemetry import Metrics
from hindmost_judge.model import PROFILED, Job, rows
from hindmost_judge.timeline.phases import training
from hindmost_judge.verdict.schema import Verdict
from hindmost_judge.verdict.wording import names
from hindmost_judge.verdict.wording_stop import source_line, stacks_of

if TYPE_CHECKING:
    from hindmost_judge.model import Run
    from hindmost_judge.settings import Settings

_BUSY_METRIC = "hindmost_gpu_utilization_ratio"
#: A GPU at work for this share of the time: waiting in a collective looks like that; one whose job is over is idle.
_BUSY = 0.5
#: A name where one stands alone needs so many that stand together.
_TOGETHER = 2
#: Most source lines reported at which ranks stand, those of most ranks first.
_SHOWN = 8


def find(run: Run, step_ns: float, settings: Settings) -> tuple[list[Verdict], list[str]]:
    """The verdict where stacks show the ranks, a note where nothing does; neither where the job may have ended."""
    if run.job.source == Job.source or rows(run.in_flight):
        return [], []
    quiet_ns = _quiet(run)
    if quiet_ns is None or quiet_ns < settings.patience_ns(step_ns):
        return [], []
    quiet = f"no operation ended in the last {quiet_ns / 1e9:.1f} s of the recording, while GPUs were busy"
    stood = _standing(run)
    if not stood:
        return [], [f"{quiet}: dumps of py-spy or of PyTorch's Flight Recorder from then would show a hang"]
    steps = training(run.steps)
    stopped = Verdict(
        kind="hang",
        cause="unknown",
        since_step=int(steps["step"].max()) + 1 if rows(steps) else None,
        confidence=0.6,
        evidence=(
            quiet,
            *(f"{names(ranks)} {'is' if len(ranks) == 1 else 'are'} at {line}" for line, ranks in stood[:_SHOWN]),
            "no readable dump shows the open operations: no rank is named",
        ),
        advice=(_advice(stood),),
    )
    return [stopped], []


def _quiet(run: Run) -> float | None:
    """Ns from the last end of anything to the last sample, GPUs at work throughout; ``None`` where they are not.

    Nor where no log of the steps goes on for as long as the job: a profiler sees a window of it.
    """
    if not rows(run.steps) or (run.steps["kind"] == PROFILED).all():
        return None
    tables = [one for one in (run.steps, run.collectives) if rows(one)]
    ends = [one["start_ns"] + np.maximum(one["duration_ns"], 0) for one in tables if (one["start_ns"] >= 0).all()]
    if not ends:
        return None
    last = max(int(one.max()) for one in ends)
    since = [(one.times, one.values[one.times > last]) for one in Metrics.of(run).series(_BUSY_METRIC)]
    busy = [times for times, values in since if len(values) and float(np.mean(values >= _BUSY)) >= _BUSY]
    return float(max(int(times.max()) for times in busy) - last) if busy else None


def _standing(run: Run) -> list[tuple[str, list[int]]]:
    """The lines at which ranks stand, and which do: those of most ranks first."""
    at: dict[str, list[int]] = {}
    for rank, text in sorted(stacks_of(run).items()):
        at.setdefault(source_line(text), []).append(rank)
    return sorted(at.items(), key=lambda one: -len(one[1]))


def _advice(stood: list[tuple[str, list[int]]]) -> str:
    (_, most), (line, few) = stood[0], stood[-1]
    if len(stood) == _TOGETHER and len(few) == 1 and len(most) >= _TOGETHER:
        return f"find out what {names(few)} waits for at {line}: all others are at another line"
    return "find the line that is no wait for others: the others wait for the ranks there"
