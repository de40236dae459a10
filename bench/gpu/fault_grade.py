"""What was said of a live fault and when, against what was so.

A verdict on steps before the strike, however late it comes, is not about the fault. The job's own steps may confirm
what no case expects: launch-bound hosts (no rank named), where steps are longer than in the undisturbed job; and a
fault that is not hidden, where they are longer since.
"""

from collections.abc import Callable
from typing import Any

import fault_effect
from fault_cases import Case, named, right, told
from fault_run import Running

#: What evidence of a job that stopped has in it.
QUOTED = (" is at ", " ran ", " entered ")
_KEYS = ("kind", "ranks", "cause", "since_step", "until_step", "cost_ms_per_step", "cost_ratio", "partial")


def grade(job: Running, struck_ns: int, ended_ns: int, report: dict[str, Any] | None) -> dict[str, Any]:
    """One case's result. What counts is what was said between the strike and the end; before, it is a false alarm."""
    case, steps, began = job.case, job.steps(), job.struck()
    struck = began.get("time_ns", struck_ns)
    events = [event for event in job.events() if event["time_ns"] <= ended_ns]
    opened = [event for event in events if event["event"] != "closed"]
    first = began.get("step", sum(ns < struck for _, ns in steps))
    after = [event for event in opened if event["time_ns"] >= struck and not _over(event["verdict"], first)]
    final = report["verdicts"] if report else []
    effect = fault_effect.effect(steps, struck, ended_ns, case.period)
    new = [one for one in opened if _new(case, one) and not (one in after and named(case, one["verdict"]))]
    borne_out = [
        e for e in new if _borne_out(case, e["verdict"], effect, [one for one in steps if one[1] <= e["time_ns"]])
    ]
    left = [event for event in new if event not in borne_out]
    found = {
        "fault": case.name,
        "expected": case.expected,
        "struck_step": first,
        **effect,
        "named": _first(case, after, steps, struck, named),
        "right": _first(case, after, steps, struck, right),
        "false_alarms": [_brief(event["verdict"]) for event in left if event not in after],
        "others": [_brief(event["verdict"]) for event in left if event in after],
        "borne_out": [_brief(event["verdict"]) for event in borne_out],
        "final": [_brief(verdict) | {"evidence": verdict["evidence"]} for verdict in final],
        "notes": report["notes"] if report else [],
        "log": [{"after_s": (e["time_ns"] - struck) / 1e9, "event": e["event"]} | _brief(e["verdict"]) for e in events],
    }
    if case.kinds and not case.stops:
        mine = [verdict for verdict in final if named(case, verdict)]
        last = max(
            (step for step, ns in steps if ns <= ended_ns), default=first
        )  # the fault ends with what is observed
        found |= fault_effect.judged(case, mine, first, last, found["effect_ms"])
    unexpected = [verdict for verdict in final if not _borne_out(case, verdict, effect, steps)]
    return found | {"as_expected": _as_expected(case, found, unexpected)}


def _over(verdict: dict[str, Any], struck: int) -> bool:
    """Whether what a verdict is about had ended before the strike."""
    return verdict["until_step"] is not None and verdict["until_step"] <= struck


def _borne_out(case: Case, verdict: dict[str, Any], effect: dict[str, Any], steps: list[tuple[int, int]]) -> bool:
    """Whether the job's own steps, as far as it is said of these, show what no case expects."""
    if verdict["kind"] == "host_bound" and not verdict["ranks"]:
        return fault_effect.held_up(steps, verdict["since_step"] or 0)
    culprit = verdict["ranks"] == case.culprits and verdict["cause"] in case.causes
    return case.hides and culprit and fault_effect.felt(effect)


def _new(case: Case, event: dict[str, Any]) -> bool:
    """Whether a verdict was opened that is not how such a job is to be called."""
    return event["event"] == "opened" and event["verdict"]["kind"] != case.answer


def _as_expected(case: Case, found: dict[str, Any], final: list[dict[str, Any]]) -> bool:
    """Named live with its cause; where no rank is to be named, none was, live or at the end, and a note says why."""
    if case.kinds:
        return found["right"] is not None
    answers = ("balanced", "insufficient_data", case.answer)
    quiet = not found["others"] and all(one["kind"] in answers for one in final)
    return quiet and any(case.note in note for note in [*found["notes"], ""])


def _first(
    case: Case,
    events: list[dict[str, Any]],
    steps: list[tuple[int, int]],
    struck: int,
    holds: Callable[[Case, dict[str, Any]], bool],
) -> dict[str, Any] | None:
    """Seconds and steps from the strike until lasting events have named all ranks at fault; None where they do not."""
    known: set[int] = set()
    for event in events:
        if holds(case, event["verdict"]):
            known |= told(case, event["verdict"])
            if known == set(case.culprits):
                at = event["time_ns"]
                passed = sum(struck < ns <= at for _, ns in steps)
                when = {"seconds": (at - struck) / 1e9, "steps": passed}
                return when | _brief(event["verdict"]) | {"evidence": event["verdict"]["evidence"]}
    return None


def _brief(verdict: dict[str, Any]) -> dict[str, Any]:
    return {key: verdict.get(key) for key in _KEYS}


def failed(case: Case, reason: str, last_words: str) -> dict[str, Any]:
    """The result of a case that could not be measured, which is no result about verdicts."""
    return {"fault": case.name, "expected": case.expected, "failed": reason, "output": last_words, "as_expected": False}


def table(found: list[dict[str, Any]]) -> str:
    """Cases as rows to read, with what the decisive verdict quotes."""
    head = f"{'case':<18} {'expected':<38} {'named after':<20} {'cause or line after':<20} {'live verdict':<42} ok"
    return "\n".join([head, "-" * len(head), *map(_row, found)])


def _row(one: dict[str, Any]) -> str:
    start = f"{one['fault']:<18} {one['expected']:<38} "
    if "failed" in one:
        return f"{start}not measured: {one['failed']}"
    best = one["right"] or one["named"] or next(iter(one["others"]), None)
    row = f"{start}{_when(one['named']):<20} {_when(one['right']):<20} {_said(best):<42} {_mark(one)}"
    quoted = [line for line in (best or {}).get("evidence", []) if any(word in line for word in QUOTED)]
    alarms = [f"before the fault: {_said(alarm)}" for alarm in one["false_alarms"]]
    others = [f"besides: {_said(other)}" for other in one["others"] if other is not best]
    others += [f"borne out by longer steps: {_said(other)}" for other in one["borne_out"]]
    return "\n".join(
        [row, *(f"{'':19}{extra}" for extra in [*_effect(one), *quoted, *alarms, *others, *one["notes"][:2]])]
    )


def _effect(one: dict[str, Any]) -> list[str]:
    """Steps before and after, and the error of the reported values."""
    if one["effect_ms"] is None:
        return []
    steps = f"steps of {one['step_ms_before']:.1f} ms became {one['step_ms_after']:.1f} ms"
    onset, off = one.get("onset_off_steps"), one.get("cost_off")
    since = "" if onset is None else f", onset off by {onset} steps"
    cost = "" if off is None else f", cost +{one['cost_told_ms']:.1f} ms: off by {off:.0%}"
    return [f"{steps}{since}{cost}"]


def summary(found: list[dict[str, Any]]) -> dict[str, int]:
    """Of how many cases what was right."""
    onsets = [one["onset_right"] for one in found if one.get("onset_right") is not None]
    costs = [one["cost_right"] for one in found if one.get("cost_right") is not None]
    return {
        "as_expected": sum(one["as_expected"] for one in found),
        "of": len(found),
        "not_measured": sum("failed" in one for one in found),
        "onsets_right": sum(onsets),
        "of_onsets": len(onsets),
        "costs_right": sum(costs),
        "of_costs": len(costs),
        "with_false_alarms_before": sum(bool(one.get("false_alarms")) for one in found),
    }


def _mark(one: dict[str, Any]) -> str:
    return "yes" if one["as_expected"] else "NO"


def _when(found: dict[str, Any] | None) -> str:
    return "-" if found is None else f"{found['seconds']:.1f} s / {found['steps']} steps"


def _said(verdict: dict[str, Any] | None) -> str:
    if verdict is None:
        return "no rank named"
    cost = verdict["cost_ms_per_step"]
    costs = "" if cost is None else f" +{cost:.1f} ms"
    since = "" if verdict["since_step"] is None else f" since {verdict['since_step']}"
    return f"{verdict['kind']} {verdict['ranks']} {verdict['cause'] or ''}{costs}{since}"
