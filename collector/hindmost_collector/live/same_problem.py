"""Which verdicts of one report are one problem, and which of the next report are the same.

A late rank may be found in all steps or in many of them, with another one, or even later for some steps: that is one
problem, reported once and then changed. A different measured cause makes a different problem.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from hindmost_collector.live.onset import older_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: What the judge says, as ``hindmost.report/1`` has it.
Verdict: TypeAlias = "Mapping[str, Any]"

#: Kinds of ranks that are late: in all steps, or in those in which they stall.
_LATE = frozenset({"straggler", "intermittent"})
#: Segments of one rank and cause at most this many steps apart are one: steps where the delay changes belong to
#: neither.
_APART = 5
#: Sets of ranks that share this part of all their ranks are the same, if the cause is, …
_SHARED = 0.5
#: … and if the later one began at most this many steps after the other: a changing set is younger than some of its
#: ranks.
_LATER = 20
_ALWAYS = float("inf")


def identity(verdict: Verdict) -> tuple[Any, ...]:
    """What makes two verdicts the same trouble in any case; its cause may only be known later."""
    return verdict["kind"], tuple(verdict.get("ranks") or ())


def trouble(verdict: Verdict) -> tuple[Any, ...]:
    """The same, whether ranks are late in all steps or in those in which they stall."""
    kind, ranks = identity(verdict)
    return "late" if kind in _LATE else kind, ranks


def since(verdict: Verdict) -> int:
    """The step since which a verdict holds, 0 where that is not known."""
    return verdict.get("since_step") or 0


def once(verdicts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The verdicts of a report, each problem once, in the order of time.

    A rank's higher cost in some steps, for the same cause, is a part of its cost throughout, and follows it where it
    is of later steps."""
    found: list[dict[str, Any]] = []
    for one in sorted(verdicts, key=lambda one: (since(one), -_until(one))):
        at = next((at for at, other in enumerate(found) if _goes_on(other, one)), None)
        if at is None:
            found.append(one)
        elif _until(one) > _until(found[at]):
            found[at] = {**one, "since_step": found[at]["since_step"]}
        elif one.get("until_step") is None:
            found[at] = _with_more(found[at], one)
    return found


def _goes_on(before: Verdict, after: Verdict) -> bool:
    alike = all(before.get(name) == after.get(name) for name in ("kind", "ranks", "cause"))
    known = before.get("since_step") is not None and after.get("since_step") is not None
    return alike and known and bool(before.get("ranks")) and since(after) <= _until(before) + _APART


def _with_more(verdict: dict[str, Any], more: Verdict) -> dict[str, Any]:
    """A verdict that costs more now, since a step of its own."""
    costs = {
        name: verdict[name] + more[name]
        for name in ("cost_ms_per_step", "cost_ratio")
        if verdict.get(name) is not None and more.get(name) is not None
    }
    told = [f"{more['cost_ms_per_step']:.1f} ms of it since step {since(more)}"] if "cost_ms_per_step" in costs else []
    return {**verdict, **costs, "evidence": [*(verdict.get("evidence") or ()), *told]}


def paired(opened: Sequence[Verdict], present: Sequence[Verdict]) -> dict[int, int]:
    """Which of the ``present`` verdicts, by place, is which of the ``opened`` ones.

    Those of the same ranks first; of several episodes those that began nearest to each other, and of those that began
    as near the one that still holds. Then those of the same cause that name mostly the same ranks.
    """
    found: dict[int, int] = {}
    taken: set[int] = set()
    rules: tuple[Callable[[Verdict, Verdict], bool], ...] = (_identical, _akin, _mostly)
    for same in rules:
        candidates = sorted(
            (abs(since(one) - since(other)), one.get("until_step") is not None, at, place)
            for at, one in enumerate(present)
            for place, other in enumerate(opened)
            if at not in found and same(other, one) and _meet(other, one)
        )
        for *_, at, place in candidates:
            if at not in found and place not in taken:
                found[at] = place
                taken.add(place)
    return found


def _meet(before: Verdict, after: Verdict) -> bool:
    """Whether neither was over before the other began."""
    return since(before) <= _until(after) and since(after) <= _until(before) + _APART


def _identical(before: Verdict, after: Verdict) -> bool:
    return identity(before) == identity(after)


def _akin(before: Verdict, after: Verdict) -> bool:
    return trouble(before) == trouble(after)


def _mostly(before: Verdict, after: Verdict) -> bool:
    told, tells = set(before.get("ranks") or ()), set(after.get("ranks") or ())
    alike = before["kind"] == after["kind"] and before.get("cause") == after.get("cause")
    as_old = since(after) - since(before) <= _LATER or bool(older_lines(after))
    return alike and as_old and bool(told & tells) and len(told & tells) >= _SHARED * len(told | tells)


def _until(verdict: Verdict) -> float:
    until = verdict.get("until_step")
    return _ALWAYS if until is None else float(until)
