"""Judges running jobs, and writes down each verdict as it opens, changes and closes."""

from __future__ import annotations

import importlib
import json
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hindmost_proto import telemetry_pb2 as wire

from hindmost_collector.settings import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hindmost_collector.model import Past, Run
    from hindmost_collector.settings import Settings

    Judge = Callable[[Run], Any]

log = logging.getLogger(__name__)

#: A cost that moved by less than this share of itself is the same verdict.
SAME = 0.25
#: Kinds that are an answer but no trouble: they are on the page, not in the log of verdicts.
QUIET = frozenset({"balanced", "insufficient_data"})
#: Kinds of a job that does not go on: every rank's stack is asked for.
STOPS = frozenset({"hang", "desync"})


def load_judge(settings: Settings = DEFAULT) -> Judge:
    """``hindmost_collector.judge.judge``, imported late: it is heavy, and a collector receives before it judges."""
    judge: Callable[[Run, Settings], Any] = importlib.import_module("hindmost_collector.judge").judge
    return lambda run: judge(run, settings)


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
        for key, ended in gone:
            yield self._closed(key, _ended(ended, last_step), now_ns)

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

    Of several episodes of the same ranks those are the same that began nearest to each other.
    """
    left = list(opened)
    found: dict[int, Mapping[str, Any]] = {}
    apart = [(abs(_since(one) - _since(other)), at, other) for at, one in enumerate(present) for other in opened]
    for _, at, other in sorted(apart, key=lambda pair: pair[0]):
        if at not in found and any(other is one for one in left):
            found[at] = other
            left = [one for one in left if one is not other]
    return [(found.get(at), one) for at, one in enumerate(present)], left


def _ended(verdict: Mapping[str, Any], last_step: int | None) -> dict[str, Any]:
    """A verdict that no report gives any more held at most until now."""
    until = last_step if verdict.get("since_step") is not None else None
    return {**verdict, "until_step": until}


def _event(what: str, now_ns: int, verdict: Mapping[str, Any]) -> dict[str, Any]:
    return {"time_ns": now_ns, "event": what, "verdict": dict(verdict)}


def _keep_since(verdict: dict[str, Any], before: Mapping[str, Any]) -> None:
    known = [one for one in (verdict.get("since_step"), before.get("since_step")) if one is not None]
    if known:
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


#: What judging may take of a core: a twentieth, and of a machine of many cores more, for nobody misses it there. A
#: full window takes 0.2 s at 1,024 ranks, 0.7 s at 8,192 (bench/live_judging.py), and is to be judged every 2 s.
LEAST_SHARE, MOST_SHARE = 0.05, 0.2
#: Cores of which one may spend all of its least share on judging; with more the share grows.
CORES_A_SHARE = 4


def share_of(cores: int) -> float:
    """The share of one core that judging may take on a machine of so many."""
    return min(max(LEAST_SHARE * cores / CORES_A_SHARE, LEAST_SHARE), MOST_SHARE)


class Judging:
    """Paces judging so that it never takes more than its ``share`` of a core, whatever the size and number of jobs.

    What counts is the CPU time of the thread that judges: on a busy host verdicts would otherwise come more seldom,
    and loading the judge, once, is no part of it.
    """

    def __init__(
        self,
        period_s: float = 1.5,
        share: float = LEAST_SHARE,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
        settings: Settings = DEFAULT,
    ) -> None:
        self._settings = settings
        self._period, self._share, self._clock, self._cpu = period_s, share, clock, cpu
        self._next: dict[str, float] = {}
        self._least: dict[str, float] = {}
        self._past: dict[str, Past] = {}
        self._free = 0.0
        self._failed = False
        self.seconds = 0.0
        self.busy = False  # whether a window is being judged, in whichever thread
        self.judge: Judge | None = None

    def due(self, job: str) -> bool:
        """Whether it is time to judge a job again."""
        now = self._clock()
        return now >= self._next.get(job, 0.0) and now + self._period >= self._free

    def again(self, job: str, after_s: float) -> None:
        """Judge a job again sooner than its turn is, as far as what judging may cost allows."""
        if job in self._next:
            self._next[job] = min(self._next[job], max(self._least[job], self._clock() + after_s))

    def turn(self, job: str) -> float:
        """When it is a job's turn: jobs that wait longest come first."""
        return self._next.get(job, 0.0)

    def report(self, job: str, run: Callable[[], Run], *, whole: bool = False) -> dict[str, Any] | None:
        """Judge a window, or the ``whole`` run; None when judging failed, which is said once and never stops the
        collector.
        """
        began, used = self._clock(), self._cpu()
        self.busy = True
        try:
            if self.judge is None:
                self.judge = load_judge(self._settings)
                used = self._cpu()
            return self._judged(job, run(), self.judge, whole=whole)
        except Exception:
            if not self._failed:
                log.warning("judging failed; recording goes on", exc_info=True)
            self._failed = True
            return None
        finally:
            self.busy = False
            took, now = self._cpu() - used, self._clock()
            self.seconds += now - began
            self._least[job] = now + took / self._share
            self._next[job] = max(self._least[job], now + self._period)
            self._free = max(self._free, now) + took / self._share

    def _judged(self, job: str, run: Run, judge: Judge, *, whole: bool) -> dict[str, Any]:
        """The report as ``hindmost.report/1``; of a window with what those before it told, and tell the next one."""
        found = judge(run if whole else replace(run, past=self._past.get(job)))
        report: dict[str, Any] = found.to_dict()
        past = next((one.past for one in found.verdicts if one.past is not None), None)
        if past is None:
            self._past.pop(job, None)
        else:
            self._past[job] = past
        return report

    def forget(self, job: str) -> None:
        """A job is over."""
        self._next.pop(job, None)
        self._least.pop(job, None)
        self._past.pop(job, None)
