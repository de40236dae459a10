"""Whether a report says what was done to the job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hindmost_collector.judge import judge
from hindmost_collector.sources import load

if TYPE_CHECKING:
    from pathlib import Path

    from disturbances import Disturbance


def graded(disturbance: Disturbance, run: Path) -> dict[str, Any]:
    """The verdicts on this run directory, and whether their names and causes are right."""
    try:
        report = judge(load(run))
    except (OSError, ValueError) as error:
        return {"verdicts": [], "said": f"no report: {error}", "names_right": False, "cause_right": False}
    verdicts = [
        {"kind": one.kind, "ranks": list(one.ranks), "cause": one.cause, "since_step": one.since_step}
        | {"cost_ratio": one.cost_ratio and round(one.cost_ratio, 3)}
        for one in report.verdicts
    ]
    said = report.job.ended
    names = sorted({rank for one in report.verdicts for rank in one.ranks})
    if disturbance.ended:
        first = re.findall(r"rank (\d+)\b.* died first", said or "")
        hung = [list(one.ranks) for one in report.verdicts if one.kind in disturbance.kinds]
        hung += [list(one.ranks) for one in report.job.stalls]
        right = first == ["1"] if first else [1] in hung
        return {"verdicts": verdicts, "said": said, "names_right": right, "cause_right": True}
    right = names == list(disturbance.ranks)
    of_kind = [one for one in report.verdicts if one.ranks and (not disturbance.kinds or one.kind in disturbance.kinds)]
    cause = all(one.cause in disturbance.causes for one in of_kind) if disturbance.ranks else True
    return {"verdicts": verdicts, "said": said, "names_right": right, "cause_right": cause}


def cost(run: Path) -> tuple[float, float]:
    """The mean step, and what verdicts that name ranks say they cost, ms."""
    report = judge(load(run))
    named = [one.cost_ms_per_step or 0.0 for one in report.verdicts if one.ranks]
    return float(report.job.step_ms["mean"]), sum(named)
