"""One job simulated, judged, and compared with what is true of it."""

import time
from collections.abc import Sequence
from typing import Any

from grade import NAMING
from hindmost_judge.judge import judge
from hindmost_judge.verdict.schema import Verdict

from two_lanes import simulate
from two_lanes.families import job
from two_lanes.job import Fault, Job, Truth

#: A fault that makes the steps in which it acts longer by this share must be named; by less than the other, it costs
#: nothing and must not be. Between them either is right.
MUST, HIDDEN = 0.03, 0.005
#: Lane of a fault to the causes that are right.
CAUSES = {"host": ("compute",), "gpu": ("compute",), "input": ("input",), "link": ("network",)}


def grade(family: str, seed: int) -> dict[str, Any]:
    """Everything the table needs to know of one run."""
    asked = job(family, seed)
    simulated = simulate(asked)
    begun = time.perf_counter()
    verdicts = judge(simulated.run).verdicts
    took = time.perf_counter() - begun
    return compared(asked, simulated.truth, verdicts) | {"family": family, "seed": seed, "judge_seconds": took}


def compared(asked: Job, truth: Truth, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    clean = truth.repaired / asked.steps
    naming = [verdict for verdict in verdicts if verdict.kind in NAMING and verdict.cause != "workload"]
    repairs = zip(truth.each, truth.active, strict=True)
    effects = [(truth.total - each) / max(active, 1) / clean for each, active in repairs]
    faults = [rank for fault in asked.faults for rank in fault.ranks]
    must = {rank for fault, effect in zip(asked.faults, effects, strict=True) for rank in fault.ranks if effect >= MUST}
    whole = (truth.total - truth.repaired) / max(max(truth.active, default=1), 1) / clean
    may = (set(faults) if whole >= HIDDEN else set()) | set(getattr(asked, "slower", ()))
    named = {rank for verdict in naming for rank in verdict.ranks}
    right = [verdict for verdict in naming if set(verdict.ranks) <= may & set(faults)]
    return {
        "ranks": asked.ranks,
        "steps": asked.steps,
        "written": asked.written,
        "faults": [[fault.lane, fault.phase, list(fault.ranks), fault.onset] for fault in asked.faults],
        "effect": whole,
        "must": sorted(must),
        "may": sorted(may),
        "named": sorted(named),
        "exact": must <= named <= may,
        "once": len(naming) <= len(named),
        "kinds": [verdict.kind for verdict in verdicts],
        "causes": sorted({str(verdict.cause) for verdict in right}),
        "cause": _cause(asked.faults, right),
        "late": _late(asked.faults, right),
        "cost": _cost(asked, truth, right) if must else None,
        "confidence": [[verdict.confidence, set(verdict.ranks) <= may] for verdict in naming],
    }


def _cause(faults: Sequence[Fault], right: Sequence[Verdict]) -> str | None:
    """``right``, ``unknown`` or ``wrong``, of the verdicts on faulty ranks; ``None`` where there are none."""
    if not right:
        return None
    lanes = {rank: fault.lane for fault in faults for rank in fault.ranks}
    wanted = [CAUSES[lanes[verdict.ranks[0]]] for verdict in right]
    if any(one.cause not in (*causes, "unknown") for one, causes in zip(right, wanted, strict=True)):
        return "wrong"
    return "unknown" if any(verdict.cause == "unknown" for verdict in right) else "right"


def _late(faults: Sequence[Fault], right: Sequence[Verdict]) -> int | None:
    """Steps from a fault's onset to the first verdict on its ranks.

    What happens once in so many steps, and first within as many, is there from the start.
    """
    since = [verdict.since_step for verdict in right if verdict.since_step is not None]
    return min(since) - min(one.onset if one.onset >= one.every else 0 for one in faults) if since else None


def _cost(asked: Job, truth: Truth, right: Sequence[Verdict]) -> float | None:
    """What verdicts on faulty ranks say that a repair of these saves, over what it does."""
    if not right:
        return None
    named = {rank for verdict in right for rank in verdict.ranks}
    without = [each for fault, each in zip(asked.faults, truth.each, strict=True) if named & set(fault.ranks)]
    said = 0.0
    for one in right:
        until = asked.steps if one.until_step is None else one.until_step
        said += (one.cost_ms_per_step or 0.0) * (until - (one.since_step or 0))
    return said / (truth.total - (without[0] if len(without) == 1 else truth.repaired))
