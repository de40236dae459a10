"""Whether a report says what was done to the job."""

import re
from pathlib import Path
from typing import Any

from disturbances import Disturbance
from hindmost_collector.recordings.load import load
from hindmost_judge.judge import judge

UNKNOWN = "unknown"
#: Verdicts on the program as it is, or that abstain: they blame neither a rank nor a link.
_NO_BLAME = ("balanced", "insufficient_data", "input_bound", "host_bound")
#: Which rank a report says died first, and how, as far as it knows.
_DIED = re.compile(r"rank (\d+)\b[^;]* died first(?:[^;(]*\((?:(SIG\w+)|raised (\w+)))?")
_MEMORY = "ran out of memory"


def graded(disturbance: Disturbance, run: Path) -> dict[str, Any]:
    """The verdicts on this run directory, and whether ranks (``names_right``) and ``cause`` are right.

    Ranks are right if exactly those disturbed are named, in verdicts that such a disturbance may have and no others.
    A cause is ``right``, ``unknown`` or ``wrong``; ``None`` if ranks are wrong or nothing was disturbed. ``step_ms`` is
    the mean step, ``cost_ms`` what verdicts that name ranks say they cost.
    """
    try:
        report = judge(load(run))
    except (OSError, ValueError) as error:
        return {"verdicts": [], "said": f"no report: {error}", "names_right": False, "cause": None}
    verdicts: list[dict[str, Any]] = [
        {"kind": verdict.kind, "ranks": list(verdict.ranks), "cause": verdict.cause, "since_step": verdict.since_step}
        | {"cost_ratio": verdict.cost_ratio and round(verdict.cost_ratio, 3)}
        for verdict in report.verdicts
    ]
    verdicts += [
        {"kind": "stall", "ranks": list(stall.ranks), "cause": "stopped" if stall.stopped_s else None}
        for stall in report.job.stalls
    ]
    first, how = _first_death(report.job.ended or "")
    blaming = [verdict for verdict in verdicts if verdict["kind"] not in _NO_BLAME]
    names = {rank for verdict in blaming for rank in verdict["ranks"]} | ({first} - {None})
    right = names == set(disturbance.ranks) and all(verdict["kind"] in disturbance.kinds for verdict in blaming)
    if disturbance.dies:
        right = right and first in disturbance.ranks
    step = report.job.step_ms["mean"]
    causes = {how} if disturbance.dies else {verdict["cause"] or UNKNOWN for verdict in blaming}
    return {
        "verdicts": verdicts,
        "said": report.job.ended,
        "died": None if first is None else {"rank": first, "how": how},
        "names_right": right,
        "cause": _cause(causes, disturbance) if right and disturbance.causes else None,
        "step_ms": None if step is None else round(step, 2),
        "cost_ms": round(sum(verdict.cost_ms_per_step or 0.0 for verdict in report.verdicts if verdict.ranks), 2),
    }


def _first_death(said: str) -> tuple[int | None, str]:
    """Which rank died first, and how: a signal, an exception, ``out of memory`` or ``unknown``."""
    death = _DIED.search(said)
    if death is None:
        return None, UNKNOWN
    rank, signal, exception = death.groups()
    how = signal or exception or UNKNOWN
    return int(rank), "out of memory" if _MEMORY in said and how in {"SIGKILL", UNKNOWN} else how


def _cause(causes: set[str], disturbance: Disturbance) -> str:
    known = causes - {UNKNOWN}
    if not known <= set(disturbance.causes):
        return "wrong"
    return "right" if known else UNKNOWN
