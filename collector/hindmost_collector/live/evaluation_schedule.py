"""Which running job is judged when: all of its window or its newest steps, for how much of a core.

A fault that has just begun shows in the newest steps first: an incremental evaluation compares the ranks that they name
with those of the last full evaluation. It reports nothing: it decides whether a full evaluation runs now, and only that
names ranks. Claims that the full evaluation does not confirm trigger it less and less often.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import threading
import time
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from hindmost_judge.settings import DEFAULT
from hindmost_judge.verdict.schema import QUIET, LiveReport

from hindmost_collector.ingest.session import MOST_S
from hindmost_collector.live.window import INCREMENTAL_ROWS, LEAST_INCREMENTAL_ROWS
from hindmost_collector.page.data import gauges_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from hindmost_judge.model import Counted, Past, Run
    from hindmost_judge.settings import Settings
    from hindmost_judge.verdict.schema import Report

    from hindmost_collector.page.history import StepHistory

    Judge = Callable[[Run], Any]
    Snapshot = Callable[[], Run]
    Array = np.ndarray[Any, Any]

#: Possible claims: the kind and the ranks of a verdict, a changed cost, or the length of steps.
Claim: TypeAlias = "tuple[Any, ...]"
_COST, _LENGTH = "cost", ("length",)
#: A cost is new if it moved by more than this share of the larger: few steps measure it less well than a full
#: evaluation.
_MOVED = 0.4
#: A step's time, or its transfers' time, is new if it moved by more than this share. A slowdown of all ranks shows only
#: against earlier steps, which a short evaluation and, in the end, the window no longer have.
_SLOWED = 0.1
#: Transfers that take less than this share of a step, before and after, are ignored.
_SMALL = 0.02
#: So many ranks, from all over the job, show how long transfers take.
_SAMPLED_RANKS = 256


@dataclass(frozen=True)
class Outcome:
    """The result of an evaluation: the cost of each verdict that holds, ms a step, by its kind and ranks.

    And the length of the typical step, and of the transfers in it, ms; ``None`` is unknown."""

    costs: Mapping[Claim, float | None] = field(default_factory=dict)
    step_ms: float | None = None
    transfer_ms: float | None = None


def outcome_of(report: Report) -> Outcome:
    """Those verdicts of a report that still hold, and how long steps and transfers were."""
    costs = {
        (verdict.kind, tuple(verdict.ranks)): verdict.cost_ms_per_step
        for verdict in report.verdicts
        if verdict.kind not in QUIET and verdict.until_step is None
    }
    sample = report.ranks[:: len(report.ranks) // _SAMPLED_RANKS + 1]  # rows of ranks are made when looked at
    transfers = [one.transfer_ms for one in sample if one.transfer_ms is not None]
    return Outcome(costs, report.job.step_ms.get("p50"), median(transfers) if transfers else None)


def new_claims(standing: Outcome, before: Outcome, now: Outcome) -> set[Claim]:
    """What the newest steps say that is new, against what they said ``before``, and against what ``standing`` then.

    Both are of the last full evaluation. A rank that holds the job up now and then does not count as new each time.
    """
    new = now.costs.keys() - before.costs.keys() - standing.costs.keys()
    gone = _lasting((before.costs.keys() - now.costs.keys()) & standing.costs.keys())
    both = now.costs.keys() & before.costs.keys()
    dearer = {(_COST, *key) for key in both if _moved(before.costs[key], now.costs[key], _MOVED)}
    return new | gone | dearer | ({_LENGTH} if _slowed(before, now) else set())


def confirmed_claims(said: set[Claim], before: Outcome, standing: Outcome) -> set[Claim]:
    """Which claims of incremental evaluations show as changes between full evaluations."""
    changed = {key for key in before.costs.keys() | standing.costs.keys() if _other(before, standing, key)}
    changed |= {(_COST, *key) for key in changed}
    return said & (changed | {_LENGTH}) if changed else set()


def disputed_ranks(standing: Outcome, now: Outcome) -> set[Claim]:
    """Which ranks only one of the full and the incremental evaluation names, without those slow now and then."""
    return _lasting(standing.costs.keys()) ^ _lasting(now.costs.keys())


def _other(before: Outcome, standing: Outcome, key: Claim) -> bool:
    both = key in before.costs and key in standing.costs
    return not both or _moved(before.costs[key], standing.costs[key], _MOVED)


def _lasting(names: Iterable[Claim]) -> set[Claim]:
    return {claim for claim in names if claim[0] != "intermittent"}


def _slowed(before: Outcome, now: Outcome) -> bool:
    small = _SMALL * (now.step_ms or 0.0)
    slight = max(before.transfer_ms or 0.0, now.transfer_ms or 0.0) < small
    known = before.transfer_ms is not None and now.transfer_ms is not None  # few steps may not tell
    longer = known and not slight and _moved(before.transfer_ms, now.transfer_ms, _SLOWED)
    return longer or _moved(before.step_ms, now.step_ms, _SLOWED)


def _moved(before: float | None, now: float | None, share: float) -> bool:
    if before is None or now is None:
        return (before is None) != (now is None)
    return abs(now - before) > share * max(abs(now), abs(before))


#: Seconds of future budget that evaluation may spend ahead: a change is reported when it comes.
AHEAD_S = 20.0


class Budget:
    """A ``share`` of a core in the long run, of which some may be spent before it is due."""

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self.share, self._clock = share, clock
        self.free = 0.0  # when what was spent is no more than the share

    def spend(self, cpu_s: float) -> None:
        """So much CPU time was taken."""
        self.free = max(self.free, self._clock()) + cpu_s / self.share

    def pays(self, ahead_s: float = AHEAD_S) -> bool:
        """Whether more may be taken now: no more than these seconds are spent ahead."""
        return self._clock() + ahead_s >= self.free


#: Unconfirmed claims trigger the next full evaluation after this many seconds, then twice as many, and so on up to the
#: second number.
_FIRST_S, _MOST_S = 1.0, 60.0


class _Doubt(NamedTuple):
    """No full evaluation for this before ``until``; the last one was ``wait_s`` earlier."""

    until: float
    wait_s: float


class UnconfirmedClaims:
    """The unconfirmed claims on one job, and when each may be checked again."""

    def __init__(self) -> None:
        self._known: dict[Claim, _Doubt] = {}
        self._one_at_a_time = threading.Lock()  # looks and wholes are judged by threads of their own

    def __contains__(self, key: Claim) -> bool:
        return key in self._known

    def worth(self, said: Iterable[Claim], now: float, *, again: bool = True) -> set[Claim]:
        """Which claims of incremental evaluations justify a full evaluation; unconfirmed ones only if allowed
        ``again``.

        A claim that is no longer made is forgotten after as long as it would have waited."""
        said = set(said)
        with self._one_at_a_time:
            self._known = {key: one for key, one in self._known.items() if key in said or now < one.until + one.wait_s}
            return {key for key in said if key not in self._known or (again and now >= self._known[key].until)}

    def evaluated(
        self, new: Collection[Claim], answered: Iterable[Claim], in_vain: Iterable[Claim], now: float
    ) -> None:
        """A full evaluation ran for what was ``new``: it confirmed what was ``answered``; the rest is unconfirmed.

        After a claim that was never checked before, all others may soon change.
        """
        with self._one_at_a_time:
            changed = any(key not in self._known for key in new)
            for key in answered:
                self._known.pop(key, None)
            for key in in_vain:
                before = self._known.get(key) if key in new or not changed else None
                wait_s = min(2 * before.wait_s, _MOST_S) if before else _FIRST_S
                self._known[key] = _Doubt(now + wait_s, wait_s)


log = logging.getLogger(__name__)

_T = TypeVar("_T")

#: Share of a core for full evaluations: a twentieth, and more on a machine of many cores, which can spare it.
LEAST_SHARE, MOST_SHARE = 0.05, 0.2
#: One core in this many may spend its full least share on judging; with more cores the share grows.
CORES_A_SHARE = 4
#: Least share of a core for incremental evaluations of all jobs together: three times as much, since they keep verdicts
#: young. A window whose full evaluation costs no more is judged in full instead, from this budget.
OF_LOOKS = 0.15
#: The part of that budget for which incremental evaluations are sized; the rest is for slow hosts and the minimum size.
AIMED = 0.4
#: A verdict is at most this many seconds old.
EVERY_S = 2.0
#: In a job of more ranks than this, incremental evaluations come so far apart that they take such a share of a core,
#: but at most so many seconds, as agents of large jobs report: one of more than 80 ms takes a larger share.
MANY_RANKS, OF_A_LARGE_JOB, APART_S = 1024, 0.02, float(MOST_S)
#: Full evaluations allowed ahead of the budget, whatever each takes: one for the first news, one for more of it, one
#: for agents' answers. The second number counts where an earlier one was in vain.
WHOLES_AHEAD, IN_VAIN = 3, 2
#: A full evaluation that only confirms the one before doubles the time until the next, while the newest steps say
#: nothing new. It does so for this many in a row, and to no more than this many seconds.
MOST_CALM, CALM_S = 2, 20.0
#: Incremental evaluations that took less than this part of their target may read this many times the rows.
SHORT, LONGER = 0.5, 1.25
#: Longest time (s) that a turn waits for a running write. One that starts late by up to twice that does not delay the
#: next turn, or the delays would add up.
WRITE_S = 0.25
#: While cores are full every judgement takes time from a rank, and so from all that wait for it, however many cores
#: there are. Full evaluations may take this share of one core, and incremental ones, each kind at least and at most so
#: many seconds apart. What is new or open is judged for five times the share, and so is a job of which a rank is named:
#: it may soon be well again. The share is halved each time, down to the usual one. Each evaluation without news, or
#: without a rank that is named, doubles it. A job that stands still is judged after the least, and again whenever that
#: has lasted twice as long.
FULL_SHARE, FULL_LEAST_S, FULL_MOST_S = 0.001, 10.0, 300.0
NEWS_SHARE, MOST_HURRIED = 5 * FULL_SHARE, 5
#: Longest CPU time (s) of a full evaluation while cores are full, unless the fewest rows take longer: then the rarest
#: take no more than their share. It reads at most so many times the rows of the last one; the first reads as few as an
#: incremental one, 70 to 200 ms.
FULL_WHOLE_S, FULL_GROWTH = FULL_SHARE * FULL_MOST_S, 3
#: While cores are full, a job of which a rank seems slow or well again is judged at once, if its last evaluation is
#: ``EVERY_S`` ago. These may take so much of a core more, ``WHOLES_AHEAD`` ahead: a rank that flaps soon waits.
RECHECK_SHARE = FULL_SHARE
#: So long (s) after its first data a job is judged first, and while cores are full: idle until its ranks have started,
#: they may not be known to be full before.
STARTING_S, FULL_FIRST_S = 2.0, 5.0


def load_judge(settings: Settings = DEFAULT) -> Judge:
    """``hindmost_judge.judge.judge``, imported late: it is heavy, and a collector receives before."""
    judge: Callable[[Run, Settings], Any] = importlib.import_module("hindmost_judge.judge").judge
    return lambda run: judge(run, settings)


def _apart_s(took: float, share: float = FULL_SHARE) -> float:
    """Seconds between evaluations that take so much CPU time, while cores are full."""
    return min(max(took / share, FULL_LEAST_S), FULL_MOST_S)


def _counted(times: int, *, more: bool) -> int:
    """How often the share was halved, with one more or one fewer."""
    return min(max(times + (1 if more else -1), 0), MOST_HURRIED)


def share_of(cores: int) -> float:
    """The share of one core that full evaluations may take on a machine of so many."""
    return min(max(LEAST_SHARE * cores / CORES_A_SHARE, LEAST_SHARE), MOST_SHARE)


@dataclass
class _Turn:
    """The turn of one job: when it began ``last``, or was first asked for, when the ``next`` is due, when its next full
    evaluation is due regardless, what that took and of how many ``ranks``, and the ``rows`` of an incremental one.

    ``last_whole`` is when that was, ``judged`` how many rows it read, ``soon`` whether it left something open.
    ``hurried`` is how many more were made for something new or open than for nothing, ``watched`` how many more turns
    began with a rank named than without. ``calm`` is how many of the last full evaluations changed nothing.
    ``look_took`` is what the last incremental one took.
    ``standing`` is what holds by the full evaluation, and ``newest`` what its newest steps said then. ``seen`` is what
    they say now, where evaluated, and ``asked`` what of it was new since. ``doubts`` is what the full evaluation does
    not confirm. ``past`` and ``counted`` are what a window passes to the next one.
    """

    last: float
    next: float = -math.inf
    whole: float = 0.0
    took: float = 0.0
    ranks: int = 0
    rows: int = INCREMENTAL_ROWS
    look_took: float = 0.0
    last_whole: float = -FULL_MOST_S
    judged: int = 0
    soon: bool = False
    hurried: int = 0
    watched: int = 0
    calm: int = 0
    standing: Outcome = field(default_factory=Outcome)
    newest: Outcome = field(default_factory=Outcome)
    seen: Outcome | None = None
    asked: set[Claim] = field(default_factory=set)
    doubts: UnconfirmedClaims = field(default_factory=UnconfirmedClaims)
    past: Past | None = None
    counted: Counted | None = None

    @property
    def begun(self) -> bool:
        """Whether the job has ever been judged."""
        return self.next > -math.inf

    @property
    def open(self) -> bool:
        """Whether there is something new, or left open."""
        return self.soon or bool(self.asked)

    @property
    def named(self) -> bool:
        """Whether a verdict that holds names ranks, which may be well again."""
        return any(ranks for _, ranks in self.standing.costs)

    def between_s(self, took: float) -> float:
        """Seconds between evaluations that take so much CPU time, while cores are full."""
        halved = min(self.hurried if self.open else MOST_HURRIED, self.watched if self.named else MOST_HURRIED)
        return min(_apart_s(took, NEWS_SHARE) * 2.0**halved, _apart_s(took))

    def after_others(self, run: Run) -> Run:
        """A window, with what those before it tell of it."""
        return replace(run, past=self.past, counted=self.counted)


class Judging:
    """Paces evaluation: verdicts are young and CPU time stays within limits, whatever the size and number of jobs.

    A cheap window is judged in full each ``period_s``. For a more expensive one, only the newest steps are evaluated
    then, fewer of them where that takes long. The full evaluation runs when they show something new, and otherwise as
    often as its own ``share`` of a core allows. It runs in another thread, so that incremental evaluations go on
    meanwhile and never wait for it. Only full evaluations are reported.

    The budget counts the CPU time of the judging thread: with wall time, verdicts would come less often on a busy host.
    Loading the judge, once, does not count.
    """

    def __init__(
        self,
        period_s: float = 1.5,
        share: float = LEAST_SHARE,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
        settings: Settings = DEFAULT,
        cores_are_full: Callable[[], bool] | None = None,
    ) -> None:
        self._settings, self._cores_are_full = settings, cores_are_full
        self._period, self._clock, self._cpu = period_s, clock, cpu
        self.full_evaluations, self._looks = Budget(share, clock), Budget(max(OF_LOOKS, share), clock)
        self._rechecks = Budget(RECHECK_SHARE, clock)
        self._turns: dict[str, _Turn] = {}
        self.failures = 0
        self.seconds = 0.0
        self.judge: Judge | None = None
        self._judged_now = 0  # how many threads judge
        self._lock = threading.Lock()
        self._load_lock = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether a window is being judged, in whichever thread."""
        return self._judged_now > 0

    def load(self) -> None:
        """Load the judge, once: before ranks wait for what it takes, and for the first verdict."""
        with contextlib.suppress(Exception):  # judging meets the same error, and logs it
            self._load()

    def _load(self) -> Judge:
        with self._load_lock:
            self.judge = self.judge or load_judge(self._settings)
        return self.judge

    def due(self, job: str, still_s: float = 0.0) -> bool:
        """Whether it is time to judge a job again, that stands still since ``still_s``."""
        return not self._can_wait(job, still_s) and self._clock() >= self.turn(job) and self._looks.pays()

    def _can_wait(self, job: str, still_s: float) -> bool:
        """Whether a job can wait for free cores."""
        if self._cores_are_full is None:
            return False
        turn, now, full = self._turns.setdefault(job, self._turn(job)), self._clock(), self._full()
        if full and self.busy and still_s < FULL_LEAST_S:
            return True  # two at once would take a core from two ranks
        if full:
            took = turn.look_took if self.costly(job) else turn.took
            apart_s = turn.between_s(took) if turn.begun else FULL_FIRST_S
        else:
            apart_s = 0.0 if turn.begun else STARTING_S
        if still_s >= FULL_LEAST_S:
            apart_s = min(apart_s, still_s / 2)
        return now - turn.last < apart_s

    def _full(self) -> bool:
        return self._cores_are_full is not None and self._cores_are_full()

    def overdue(self, job: str) -> bool:
        """Whether a job's next turn can wait for nothing any more: its verdicts are about ``EVERY_S`` old."""
        turn = self._turn(job)
        return turn.begun and self._clock() >= turn.next + WRITE_S

    def again(self, job: str, after_s: float) -> None:
        """Judge a job again, the whole of its window, sooner than its turn is, as far as its cost allows."""
        turn = self._turn(job)
        turn.next = min(turn.next, self._clock() + after_s)
        turn.whole, turn.soon = min(turn.whole, turn.next), True

    def recheck(self, job: str) -> bool:
        """Whether to judge a job now of which a rank seems changed, which is charged: where it may wait long otherwise,
        and as far as that is affordable."""
        turn = self._turn(job)
        if not turn.begun or not self._full() or self._clock() - turn.last_whole < EVERY_S:
            return False
        if not self._rechecks.pays(WHOLES_AHEAD * turn.took / RECHECK_SHARE):
            return False
        self._rechecks.spend(turn.took)
        return True

    def turn(self, job: str) -> float:
        """When it is a job's turn: jobs that wait longest come first."""
        return self._turn(job).next

    def _turn(self, job: str) -> _Turn:
        """A job's turn; one of its own, that is not kept, where none has begun and the job waits for none."""
        return self._turns.get(job) or _Turn(self._clock())

    def pause_s(self, usual_s: float) -> float:
        """How long to wait until some job's turn comes, or is overdue: no longer than usual."""
        now = self._clock()
        coming = [at for turn in list(self._turns.values()) for at in (turn.next, turn.next + WRITE_S)]
        return min([usual_s, *(at - now for at in coming if at > now)])

    def costly(self, job: str) -> bool:
        """Whether a full evaluation takes longer than a turn may: the newest steps are evaluated instead."""
        return self._turn(job).took > self._aim_s()

    def rows(self, job: str) -> int:
        """How many rows an incremental evaluation of a job reads, at least."""
        return self._turn(job).rows

    def window_rows(self, job: str, limit: int) -> int:
        """How many rows of a table a job's window is to hold: up to ``limit``, fewer where judging them takes much of
        full cores."""
        turn = self._turn(job)
        if not self._full():
            return limit
        growth = min(FULL_WHOLE_S / turn.took, FULL_GROWTH) if turn.took > 0 else 0
        return min(limit, max(int(turn.judged * growth), INCREMENTAL_ROWS))

    def full_due(self, job: str) -> bool:
        """Whether a full evaluation is due now: for news, or because the last one was long ago."""
        turn, now = self._turn(job), self._clock()
        if self._full() and now - turn.last_whole < turn.between_s(turn.took):
            return False
        return now >= turn.whole and self._affords(turn, WHOLES_AHEAD)

    def evaluate_newest(self, job: str, newest: Snapshot, show: StepHistory | None = None) -> bool | None:
        """Whether the newest steps of a window say something new that its whole is to be asked; None where judging them
        failed. Steps that follow those of ``show`` are added to it."""
        turn = self.begun(job)

        def of_newest(judge: Judge) -> bool:
            found = judge(turn.after_others(newest()))
            if show is not None and found.overview is not None:
                show.add(found.overview, without_gap=True)
            turn.seen = seen = outcome_of(found)
            said = new_claims(turn.standing, turn.newest, seen)
            said |= {key for key in disputed_ranks(turn.standing, seen) if key in turn.doubts}
            turn.asked = turn.doubts.worth(said, self._clock(), again=self._affords(turn, IN_VAIN))
            if turn.asked:
                turn.whole = min(turn.whole, self._clock())
            return bool(turn.asked)

        return self._charged(of_newest, lambda used: self._charge_look(turn, used))

    def judged(
        self, job: str, run: Snapshot, *, concurrent: bool = False, show: StepHistory | None = None
    ) -> LiveReport | None:
        """The report on a window, as ``hindmost.report/1``.

        None where judging failed, which is logged once and never stops the collector. Each window passes its findings
        to the next one. One that is judged while incremental ones go on (``concurrent``) leaves the job's next turn to
        these. Its new steps are added to ``show``.
        """
        turn = self._turns.setdefault(job, self._turn(job)) if concurrent else self.begun(job)

        def of_all(judge: Judge) -> LiveReport:
            asked, before, newest = turn.asked, turn.standing, turn.seen
            turn.hurried = _counted(turn.hurried, more=turn.open)
            turn.last_whole, turn.soon = self._clock(), False
            window = turn.after_others(run())
            turn.judged = len(window.collectives["rank"])
            found = judge(window)
            report = LiveReport(found)
            if show is not None and found.overview is not None:
                show.add(found.overview, gauges_of(found.overview) if show.is_watched() else None)
            turn.past = next((verdict.past for verdict in found.verdicts if verdict.past is not None), None)
            turn.counted = found.counted or turn.counted
            turn.standing, turn.ranks = outcome_of(found), len(found.ranks)
            turn.soon |= any(verdict.kind == "insufficient_data" for verdict in found.verdicts)
            if not concurrent:
                turn.seen = None
            self._compare(turn, asked, before, newest)
            return report

        return self._charged(of_all, lambda used: self._charge(turn, used))

    def at_the_end(self, run: Snapshot) -> tuple[Run, Report] | None:
        """A job that is over and the report on it, None where judging failed; what it takes is nothing to jobs that
        run."""

        def of_all(judge: Judge) -> tuple[Run, Report]:
            whole = run()
            return whole, judge(whole)

        return self._charged(of_all, lambda _: None)

    def settled(self, job: str) -> bool:
        """Whether the newest steps, as last evaluated, name the same ranks as the full evaluation."""
        turn = self._turn(job)
        return turn.seen is not None and not disputed_ranks(turn.standing, turn.seen)

    def _charged(self, work: Callable[[Judge], _T], charge: Callable[[float], None]) -> _T | None:
        """Work that needs the judge, and what it takes, charged; None where it failed."""
        began, used = self._clock(), self._cpu()
        with self._lock:
            self._judged_now += 1
        try:
            judge = self.judge
            if judge is None:
                judge = self._load()
                used = self._cpu()
            return work(judge)
        except Exception:
            if not self.failures:
                log.warning("judging failed; recording goes on", exc_info=True)
            self.failures += 1
            return None
        finally:
            with self._lock:
                self._judged_now -= 1
                self.seconds += self._clock() - began
                charge(self._cpu() - used)

    def _compare(self, turn: _Turn, asked: set[Claim], before: Outcome, newest: Outcome | None) -> None:
        """Compare the latest full evaluation with incremental ones: what these ``asked`` about and it confirms, and the
        differences.

        What has just begun or ended shows in the newest steps first.
        """
        turn.newest = newest or turn.standing
        answered = confirmed_claims(asked, before, turn.standing)
        same = not any(_other(before, turn.standing, key) for key in before.costs.keys() | turn.standing.costs.keys())
        turn.calm = min(turn.calm + 1, MOST_CALM) if same and not turn.soon else 0
        in_vain = (asked - answered) | disputed_ranks(turn.standing, turn.seen or turn.standing)
        turn.doubts.evaluated(asked, answered, in_vain, self._clock())

    def _affords(self, turn: _Turn, full_evaluations: int) -> bool:
        """Whether one more full evaluation fits the budget, with so many allowed ahead of it."""
        return self.full_evaluations.pays(max(AHEAD_S, full_evaluations * turn.took / self.full_evaluations.share))

    def _aim_s(self) -> float:
        """CPU time that each job's turn is to take: a part of what looks may, shared by all that are judged."""
        now = self._clock()
        judged = sum([now - turn.next < AHEAD_S for turn in list(self._turns.values())])
        return AIMED * self._looks.share * EVERY_S / max(judged, 1)

    def _charge(self, turn: _Turn, used: float) -> None:
        """For a full evaluation: when the next one is due, whatever incremental ones say."""
        turn.took = used
        budget = self._looks if used <= self._aim_s() else self.full_evaluations
        budget.spend(used)
        apart_s = min(used / self.full_evaluations.share * 2.0**turn.calm, CALM_S)
        turn.whole = max(self.full_evaluations.free, self._clock() + apart_s)

    def _charge_look(self, turn: _Turn, used: float) -> None:
        """For an incremental evaluation: how many rows the next one reads."""
        self._looks.spend(used)
        turn.look_took = used
        aim = self._aim_s()
        if used > aim:
            turn.rows = max(int(turn.rows * aim / used), LEAST_INCREMENTAL_ROWS)
        elif used < SHORT * aim:
            turn.rows = min(int(turn.rows * LONGER), INCREMENTAL_ROWS)

    def begun(self, job: str) -> _Turn:
        """A turn that begins now: when the next one does."""
        turn, now = self._turns.setdefault(job, self._turn(job)), self._clock()
        due = turn.next if 0.0 <= now - turn.next < 2 * WRITE_S else now
        looks_s = min(turn.look_took / OF_A_LARGE_JOB, APART_S) if turn.ranks > MANY_RANKS else 0.0
        turn.last, turn.next = now, due + max(looks_s, self._period)
        turn.watched = _counted(turn.watched, more=turn.named)
        return turn

    def forget(self, job: str) -> None:
        self._turns.pop(job, None)
