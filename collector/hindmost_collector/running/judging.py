"""Judges running jobs: which of them when, the whole of its window or its newest steps, and for how much of a core."""

from __future__ import annotations

import importlib
import logging
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hindmost_collector.running import looks
from hindmost_collector.running.looks import Seen
from hindmost_collector.settings import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable

    from hindmost_collector.model import Past, Run
    from hindmost_collector.settings import Settings

    Judge = Callable[[Run], Any]
    Snapshot = Callable[[], Run]

log = logging.getLogger(__name__)

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

    ``held`` is what holds by the whole window, ``newest`` what its newest steps said then; ``hasty_s`` for how long the
    whole waits as long as these differ; ``past`` what a window tells the next one.
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
    past: Past | None = None


class Judging:
    """Paces judging so that it takes no more than its ``share`` of a core, whatever the size and number of jobs, but
    where a verdict would then be older than ``EVERY_S``: for that it may take ``HASTE_SHARE``, and of two jobs each.

    Where the share of ``EVERY_S`` does not pay for a whole window, its newest steps are looked at each period, and the
    whole is judged when they say something new, and else as often as the share allows. Only what a whole window says is
    told.

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
        self.busy = False  # whether a window is being judged, in whichever thread
        self.judge: Judge | None = None

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

    def report(
        self, job: str, run: Snapshot, *, newest: Snapshot | None = None, whole: bool = False
    ) -> dict[str, Any] | None:
        """Judge a window, or the ``whole`` run.

        None when the ``newest`` steps of a window that costs much say nothing new, and when judging failed, which is
        said once and never stops the collector.
        """
        turn = self._turns.setdefault(job, _Turn())
        began, used = self._clock(), self._cpu()
        self.busy = True
        try:
            if self.judge is None:
                self.judge = load_judge(self._settings)
                used = self._cpu()
            seen = None
            if newest is not None and self._costly(turn):
                seen = self._looked(turn, newest, self.judge)
                if self._clock() < turn.whole and not looks.differ(turn.held, turn.newest, seen):
                    return None
            return self._judged(turn, run, self.judge, seen, whole=whole)
        except Exception:
            if not self.failures:
                log.warning("judging failed; recording goes on", exc_info=True)
            self.failures += 1
            return None
        finally:
            self.busy = False
            self.seconds += self._clock() - began
            self._charge(turn, began, self._cpu() - used, looking=newest is not None and self._costly(turn))

    def _costly(self, turn: _Turn) -> bool:
        """Whether the share does not pay for judging the whole window as often as there is to be news, and would for
        looks at a part of it."""
        paid = self._share * max(self._period, EVERY_S)
        return turn.took > paid and turn.look_took <= OF_WHOLE * turn.took

    def _looked(self, turn: _Turn, newest: Snapshot, judge: Judge) -> Seen:
        """What the newest steps say."""
        used = self._cpu()
        seen = looks.seen(judge(replace(newest(), past=turn.past)))
        turn.look_took = self._cpu() - used
        return seen

    def _judged(self, turn: _Turn, run: Snapshot, judge: Judge, seen: Seen | None, *, whole: bool) -> dict[str, Any]:
        """The report as ``hindmost.report/1``; of a window with what those before it told, and tell the next one."""
        used = self._cpu()
        found = judge(run() if whole else replace(run(), past=turn.past))
        report: dict[str, Any] = found.to_dict()
        turn.past = next((one.past for one in found.verdicts if one.past is not None), None)
        turn.took = self._cpu() - used
        self._settle(turn, looks.seen(found), seen)
        return report

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

    def _charge(self, turn: _Turn, began: float, used: float, *, looking: bool) -> None:
        """When the job is looked at next, for what its turn, which ``began`` then, has cost."""
        now = self._clock()
        look, part = (min(turn.look_took, used), OF_LOOKS) if looking else (used, 1.0)
        pace = self._pace(look, part)
        spent = min(look / self._share, part * pace) + (used - look) / self._share
        self._free = max(self._free, now) + spent
        turn.least = now if looking else now + spent
        turn.next = max(turn.least if looking else now, began + pace)
        turn.overdue = began + max(pace, EVERY_S)

    def forget(self, job: str) -> None:
        """A job is over."""
        self._turns.pop(job, None)
