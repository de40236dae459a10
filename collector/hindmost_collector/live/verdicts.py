"""Verdicts of running jobs, each as it opens, changes and closes.

A late rank may be found in all steps or in many of them, with another one, or even later for some steps: that is one
problem, reported once and then changed. A different measured cause makes a different problem.

The first window that finds it may have too few steps after its onset, a later one too few before it, or none: then it
says "at or before". What the window found that had the most of both is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from hindmost_judge.verdict.schema import QUIET, STOPS, identity
from hindmost_judge.verdict.wording import OLDER
from hindmost_proto import telemetry_pb2 as wire

#: A cost that moved by less than this share of itself is the same verdict.
SAME = 0.25
UNEVEN = "uneven_workload"
#: In simulated FSDP with very different batches, some windows found uneven work and others not, for up to 24 steps.
#: Such a verdict holds for this many steps without confirmation, if no rank is named.
_IN_TURN = 50
#: … and no longer than this, ns, in a job that makes no more steps.
_STANDING_NS = 300_000_000_000


#: Closed verdicts whose end is kept: within the window's reach they are not reported as new.
_REMEMBERED = 1000
#: Unmarked steps may be counted back by this many; a larger jump means a restart.
_BACK = 5


@dataclass
class _Open:
    """An open verdict, as last reported (``reported``) and as in the ``newest`` report, with its best known onset.

    ``over`` is the verdict with its end, from one report that no other has confirmed yet."""

    id: str
    reported: Mapping[str, Any]
    newest: Mapping[str, Any]
    onset: Onset | None
    over: Mapping[str, Any] | None = None


class VerdictLog:
    """Turns the verdicts of successive reports into events: opened, changed, closed.

    A verdict is closed, with the step until which it held, when a report gives it an end or leaves it out, and so does
    the next one: a few steps may look well by chance. A verdict that began and ended between two reports is opened and
    closed at once, one time.
    """

    def __init__(self) -> None:
        self._open: list[_Open] = []
        self._present: list[dict[str, Any]] = []  # of the newest report, each trouble once
        self._past: dict[tuple[Any, ...], int] = {}
        self._opened = 0
        self._last_step = -1
        self._uneven_at: int | None = None  # newest step of the last report by which work was uneven
        self._uneven_ns = 0  # when that was

    def update(
        self, verdicts: list[dict[str, Any]], now_ns: int, last_step: int | None = None, first_step: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """The events of one more report, of the steps from ``first_step`` to ``last_step``."""
        present = self._present = once([one for one in verdicts if one["kind"] not in QUIET])
        yield from self._begun_anew(now_ns, last_step)
        opened, self._open = self._open, []
        pairs = paired([one.over or one.newest for one in opened], present)
        for at, verdict in enumerate(present):
            onset = find_onset(verdict, first_step, last_step)
            if at in pairs:
                yield from self._goes_on(opened[pairs[at]], verdict, onset, now_ns)
            else:
                yield from self._begins(verdict, onset, now_ns)
        if any(identity(one) == (UNEVEN, ()) for one in present):
            self._uneven_at, self._uneven_ns = last_step, now_ns
        named = any(one.get("ranks") for one in present)
        matched = set(pairs.values())
        for place, one in enumerate(opened):
            if place not in matched:
                yield from self._left_out(one, now_ns, last_step, named=named)

    def ended(self, verdicts: list[dict[str, Any]], now_ns: int) -> Iterator[dict[str, Any]]:
        """The events of a job's end, by the report on all of it: what is new is opened, and all is closed."""
        present = once([one for one in verdicts if one["kind"] not in QUIET])
        opened, self._open = self._open, []
        pairs = paired([one.newest for one in opened], present)
        newest = {place: present[at] for at, place in pairs.items()}
        for place, one in enumerate(opened):
            yield {**self._closed(one, newest.get(place, one.newest), now_ns), "ended": True}
        known = {trouble(one.newest) for one in opened} | self._past.keys()
        for at, verdict in enumerate(present):
            if at not in pairs and trouble(verdict) not in known:
                self._opened += 1
                new = _Open(f"{now_ns // 10**9}-{self._opened}", verdict, verdict, None)
                yield _event("opened", now_ns, new.id, verdict)
                yield {**self._closed(new, verdict, now_ns), "ended": True}

    @property
    def doubtful(self) -> bool:
        """Whether something seems to be over, and one more report is to bear that out."""
        return any(one.over is not None for one in self._open)

    def standing(self, verdicts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The verdicts of the newest report as last reported: each problem once, with those that are not closed yet."""
        places = {identity(one): at for at, one in reversed([*enumerate(verdicts)])}
        open_now = [one.newest for one in self._open]
        over = [one for one in self._present if not any(one is other for other in open_now)]
        verdicts_now = [*over, *({**one, "until_step": None} for one in open_now)]
        return sorted(verdicts_now, key=lambda one: places.get(identity(one), len(verdicts))) or verdicts

    def _begun_anew(self, now_ns: int, last_step: int | None) -> Iterator[dict[str, Any]]:
        """Steps of a job that was restarted are counted anew: what began at one that is still to come is of before."""
        if last_step is None:
            return
        again, self._last_step = last_step < self._last_step - _BACK, last_step
        if not again:
            return
        opened = self._open
        self._open = [one for one in opened if since(one.newest) <= last_step]
        for one in (one for one in opened if since(one.newest) > last_step):
            yield self._closed(one, {**one.newest, "until_step": None}, now_ns)
        self._past.clear()
        self._uneven_at = None

    def _begins(self, verdict: dict[str, Any], onset: Onset | None, now_ns: int) -> Iterator[dict[str, Any]]:
        ended = verdict.get("until_step") is not None
        if ended and since(verdict) <= self._past.get(trouble(verdict), -1):
            return  # of a reported episode, as far as the window remembers it
        self._opened += 1
        one = _Open(f"{now_ns // 10**9}-{self._opened}", verdict, verdict, onset)
        yield _event("opened", now_ns, one.id, verdict)
        if ended:
            yield self._closed(one, verdict, now_ns)
        else:
            self._open.append(one)

    def _goes_on(
        self, one: _Open, verdict: dict[str, Any], onset: Onset | None, now_ns: int
    ) -> Iterator[dict[str, Any]]:
        if one.onset is not None:
            onset = one.onset.better(onset) if onset is not None else one.onset
            tell_onset(verdict, onset, one.newest)
        one.newest, one.onset = verdict, onset
        if verdict.get("until_step") is not None:
            if one.over is not None:
                yield self._closed(one, verdict, now_ns)
                return
            one.over = verdict
        else:
            one.over = None
            if _changed(one.reported, verdict):  # compared with the last report: small changes add up
                before, one.reported = one.reported, verdict
                yield {**_event("changed", now_ns, one.id, verdict), "before": before}
        self._open.append(one)

    def _left_out(self, one: _Open, now_ns: int, last_step: int | None, *, named: bool) -> Iterator[dict[str, Any]]:
        """What no report gives any more held at most until the first that does not."""
        if identity(one.newest) == (UNEVEN, ()):
            if named or not self._may_be_reported_again(last_step, now_ns):
                yield self._closed(one, _ended(one.newest, self._uneven_at), now_ns)
                return
        elif one.over is not None or one.newest["kind"] == "hang":  # a job that goes on shows that it has not stopped
            yield self._closed(one, one.over or _ended(one.newest, last_step), now_ns)
            return
        else:
            one.over = _ended(one.newest, last_step)
        self._open.append(one)

    def _may_be_reported_again(self, last_step: int | None, now_ns: int) -> bool:
        """Whether it is of work in turn, and was given by a report so few steps and so little time ago."""
        if last_step is None or self._uneven_at is None or now_ns - self._uneven_ns >= _STANDING_NS:
            return False
        return 0 <= last_step - self._uneven_at < _IN_TURN

    def _closed(self, one: _Open, verdict: Mapping[str, Any], now_ns: int) -> dict[str, Any]:
        key = trouble(verdict)
        until = max(self._past.pop(key, -1), verdict.get("until_step") or -1)
        self._past[key] = until
        while len(self._past) > _REMEMBERED:
            del self._past[next(iter(self._past))]
        return _event("closed", now_ns, one.id, verdict)


def _ended(verdict: Mapping[str, Any], last_step: int | None) -> dict[str, Any]:
    """A verdict that no report gives any more held at most until now."""
    known = last_step is not None and last_step >= 0
    until = last_step if known and verdict.get("since_step") is not None else None
    return {**verdict, "until_step": until}


def _event(what: str, now_ns: int, which: str, verdict: Mapping[str, Any]) -> dict[str, Any]:
    return {"time_ns": now_ns, "event": what, "id": which, "verdict": dict(verdict)}


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    # of a stopped job more becomes known: the stacks come some seconds after the verdict that asks for them
    more = after["kind"] in STOPS and len(before["evidence"]) < len(after["evidence"])
    if more or any(before.get(name) != after.get(name) for name in ("kind", "ranks", "cause")):
        return True
    old, new = before.get("cost_ms_per_step"), after.get("cost_ms_per_step")
    if old is None or new is None:
        return (old is None) != (new is None)
    return bool(abs(new - old) > SAME * max(abs(old), 1e-9))


def line(event: Mapping[str, Any]) -> str:
    """An event as one line of ``verdicts.jsonl``, in which lines before it have what it was."""
    return json.dumps({name: value for name, value in event.items() if name != "before"}, separators=(",", ":"))


#: Steps before and after a verdict's onset whose event traces are requested.
_AROUND = 5
#: Most ranks in one event-trace request; traces of more would add nothing.
_ASKED = 16


def event_trace_request(job: str, event: Mapping[str, Any]) -> wire.EventTraceRequest | None:
    """The request to the agents when a verdict opens: stacks of all ranks in a hang, else event traces of the named
    ranks, and their stacks where these are off the CPU and the cause is unknown."""
    verdict = event["verdict"]
    if event["event"] != "opened":
        return None
    if verdict["kind"] in STOPS:
        return wire.EventTraceRequest(job_id=job, stacks=True)
    first, ranks = verdict.get("since_step"), list(verdict.get("ranks") or ())[:_ASKED]
    if first is None or not ranks:
        return None
    return wire.EventTraceRequest(
        job_id=job,
        ranks=ranks,
        first_step=max(first - _AROUND, 0),
        last_step=first + _AROUND,
        stacks=verdict.get("cause") == "unknown" and verdict.get("partial") == "blocked",
    )


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
            found[at] = {**one, **{name: found[at].get(name) for name in ("since_step", "since_time_s")}}
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
    later_cost = (
        [f"{more['cost_ms_per_step']:.1f} ms of it since step {since(more)}"] if "cost_ms_per_step" in costs else []
    )
    return {**verdict, **costs, "evidence": [*(verdict.get("evidence") or ()), *later_cost]}


def paired(opened: Sequence[Verdict], present: Sequence[Verdict]) -> dict[int, int]:
    """Which of the ``present`` verdicts, by place, is which of the ``opened`` ones.

    Those of the same ranks first; of several episodes those that began nearest to each other, and of those that began
    as near the one that still holds. Then those of the same cause that name mostly the same ranks.
    """
    found: dict[int, int] = {}
    taken: set[int] = set()
    rules: tuple[Callable[[Verdict, Verdict], bool], ...] = (
        lambda before, after: identity(before) == identity(after),
        lambda before, after: trouble(before) == trouble(after),
        _mostly,
    )
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


def _mostly(before: Verdict, after: Verdict) -> bool:
    earlier, tells = set(before.get("ranks") or ()), set(after.get("ranks") or ())
    alike = before["kind"] == after["kind"] and before.get("cause") == after.get("cause")
    as_old = since(after) - since(before) <= _LATER or bool(older_lines(after))
    return alike and as_old and bool(earlier & tells) and len(earlier & tells) >= _SHARED * len(earlier | tells)


def _until(verdict: Verdict) -> float:
    until = verdict.get("until_step")
    return _ALWAYS if until is None else float(until)


#: More steps in the window move an onset later by no more than this in all: a much later begin is another problem.
_BETTER = 20


class Onset(NamedTuple):
    """A step, whether the onset may be earlier, the least steps that the window had on either side, and the earliest
    step reported before."""

    step: int
    older: bool
    steps: int
    earliest: int

    def better(self, other: Onset) -> Onset:
        """The one that is known better: this one, as before, or the ``other``, of a window that has moved on."""
        if not self.step or (self.older and other.older):
            return min(self, other, key=lambda one: one.step)
        if other.steps <= self.steps or other.step - self.earliest > _BETTER:
            return self
        return other._replace(earliest=min(self.earliest, other.step))


def find_onset(verdict: Mapping[str, Any], first_step: int | None, last_step: int | None) -> Onset | None:
    """The onset of a verdict by a window of these steps, where it tells one."""
    since, until = verdict.get("since_step"), verdict.get("until_step")
    if since is None:
        return None
    last, older = last_step if until is None else until, bool(older_lines(verdict))
    before = since - (first_step or 0)
    after = before if last is None else last - since
    return Onset(since, older, 0 if older else max(min(before, after), 0), since)


def tell_onset(verdict: dict[str, Any], best: Onset, first: Mapping[str, Any]) -> None:
    """Give a verdict the best known onset, in the form of the ``first`` that had it."""
    if verdict.get("since_step") != best.step:
        verdict["since_step"] = best.step
        verdict["since_time_s"] = first.get("since_time_s") if first.get("since_step") == best.step else None
        rest = [line for line in verdict.get("evidence") or () if not line.startswith(OLDER)]
        verdict["evidence"] = [*rest, *(older_lines(first) if best.older else ())]


def older_lines(verdict: Mapping[str, Any]) -> list[str]:
    """What a verdict's evidence says where it may have begun before its first step."""
    return [line for line in verdict.get("evidence") or () if line.startswith(OLDER)]
