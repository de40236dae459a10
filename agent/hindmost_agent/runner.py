"""Runs samplers when they are due. Owns their errors and their timing, so that no sampler has to."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from hindmost_agent.driver_threads import Beside, patience
from hindmost_agent.sampler import DRIVERS, Absent
from hindmost_agent.slot import LONG_AGO_NS, NS, Outcome, Reading, Slot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hindmost_agent.sampler import Host, Sampler

log = logging.getLogger(__name__)

#: A source that is not here may appear (a module is loaded, a file system mounted): look again after this long.
ABSENT_RETRY_NS = 60 * NS


def following(due_ns: int, period_ns: int, now_ns: int) -> int:
    """When to be due next: a period after it was due, so that periods do not drift; a pause is not caught up with."""
    return due_ns + period_ns if due_ns + period_ns > now_ns else now_ns + period_ns


def spread(slots: Iterable[Slot], cost: Mapping[str, float], now_ns: int, interval_ns: int) -> None:
    """Give slow samplers ticks of their own, as far as there are any: else all fall due in the same one, for ever.

    ``cost`` is what each took at ``now_ns``; the costliest choose first, each the tick that has least to do.
    """
    slow = [slot for slot in slots if slot.period_ns > interval_ns and slot.name in cost]
    horizon = max((slot.period_ns for slot in slow), default=0) // interval_ns
    load: defaultdict[int, float] = defaultdict(float)
    for slot in sorted(slow, key=lambda slot: -cost[slot.name]):
        every = slot.period_ns // interval_ns
        first = min(range(1, every + 1), key=lambda tick: max(load[at] for at in range(tick, horizon + 1, every)))
        for tick in range(first, horizon + 1, every):
            load[tick] += cost[slot.name]
        slot.due_ns = now_ns + first * interval_ns


def _without_frames(error: Exception) -> Exception:
    """The error and its cause, without where they came from.

    A traceback holds the sampler's frame, even half made, and those of the code that keeps the error: a cycle, in which
    each failure's open files would wait for the garbage collector.
    """
    for one in (error, error.__cause__):
        if one is not None:
            one.__traceback__ = one.__context__ = None
    if error.__cause__ is not None:
        error.__cause__.__cause__ = None
    return error


def _read(host: Host, timer: Callable[[], int], slot: Slot, now_ns: int) -> Outcome:
    """One sampler's reading. Raises nothing; in whichever thread, it touches nothing that others use."""
    started = timer()
    reading = failed = None
    try:
        reading = slot.run(host, now_ns)
    except Exception as error:  # noqa: BLE001 - one broken source must not stop the others
        failed = _without_frames(error)
    return Outcome(slot, reading, failed, (timer() - started) / NS)


class Runner:
    """All samplers of an agent."""

    def __init__(
        self,
        kinds: Mapping[str, type[Sampler]],
        host: Host,
        interval_ns: int,
        timer: Callable[[], int] = time.perf_counter_ns,
        patience_s: float | None = None,
    ) -> None:
        """``patience_s``: how long a tick waits for a driver, where that is not its own affair."""
        self.host = host
        #: What each sampler read last; without those that failed or are missing, whose values are old.
        self.latest: dict[str, Reading] = {}
        host.own.errors.update(dict.fromkeys(kinds, 0))  # from the start: increase() does not see a series' first value
        self._read = partial(_read, host, timer)
        self._slots = [Slot(kind, interval_ns, place) for place, kind in enumerate(kinds.values())]
        patience_s = patience(interval_ns) if patience_s is None else patience_s
        self._beside = {driver: Beside(driver, self._read, host, patience_s) for driver in DRIVERS}
        self._interval_ns = interval_ns
        self._spread = False

    def run(self, now_ns: int, *, everything: bool = False) -> list[Reading]:
        """Read every sampler that is due at ``now_ns``: at first all; one that fails or is missing leaves no reading.

        With ``everything`` due or not: what a job's end has changed must not wait for the next period.
        """
        asked = [beside for beside in self._beside.values() if beside.started]  # none where there is no driver
        outcomes = [outcome for beside in asked for outcome in self._late(beside, now_ns)]
        asking: dict[str, list[Slot]] = {}
        for slot in [slot for slot in self._slots if everything or now_ns >= slot.due_ns]:
            driver = slot.kind.asks_driver
            if driver and self._beside[driver].needed:
                asking.setdefault(driver, []).append(slot)
            else:
                slot.due_ns = following(slot.due_ns, slot.period_ns, now_ns)
                outcomes.append(self._read(slot, now_ns))
        if asked or asking:  # as if all had been read in turn
            for driver, beside in self._beside.items():
                outcomes += self._asked(beside, asking.get(driver, []), now_ns)
            outcomes.sort(key=lambda outcome: outcome.slot.place)
        readings = [reading for outcome in outcomes if (reading := self._account(outcome, now_ns)) is not None]
        if not self._spread and not any(beside.waiting for beside in self._beside.values()):
            self._spread = True
            spread(self._slots, self.host.own.duration_s, now_ns, self._interval_ns)
        return readings

    def hasten(self) -> None:
        """Have what causes are read from sampled at the next tick, due or not."""
        for slot in self._slots:
            if slot.kind.tells_why and slot.sampler is not None:
                slot.due_ns = LONG_AGO_NS

    def _late(self, beside: Beside, now_ns: int) -> list[Outcome]:
        """What a driver answered after the tick that asked, as of just before this one, which may ask the same again.

        What it never will is a failure.
        """
        late, hung = beside.late(now_ns)
        if hung is not None:
            self.host.own.success[hung.slot.name] = 0
            self.host.own.errors[hung.slot.name] += 1
            if hung.gpu:  # the thread that was given up may still write to its sampler: it is made anew
                self._slots[hung.slot.place] = hung.slot.anew()
                for slot in hung.behind:
                    slot.due_ns = LONG_AGO_NS
        return [one._replace(reading=one.reading and one.reading._replace(time_ns=now_ns - 1)) for one in late]

    def _asked(self, beside: Beside, due: list[Slot], now_ns: int) -> list[Outcome]:
        """What a driver answers at once. While it owes an answer it is asked nothing; old values are not shown.

        A driver that has never answered yet is being loaded, which takes seconds: no failure, unless it hangs.
        """
        waiting, own = beside.waiting, self.host.own
        for slot in (*waiting, *due) if waiting else ():
            self.latest.pop(slot.name, None)
            if beside.hangs or slot.name in own.success:
                own.success[slot.name] = 0
        if waiting or not due:
            return []
        for slot in due:
            slot.due_ns = following(slot.due_ns, slot.period_ns, now_ns)
        return beside.ask(due, now_ns)

    def _account(self, outcome: Outcome, now_ns: int) -> Reading | None:
        """Note what became of a reading; returns what was read."""
        slot, reading, error, duration_s = outcome
        own = self.host.own
        if isinstance(error, Absent):
            if isinstance(error.__cause__, PermissionError):  # it is there: who runs the agent may want to know
                self._say(slot, error)
            slot.sampler = None
            slot.due_ns = now_ns + max(ABSENT_RETRY_NS, slot.period_ns)
            own.success.pop(slot.name, None)
            own.duration_s.pop(slot.name, None)
        else:
            own.success[slot.name] = int(error is None)
            own.duration_s[slot.name] = duration_s
        if error is not None and not isinstance(error, Absent):
            own.errors[slot.name] += 1
            self._say(slot, error)
        if reading is None:
            self.latest.pop(slot.name, None)
        else:
            self.latest[slot.name] = reading
        return reading

    @staticmethod
    def _say(slot: Slot, error: Exception) -> None:
        """One line for each new kind of failure, not one a tick."""
        what = type(error).__name__
        if what not in slot.said:
            slot.said.add(what)
            then = "counted in hindmost_agent_sampler_errors_total"
            if isinstance(error, Absent):
                then = "tried again every minute"
            log.warning("sampler %s: %s: %s (logged once; %s)", slot.name, what, error, then)
