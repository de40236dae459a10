"""One run simulated, judged, and compared with what is true of it."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from baselines import BASELINES
from hindmost_collector.simulate import Scenario, Simulated, Truth, simulate
from hindmost_collector.simulate.engine import WARMUP
from hindmost_judge.judge import judge
from hindmost_judge.verdict.schema import Verdict
from suite import scenario

#: Verdicts that name ranks.
NAMING = ("straggler", "intermittent", "hang", "desync")


def graded(grade: Callable[[str, int], dict[str, Any]], key: tuple[str, int]) -> dict[str, Any]:
    """``grade`` of a family and a seed, for a pool of processes: these import no function of the program itself."""
    with np.errstate(all="ignore"):
        return grade(*key)


def grade(family: str, seed: int) -> dict[str, Any]:
    """Everything the table needs to know of one run."""
    job = scenario(family, seed)
    simulated = simulate(job)
    begun = time.perf_counter()
    report = judge(simulated.run)
    took = time.perf_counter() - begun
    naming = [verdict for verdict in report.verdicts if verdict.kind in NAMING]
    row = {
        "family": family,
        "seed": seed,
        "ranks": job.ranks,
        "steps": job.steps,
        "layout": job.layout,
        "onset": min((fault.onset for fault in job.faults), default=None),
        "faults": sorted([rank, fault.cause] for fault in job.faults for rank in fault.ranks),
        "blamed": sorted([rank, str(verdict.cause)] for verdict in naming for rank in verdict.ranks),
        "effect": _effect(job, simulated.truth),
        "top": naming[0].ranks[0] if naming and naming[0].ranks else None,
        "confidences": [verdict.confidence for verdict in naming],
        "right": [int(_is_right(verdict, job)) for verdict in naming],
        "kinds": [verdict.kind for verdict in report.verdicts],
        "since": min((verdict.since_step for verdict in naming if verdict.since_step is not None), default=None),
        "cost": _cost(job, simulated.truth, naming),
        "error": _error(job, simulated, list(report.verdicts)),
        "judge_seconds": took,
    }
    return whole(row | {name: sorted(rule(simulated.run)) for name, rule in BASELINES.items()})


def whole(row: dict[str, Any]) -> dict[str, Any]:
    """A run with what follows from its faults and from what was blamed: ranks and causes alone."""
    return row | {
        "causes": sorted({cause for _, cause in row["faults"]}),
        "true": sorted({rank for rank, _ in row["faults"]}),
        "named": sorted({rank for rank, _ in row["blamed"]}),
        "verdict_causes": sorted({cause for _, cause in row["blamed"]}),
    }


def _is_right(verdict: Verdict, job: Scenario) -> bool:
    """Whether every named rank is at fault."""
    return set(verdict.ranks) <= {rank for fault in job.faults for rank in fault.ranks}


def _effect(job: Scenario, truth: Truth) -> float:
    """What the faults did to the steps in which they acted, as a share of the clean step."""
    active = {step for steps in truth.active for step in steps}
    warm = sum(factor - 1 for factor in WARMUP[: job.warmup]) * job.step_ms * 1e6
    clean = (truth.repaired_ns - warm) / job.steps
    return (truth.total_ns - truth.repaired_ns) / max(len(active), 1) / clean


def _cost(job: Scenario, truth: Truth, naming: list[Verdict]) -> float | None:
    """What verdicts on faulty ranks say that a repair saves, over what it does; ``None`` where there is none.

    A cost is a mean over the steps from the verdict's first to its last.
    """
    right = [verdict for verdict in naming if verdict.cost_ms_per_step and _is_right(verdict, job)]
    saved = truth.total_ns - truth.repaired_ns
    return sum(_saves(one, job) for one in right) / saved if right and saved > 0 else None


def _saves(verdict: Verdict, job: Scenario) -> float:
    """Ns of the whole run that the repair saves."""
    until = job.steps if verdict.until_step is None else verdict.until_step
    return (verdict.cost_ms_per_step or 0.0) * 1e6 * (until - (verdict.since_step or 0))


def _error(job: Scenario, simulated: Simulated, verdicts: list[Verdict]) -> float:
    """How far the judge's time without what it blames is from the true time without the faults."""
    saved = sum(_saves(verdict, job) for verdict in verdicts)
    truth = simulated.truth
    return abs(truth.total_ns - saved - truth.repaired_ns) / truth.repaired_ns
