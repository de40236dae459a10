"""What was said of a live fault and when, against what was so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fault_cases import named, right

if TYPE_CHECKING:
    from collections.abc import Callable

    from fault_cases import Case
    from fault_run import Running

_KEYS = ("kind", "ranks", "cause", "since_step", "until_step", "cost_ms_per_step", "cost_ratio", "partial")


def grade(job: Running, struck_ns: int, ended_ns: int, report: dict[str, Any] | None) -> dict[str, Any]:
    """One case's result. What counts is what was said between the strike and the end; before, it is a false alarm."""
    case, steps, told = job.case, job.steps(), job.struck()
    struck = told.get("time_ns", struck_ns)
    events = [event for event in job.events() if event["time_ns"] <= ended_ns]
    opened = [event for event in events if event["event"] != "closed"]
    after = [event for event in opened if event["time_ns"] >= struck]
    before = [ns for _, ns in steps if ns < struck]
    final = report["verdicts"] if report else []
    found = {
        "fault": case.name,
        "expected": case.expected,
        "step_ms": 1e-6 * (before[-1] - before[-31]) / 30 if len(before) > 30 else None,
        "struck_step": told.get("step", len(before)),
        "named": _first(after, steps, struck, lambda verdict: named(case, verdict)),
        "right": _first(after, steps, struck, lambda verdict: right(case, verdict)),
        "false_alarms": [_brief(e["verdict"]) for e in opened if e["time_ns"] < struck and e["event"] == "opened"],
        "others": [_brief(e["verdict"]) for e in after if e["event"] == "opened" and not named(case, e["verdict"])],
        "final": [_brief(verdict) | {"evidence": verdict["evidence"]} for verdict in final],
        "notes": report["notes"] if report else [],
        "log": [{"after_s": (e["time_ns"] - struck) / 1e9, "event": e["event"]} | _brief(e["verdict"]) for e in events],
    }
    return found | {"as_expected": _as_expected(case, found)}


def _as_expected(case: Case, found: dict[str, Any]) -> bool:
    """Named live with its cause, and nothing else; of a fault that costs nothing, nobody named, live or at the end."""
    if case.kinds:
        return found["right"] is not None
    return not found["others"] and all(one["kind"] in ("balanced", "insufficient_data") for one in found["final"])


def _first(
    events: list[dict[str, Any]],
    steps: list[tuple[int, int]],
    struck: int,
    holds: Callable[[dict[str, Any]], bool],
) -> dict[str, Any] | None:
    """Seconds and steps from the strike to the first event that holds; None where none does."""
    for event in events:
        if holds(event["verdict"]):
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
    head = f"{'case':<14} {'expected':<38} {'named after':<20} {'cause or line after':<20} {'live verdict':<42} ok"
    return "\n".join([head, "-" * len(head), *map(_row, found)])


def _row(one: dict[str, Any]) -> str:
    start = f"{one['fault']:<14} {one['expected']:<38} "
    if "failed" in one:
        return f"{start}not measured: {one['failed']}"
    best = one["right"] or one["named"] or next(iter(one["others"]), None)
    row = f"{start}{_when(one['named']):<20} {_when(one['right']):<20} {_said(best):<42} {_mark(one)}"
    quoted = [told for told in (best or {}).get("evidence", []) if " is at " in told or " ran " in told]
    alarms = [f"before the fault: {_said(alarm)}" for alarm in one["false_alarms"]]
    others = [f"beside it: {_said(other)}" for other in one["others"] if other is not best]
    return "\n".join([row, *(f"{'':15}{extra}" for extra in [*quoted, *alarms, *others, *one["notes"][:2]])])


def _mark(one: dict[str, Any]) -> str:
    return "yes" if one["as_expected"] else "NO"


def _when(found: dict[str, Any] | None) -> str:
    return "-" if found is None else f"{found['seconds']:.1f} s / {found['steps']} steps"


def _said(verdict: dict[str, Any] | None) -> str:
    if verdict is None:
        return "nobody named"
    cost = verdict["cost_ms_per_step"]
    costs = "" if cost is None else f" +{cost:.1f} ms"
    since = "" if verdict["since_step"] is None else f" since {verdict['since_step']}"
    return f"{verdict['kind']} {verdict['ranks']} {verdict['cause'] or ''}{costs}{since}"
