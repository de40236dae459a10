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
    """The verdicts on this run directory, and whether their names and causes are right.

    Causes are ``None`` where none is to judge: no rank is named, or what was done has no cause among those of verdicts.
    """
    try:
        report = judge(load(run))
    except (OSError, ValueError) as error:
        return {"verdicts": [], "said": f"no report: {error}", "names_right": False, "cause_right": None}
    verdicts: list[dict[str, Any]] = [
        {"kind": one.kind, "ranks": list(one.ranks), "cause": one.cause, "since_step": one.since_step}
        | {"cost_ratio": one.cost_ratio and round(one.cost_ratio, 3)}
        for one in report.verdicts
    ]
    verdicts += [
        {"kind": "stall", "ranks": list(one.ranks), "cause": "stopped" if one.stopped_s else None}
        for one in report.job.stalls
    ]
    said = report.job.ended
    named = [one for one in verdicts if one["ranks"]]
    names = {rank for one in named for rank in one["ranks"]}
    right = names == set(disturbance.ranks)
    if disturbance.ended:
        first = re.findall(r"rank (\d+)\b.* died first", said or "")
        named = [one for one in named if one["kind"] in (*disturbance.kinds, "stall")]
        right = names <= set(disturbance.ranks) and (first == ["1"] if first else bool(named))
    causes = {one["cause"] for one in named if one["cause"] is not None}
    cause = causes <= set(disturbance.causes) if causes and disturbance.causes else None
    return {"verdicts": verdicts, "said": said, "names_right": right, "cause_right": cause}


def cost(run: Path) -> tuple[float, float]:
    """The mean step, and what verdicts that name ranks say they cost, ms."""
    report = judge(load(run))
    costs = [one.cost_ms_per_step or 0.0 for one in report.verdicts if one.ranks]
    return report.job.step_ms["mean"] or float("nan"), sum(costs)
