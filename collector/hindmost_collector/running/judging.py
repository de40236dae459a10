"""Judges running jobs: which of them when, the whole of its window or its newest steps, and for how much of a core."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from hindmost_collector.running import looks
from hindmost_collector.running.looks import Seen
from hindmost_collector.settings import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable

    from hindmost_collector.model import Counted, Past, Run
    from hindmost_collector.settings import Settings

    Judge = Callable[[Run], Any]
    Snapshot = Callable[[], Run]

log = logging.getLogger(__name__)

_T = TypeVar("_T")

#: What judging may take of a core: a twentieth, and of a machine of many cores more, for nobody misses it there.
LEAST_SHARE, MOST_SHARE = 0.05, 0.2
#: Cores of which one may spend all of its least share on judging; with more the share grows.
CORES_A_SHARE = 4
#: For how long judging may spend ahead what it did not spend, or will not: a change is told when it comes.
AHEAD_S = 20.0
#: A verdict is to be news no later than this.
EVERY_S = 2.0
#: So often begins a turn that the share does not pay for, as long as it takes no more of a core than this: the
#: collector's rounds, and what the judging itself takes, make it ``EVERY_S`` until its news is out.
HASTE_S, HASTE_SHARE = 1.5, 0.1
#: A turn waits for a write that is under way for so long at most, and one that begins later than it was to, by no more
#: than twice that, does not put off the next one: else what each is late by would add up.
WRITE_S = 0.25
#: The share of what judging may take that looks at the newest steps use up at most: the rest is whole windows'.
OF_LOOKS = 0.5
#: Looks that take more than this share of what the whole window does are not worth it.
OF_WHOLE = 0.6


def load_judge(settings: Settings = DEFAULT) -> Judge:
    """``hindmost_collector.judge.judge``, imported late: it is heavy, and a collector receives before it judges."""
    judge: Callable[[Run, Settings], Any] = importlib.import_module("hindmost_collector.judge").judge
    return lambda run: judge(run, settings)


def share_of(cores: int) -> float:
    """The share of one core that judging may take on a machine of so many."""
    return min(max(LEAST_SHARE * cores / CORES_A_SHARE, LEAST_SHARE), MOST_SHARE)


@dataclass
class _Turn:
    """Of one job: when it is its turn, and not before when, when it is overdue, when its whole window is judged again,
    whatever its newest steps say, and what judging that and looking at these took.

    ``held`` is what holds by the whole window, ``newest`` what its newest steps said then, ``seen`` what they say now,
    where they were looked at; ``hasty_s`` for how long the whole waits as long as these differ; ``past`` and
    ``counted`` what a window tells the next one.
    """

    next: float = 0.0
    least: float = 0.0
    overdue: float = float("inf")
    whole: float = 0.0
    took: float = 0.0
    look_took: float = 0.0
    hasty_s: float = 0.0
    held: Seen = field(default_factory=Seen)
    newest: Seen = field(default_factory=Seen)
    seen: Seen | None = None
    past: Past | None = None
    counted: Counted | None = None

    def after_others(self, run: Run) -> Run:
        """A window, with what those before it tell of it."""
        return replace(run, past=self.past, counted=self.counted)


class Judging:
    """Paces judging so that it takes no more than its ``share`` of a core, whatever the size and number of jobs, but
    where a verdict would then be older than ``EVERY_S``: for that it may take ``HASTE_SHARE``, and of two jobs each.

    Where the share of ``EVERY_S`` does not pay for a whole window, its newest steps are looked at each period, and the
    whole is judged when they say something new, and else as often as the share allows; in another thread, so that looks
    go on meanwhile. Only what a whole window says is told.

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
        self._turns: dict[str, _Turn] = {}
        self._free = 0.0  # when what was spent is no more than the share
        self.failures = 0
        self.seconds = 0.0
        self.judge: Judge | None = None
        self._judged_now = 0  # how many threads judge
        self._counting = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether a window is being judged, in whichever thread."""
        return self._judged_now > 0

    def due(self, job: str) -> bool:
        """Whether it is time to judge a job again."""
        now = self._clock()
        return now >= self.turn(job) and now + AHEAD_S >= self._free

    def overdue(self, job: str) -> bool:
        """Whether a job's next turn can wait for nothing any more: its verdicts are about ``EVERY_S`` old."""
        turn = self._turns.get(job)
        return turn is not None and self._clock() >= turn.overdue

    def again(self, job: str, after_s: float) -> None:
        """Judge a job again, the whole of its window, sooner than its turn is, as far as its cost allows."""
        turn = self._turns.get(job)
        if turn is not None:
            turn.next = min(turn.next, max(turn.least, self._clock() + after_s))
            turn.whole = min(turn.whole, turn.next)

    def turn(self, job: str) -> float:
        """When it is a job's turn: jobs that wait longest come first."""
        return self._turns[job].next if job in self._turns else 0.0

    def pause_s(self, usual_s: float) -> float:
        """How long to wait until some job's turn comes: no longer than usual."""
        now = self._clock()
        return min([usual_s, *(turn.next - now for turn in self._turns.values() if turn.next > now)])

    def costly(self, job: str) -> bool:
        """Whether the share does not pay for judging the whole window as often as there is to be news, and would for
        looks at a part of it."""
        turn, paid = self._turns.get(job, _Turn()), self._share * max(self._period, EVERY_S)
        return turn.took > paid and turn.look_took <= OF_WHOLE * turn.took

    def whole_due(self, job: str) -> bool:
        """Whether the whole window is to be judged again, whatever its newest steps say."""
        return self._clock() >= self._turns[job].whole

    def report(
        self, job: str, run: Snapshot, *, newest: Snapshot | None = None, whole: bool = False
    ) -> dict[str, Any] | None:
        """Judge a window, or the ``whole`` run.

        None when the ``newest`` steps of a window that costs much say nothing new, and when judging failed, which is
        said once and never stops the collector.
        """
        looking = newest is not None and self.costly(job)
        if looking and newest is not None and not self.look(job, newest) and not self.whole_due(job):
            return None
        return self.judged(job, run, whole=whole, beside=looking)

    def look(self, job: str, newest: Snapshot) -> bool | None:
        """Whether the newest steps of a window say something new; None where judging them failed."""
        turn = self._turns.setdefault(job, _Turn())

        def of_newest(judge: Judge) -> bool:
            used = self._cpu()
            turn.seen = looks.seen(judge(turn.after_others(newest())))
            turn.look_took = self._cpu() - used
            return looks.differ(turn.held, turn.newest, turn.seen)

        return self._counted(turn, of_newest, self._charge_look)

    def judged(self, job: str, run: Snapshot, *, whole: bool = False, beside: bool = False) -> dict[str, Any] | None:
        """The report on a window, or on the ``whole`` run, as ``hindmost.report/1``; None where judging failed.

        Windows tell the next one what those before them told. One that is judged ``beside`` looks leaves it to these
        when the job's next turn is.
        """
        turn = self._turns.setdefault(job, _Turn())

        def of_all(judge: Judge) -> dict[str, Any]:
            used = self._cpu()
            found = judge(run() if whole else turn.after_others(run()))
            report: dict[str, Any] = found.to_dict()
            turn.past = next((one.past for one in found.verdicts if one.past is not None), None)
            turn.counted = found.counted or turn.counted
            turn.took = self._cpu() - used
            self._settle(turn, looks.seen(found), turn.seen if beside else None)
            return report

        return self._counted(turn, of_all, self._charge_beside if beside else self._charge)

    def _counted(
        self, turn: _Turn, work: Callable[[Judge], _T], charge: Callable[[_Turn, float, float], None]
    ) -> _T | None:
        """Work that needs the judge, and what it takes, charged; None where it failed."""
        began, used = self._clock(), self._cpu()
        with self._counting:
            self._judged_now += 1
        try:
            if self.judge is None:
                self.judge = load_judge(self._settings)
                used = self._cpu()
            return work(self.judge)
        except Exception:
            if not self.failures:
                log.warning("judging failed; recording goes on", exc_info=True)
            self.failures += 1
            return None
        finally:
            with self._counting:
                self._judged_now -= 1
                self.seconds += self._clock() - began
                charge(turn, began, self._cpu() - used)

    def _settle(self, turn: _Turn, held: Seen, seen: Seen | None) -> None:
        """When the whole window is judged again, if nothing new is seen until then.

        Soon where its newest steps, as they were ``seen`` now, name others than it does: what has just begun or ended
        shows in these first.
        """
        now = self._clock()
        news = seen is None or looks.differ(turn.held, turn.newest, seen)
        turn.held, turn.newest = held, held if seen is None else seen
        pace = self._pace(turn.look_took, OF_LOOKS)
        of_looks = min(turn.look_took / pace, OF_LOOKS * self._share) if turn.look_took else 0.0
        turn.whole = max(now + turn.took / (self._share - of_looks), self._free)
        if seen is None or looks.settled(held, seen):
            turn.hasty_s = 0.0
        else:
            turn.hasty_s = pace if news or not turn.hasty_s else 2 * turn.hasty_s
            turn.whole = min(turn.whole, now + turn.hasty_s)

    def _pace(self, took: float, part: float) -> float:
        """Seconds from one turn to the next that take so much CPU time each, of which this part of the share is for."""
        usual = took / (self._share * part)
        return max(self._period, min(usual, max(HASTE_S, took / HASTE_SHARE)))

    def _charge(self, turn: _Turn, began: float, used: float) -> None:
        """When the job is judged next, for what its turn, which ``began`` then, has cost."""
        pace = self._pace(used, 1.0)
        self._spend(min(used / self._share, pace))
        turn.least = self._clock() + min(used / self._share, pace)
        self._put(turn, began, pace, self._clock())

    def _charge_look(self, turn: _Turn, began: float, used: float) -> None:
        """The same for a look: of the share it takes a part at most."""
        pace = self._pace(used, OF_LOOKS)
        self._spend(min(used / self._share, OF_LOOKS * pace))
        turn.least = self._clock()
        self._put(turn, began, pace, turn.least)

    def _charge_beside(self, _: _Turn, __: float, used: float) -> None:
        """The same for a whole window that is judged beside looks."""
        self._spend(used / self._share)

    def _spend(self, seconds: float) -> None:
        self._free = max(self._free, self._clock()) + seconds

    def _put(self, turn: _Turn, began: float, pace: float, least: float) -> None:
        """Put the next turn after one that ``began`` then, not before ``least``."""
        due = turn.next if 0.0 <= began - turn.next < 2 * WRITE_S else began
        turn.next = max(least, due + pace)
        turn.overdue = turn.next + WRITE_S

    def forget(self, job: str) -> None:
        """A job is over."""
        self._turns.pop(job, None)
