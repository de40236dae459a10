"""What a fault did to the job's steps, from the job's own log, compared with what verdicts say."""

from typing import Any

from fault_cases import Case

#: Steps in which the first processes settle, and in which a fault takes hold: hosts are some steps ahead of GPUs.
WARM, SETTLES = 45, 10
#: Fewer steps tell no mean.
LEAST = 20
#: The first steps compile, allocate and tune.
SETTLED = 5
#: Consecutive steps with one mean, of whose means this percentile is the pace of a job that nothing disturbs.
BLOCK, CALM = 20, 25
#: Steps whose mean is so much above that pace were held up by something.
FELT = 0.02
#: A right onset is so many steps off at most, or a period of what comes now and then; a right cost by so much.
ONSET, COST = 3, 0.2


def effect(steps: list[tuple[int, int]], struck_ns: int, ended_ns: int, period: int) -> dict[str, Any]:
    """Ms of the mean step before and after the strike, over whole periods; None where there are too few."""
    before = [ns for step, ns in steps if ns < struck_ns and step >= WARM]
    after = [ns for _, ns in steps if struck_ns <= ns <= ended_ns][SETTLES:]
    after = after[: (len(after) - 1) // period * period + 1]
    was, became = _mean_ms(before), _mean_ms(after)
    more = None if was is None or became is None else became - was
    return {"step_ms_before": was, "step_ms_after": became, "effect_ms": more, "steps_after": max(len(after) - 1, 0)}


def felt(effect: dict[str, Any]) -> bool:
    """Whether steps are longer since the strike."""
    return effect["effect_ms"] is not None and bool(effect["effect_ms"] >= FELT * effect["step_ms_before"])


def held_up(steps: list[tuple[int, int]], since: int) -> bool:
    """Whether the steps from ``since`` on took longer than those of them that nothing disturbed."""
    ends = [ns for step, ns in steps if step > max(since, SETTLED)]
    means = sorted(_mean_ms(ends[at : at + BLOCK + 1]) or 0.0 for at in range(0, len(ends) - BLOCK, BLOCK))
    mean = _mean_ms(ends)
    return mean is not None and mean >= (1 + FELT) * means[len(means) * CALM // 100]


def _mean_ms(ends: list[int]) -> float | None:
    return 1e-6 * (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > LEAST else None


def judged(
    case: Case, verdicts: list[dict[str, Any]], struck: int, last: int, effect_ms: float | None
) -> dict[str, Any]:
    """How far the onset and the cost of these verdicts on the right ranks are off; None where nothing tells.

    Costs are means of the steps of a verdict: spread over all steps from the strike on, they add up. ``last`` is the
    last step of which the effect is: those after it, in which the job ends, may be without the fault.
    """
    begun = [one["since_step"] for one in verdicts if one["since_step"] is not None]
    told = [one for one in verdicts if one["cost_ms_per_step"] is not None and one["since_step"] is not None]
    spread = sum(one["cost_ms_per_step"] * _length(one, struck, last) for one in told) / max(last + 1 - struck, 1)
    late = min(begun) - struck if begun else None
    off = spread / effect_ms - 1 if told and effect_ms else None
    return {
        "onset_off_steps": late,
        "onset_right": None if late is None else abs(late) <= max(ONSET, case.period),
        "cost_told_ms": spread if told else None,
        "cost_off": off,
        "cost_right": None if off is None else abs(off) <= COST,
    }


def _length(verdict: dict[str, Any], struck: int, last: int) -> int:
    until = last + 1 if verdict["until_step"] is None else min(verdict["until_step"], last + 1)
    return max(int(until) - max(int(verdict["since_step"]), struck), 0)
