"""Verdicts of running jobs, each as it opens, changes and closes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hindmost_proto import telemetry_pb2 as wire

from hindmost_collector.judgement.verdict import STOPS
from hindmost_collector.judgement.wording import OLDER
from hindmost_collector.running.looks import QUIET

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: A cost that moved by less than this share of itself is the same verdict.
SAME = 0.25
UNEVEN = "uneven_workload"
#: In simulated FSDP whose batches differ much, work was told as uneven by some windows, and by none for up to 24 steps
#: between them. It holds for so many steps without being told, where no rank is named.
_IN_TURN = 50
#: … and no longer than this, ns: of a job that makes no more steps.
_STANDING_NS = 300_000_000_000


def identity(verdict: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes two verdicts the same trouble; its cause may only be known later."""
    return verdict["kind"], tuple(verdict.get("ranks") or ())


class VerdictLog:
    """Turns the verdicts of successive reports into events: opened, changed, closed.

    A verdict is closed, with the step until which it held, when it no longer holds: when a report gives it an end, or
    leaves it out. One that had begun and ended before anybody looked is opened and closed at once, one time.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        self._past: dict[tuple[Any, ...], int] = {}
        self._uneven_at: int | None = None  # newest step of the last report by which work was uneven
        self._uneven_ns = 0  # when that was

    def update(
        self, verdicts: list[dict[str, Any]], now_ns: int, last_step: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """The events of one more report, whose newest step is ``last_step``."""
        present: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for one in sorted(verdicts, key=_since):
            if one["kind"] not in QUIET:
                present.setdefault(identity(one), []).append(one)
        gone = []
        for key in [*present, *(key for key in self._open if key not in present)]:
            pairs, left = _paired(self._open.pop(key, []), present.get(key, []))
            for before, verdict in pairs:
                yield from self._told(key, before, verdict, now_ns)
            gone += [(key, one) for one in left]
        if (UNEVEN, ()) in present:
            self._uneven_at, self._uneven_ns = last_step, now_ns
        named = any(ranks for _, ranks in present)
        for key, ended in gone:
            if not named and self._may_be_told_again(key, last_step, now_ns):
                self._open.setdefault(key, []).append(ended)
            else:
                yield self._closed(key, _ended(ended, self._uneven_at if key == (UNEVEN, ()) else last_step), now_ns)

    def _may_be_told_again(self, key: tuple[Any, ...], last_step: int | None, now_ns: int) -> bool:
        """Whether it is of work in turn, and was given by a report so few steps and so little time ago."""
        if key != (UNEVEN, ()) or last_step is None or self._uneven_at is None:
            return False
        if now_ns - self._uneven_ns >= _STANDING_NS:
            return False
        return 0 <= last_step - self._uneven_at < _IN_TURN

    def _told(
        self, key: tuple[Any, ...], before: Mapping[str, Any] | None, verdict: dict[str, Any], now_ns: int
    ) -> Iterator[dict[str, Any]]:
        ended = verdict.get("until_step") is not None
        kept: Mapping[str, Any] = verdict
        if before is None:
            if ended and _since(verdict) <= self._past.get(key, -1):
                return  # of an episode that was told, as far as the window remembers it
            yield _event("opened", now_ns, verdict)
        else:
            _keep_since(verdict, before)
            if not ended and not _changed(before, verdict):
                kept = before  # what was told stays what changes are measured against: small ones add up
            elif not ended:
                yield _event("changed", now_ns, verdict)
        if ended:
            yield self._closed(key, verdict, now_ns)
        else:
            self._open.setdefault(key, []).append(kept)

    def _closed(self, key: tuple[Any, ...], verdict: Mapping[str, Any], now_ns: int) -> dict[str, Any]:
        self._past[key] = max(self._past.get(key, -1), verdict.get("until_step") or -1)
        return _event("closed", now_ns, verdict)


def _since(verdict: Mapping[str, Any]) -> int:
    return verdict.get("since_step") or 0


def _paired(
    opened: list[Mapping[str, Any]], present: list[dict[str, Any]]
) -> tuple[list[tuple[Mapping[str, Any] | None, dict[str, Any]]], list[Mapping[str, Any]]]:
    """Each verdict of a report beside the open one that it is, ``None`` where it is none, and the open ones left over.

    Of several episodes of the same ranks those are the same that began nearest to each other; of those that began as
    near the one that still holds.
    """
    left = list(opened)
    found: dict[int, Mapping[str, Any]] = {}
    apart = [
        (abs(_since(one) - _since(other)), one.get("until_step") is not None, at, other)
        for at, one in enumerate(present)
        for other in opened
    ]
    for *_, at, other in sorted(apart, key=lambda pair: pair[:2]):
        if at not in found and any(other is one for one in left):
            found[at] = other
            left = [one for one in left if one is not other]
    return [(found.get(at), one) for at, one in enumerate(present)], left


def _ended(verdict: Mapping[str, Any], last_step: int | None) -> dict[str, Any]:
    """A verdict that no report gives any more held at most until now."""
    known = last_step is not None and last_step >= 0
    until = last_step if known and verdict.get("since_step") is not None else None
    return {**verdict, "until_step": until}


def _event(what: str, now_ns: int, verdict: Mapping[str, Any]) -> dict[str, Any]:
    return {"time_ns": now_ns, "event": what, "verdict": dict(verdict)}


def _keep_since(verdict: dict[str, Any], before: Mapping[str, Any]) -> None:
    known = [one for one in (verdict.get("since_step"), before.get("since_step")) if one is not None]
    if known:
        if before.get("since_step") == min(known) < _since(verdict):  # it was seen to begin, or that was told before
            kept = [line for line in verdict.get("evidence") or () if not line.startswith(OLDER)]
            verdict["evidence"] = [*kept, *(line for line in before.get("evidence") or () if line.startswith(OLDER))]
        verdict["since_step"] = min(known)


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    if before.get("cause") != after.get("cause") or _more_is_known(before, after):
        return True
    old, new = before.get("cost_ms_per_step"), after.get("cost_ms_per_step")
    if old is None or new is None:
        return (old is None) != (new is None)
    return bool(abs(new - old) > SAME * max(abs(old), 1e-9))


def _more_is_known(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether of a stopped job more is known: the stacks come some seconds after the verdict that asks for them."""
    return after["kind"] in STOPS and len(before["evidence"]) != len(after["evidence"])


def line(event: Mapping[str, Any]) -> str:
    """An event as one line of ``verdicts.jsonl``."""
    return json.dumps(event, separators=(",", ":"))


#: Steps before and after the one since which a verdict holds whose raw events are asked for.
_AROUND = 5
#: Ranks that one question names; the raw events of more would say no more.
_ASKED = 16


def zoom(job: str, event: Mapping[str, Any]) -> wire.Zoom | None:
    """What to ask the agents when a verdict opens: stacks of all ranks in a hang, raw events of whom it names else."""
    verdict = event["verdict"]
    if event["event"] != "opened":
        return None
    if verdict["kind"] in STOPS:
        return wire.Zoom(job_id=job, stacks=True)
    since, ranks = verdict.get("since_step"), list(verdict.get("ranks") or ())[:_ASKED]
    if since is None or not ranks:
        return None
    return wire.Zoom(job_id=job, ranks=ranks, first_step=max(since - _AROUND, 0), last_step=since + _AROUND)
