"""Runs samplers when they are due. Owns their errors and their timing, so that no sampler has to.

Those that call a driver have a thread of their own: a call that never returns stops nothing else.

```
tick      ask ──▶ wait, at most ``patience_s`` ──▶ what is there by now         next tick: the rest, if it came
thread        └─▶ sampler, sampler, …, done
```

A GPU that has not answered for ``HUNG_NS`` is left out: its thread is given up, and a new one asks the others. When the
call comes back after all, its thread ends and the GPU is taken on again.
"""

import contextlib
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

from hindmost_agent.sampler import DRIVERS, GPU, LONG_AGO_NS, NAN, NS, Absent, Host, Outcome, Reading, Sampler, Slot

log = logging.getLogger(__name__)

#: A driver that loads its GPUs, or waits for firmware, answers sooner than this.
HUNG_NS = 10 * NS
#: How long a tick waits for the driver, which answers a tick's questions in less than a millisecond.
PATIENCE_S = 0.1


def patience(interval_ns: int) -> float:
    """How long a tick waits for a driver, s: at most half of what there is between two ticks."""
    return min(PATIENCE_S, interval_ns / NS / 2)


class Hung(NamedTuple):
    """A sampler that was given up, the GPU that it had asked, and those that had not had their turn."""

    slot: Slot
    gpu: str
    behind: Sequence[Slot]


class Worker:
    """One thread. Once dropped or given up it ends, but not before its driver call returns."""

    def __init__(self, read: Callable[[Slot, int], Outcome]) -> None:
        #: The samplers that are being read, the first of them just now.
        self.asked: deque[Slot] = deque()
        self.gpu = ""
        self._moved_ns = 0
        self._stood: tuple[int, str] | None = None
        self._given_up = False
        self._wanted: SimpleQueue[int | None] = SimpleQueue()
        #: When that was asked for which is read to its end, and when the last was.
        self._done: SimpleQueue[int] = SimpleQueue()
        self._asked_ns = 0
        self._outcomes: deque[Outcome] = deque()
        self.thread = threading.Thread(target=self._work, args=(read,), name="drivers", daemon=True)
        self.thread.start()

    def ask(self, slots: Sequence[Slot], now_ns: int) -> None:
        """Have these read, one after the other. Only when nothing is being read."""
        self._stood = None
        self._asked_ns = now_ns
        self.asked.extend(slots)
        self._wanted.put(now_ns)

    def take(self, patience_s: float) -> list[Outcome]:
        """What has been read by now, after waiting for the last of it for so long."""
        with contextlib.suppress(Empty):  # a reading that ended after its own tick looked is passed over
            while self._done.get(patience_s > 0, patience_s) != self._asked_ns:
                pass
        return [self._outcomes.popleft() for _ in range(len(self._outcomes))]

    def stands(self, gpu: str, now_ns: int) -> bool:
        """Whether it has come no further for too long; ``gpu``: which it is asking now."""
        where = len(self.asked), gpu
        if where != self._stood:
            self._stood, self._moved_ns = where, now_ns
        return now_ns - self._moved_ns >= HUNG_NS

    def end(self) -> None:
        """Ask for nothing more."""
        self._wanted.put(None)

    def give_up(self, gpu: str) -> None:
        """Nothing that it still reads counts: this GPU keeps it."""
        self.gpu = gpu
        self._given_up = True
        self.end()

    def _work(self, read: Callable[[Slot, int], Outcome]) -> None:
        while (now_ns := self._wanted.get()) is not None:
            while self.asked:
                outcome = read(self.asked[0], now_ns)
                if self._given_up:
                    return
                self._outcomes.append(outcome)
                self.asked.popleft()
            self._done.put(now_ns)


class DriverThread:
    """The thread of one kind of driver, started with the first question. Without a driver there is none."""

    def __init__(self, driver: str, read: Callable[[Slot, int], Outcome], host: Host, patience_s: float) -> None:
        self.driver = driver
        self.patience_s = patience_s
        self._read = read
        self._host = host
        self._worker: Worker | None = None
        self._given_up: list[Worker] = []
        #: Whether it has not answered for too long.
        self.hangs = False

    def __del__(self) -> None:
        if self._worker is not None:
            self._worker.end()

    @property
    def needed(self) -> bool:
        """Whether there is a driver that could block its caller."""
        return self._worker is not None or self._host.has_driver(self.driver)

    @property
    def _gpu(self) -> str:
        """The GPU that is being asked, where that is known."""
        return self._host.asking.gpu if self.driver == GPU else ""

    @property
    def waiting(self) -> tuple[Slot, ...]:
        """Samplers that were asked for and have not answered."""
        return () if self._worker is None else tuple(self._worker.asked)

    def late(self, now_ns: int) -> tuple[list[Outcome], Hung | None]:
        """What came after its tick; and what was given up now, having taken too long."""
        for left in [one for one in self._given_up if not one.thread.is_alive()]:  # the call came back
            self._given_up.remove(left)
            self._host.asking.given_up -= {left.thread}
            self._host.hung -= {left.gpu}
            self._host.gpu_generation += 1
            log.info("%s answers again, and is sampled", left.gpu)
        worker = self._worker
        if worker is None:
            return [], None
        outcomes = worker.take(0)
        asked, stands = tuple(worker.asked), worker.stands(self._gpu, now_ns)
        if asked and stands:
            return outcomes, self._give_up(worker, *asked)
        if not asked and self.hangs:
            self.hangs = False
            log.info("the %s driver answers again", self.driver)
        return outcomes, None

    def ask(self, slots: Sequence[Slot], now_ns: int) -> list[Outcome]:
        """Have these read, and return what of it is there in time. Only when nothing is ``waiting``."""
        if self._worker is None:
            self._worker = Worker(self._read)
        self._worker.ask(slots, now_ns)
        outcomes = self._worker.take(self.patience_s)
        self._worker.stands(self._gpu, now_ns)
        return outcomes

    def _give_up(self, worker: Worker, slot: Slot, *behind: Slot) -> Hung | None:
        """Leave out the GPU that blocks the thread, and go on without both; wait for a driver that answers no GPU."""
        gpu = self._gpu
        if gpu:
            log.warning("%s has not answered %s for %d s: not sampled until it does", gpu, slot.name, HUNG_NS // NS)
            worker.give_up(gpu)
            self._host.asking.given_up |= {worker.thread}
            self._host.asking.gpu = ""
            self._given_up.append(worker)
            self._host.hung |= {gpu}
            self._host.gpu_generation += 1
            self._worker = Worker(self._read)
            return Hung(slot, gpu, behind)
        if self.hangs:
            return None
        self.hangs = True
        what = "the %s driver has not answered %s for %d s: it is not sampled until it does"
        log.warning(what, self.driver, slot.name, HUNG_NS // NS)
        return Hung(slot, "", ())


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
        # From the start: increase() does not see a series' first value.
        host.counts.errors.update(dict.fromkeys(kinds, 0))
        self._read = partial(_read, host, timer)
        self._slots = [Slot(kind, interval_ns, place) for place, kind in enumerate(kinds.values())]
        patience_s = patience(interval_ns) if patience_s is None else patience_s
        self.drivers = {driver: DriverThread(driver, self._read, host, patience_s) for driver in DRIVERS}
        self._interval_ns = interval_ns
        self._spread = False

    def run(self, now_ns: int, *, everything: bool = False) -> list[Reading]:
        """Read every sampler that is due at ``now_ns``: at first all; one that fails or is missing leaves no reading.

        Series that a sampler had and has no more end with a reading in which they are missing.

        With ``everything`` due or not: what a job's end has changed must not wait for the next period.
        """
        outcomes = [outcome for thread in self.drivers.values() for outcome in self._late(thread, now_ns)]
        asking: dict[str, list[Slot]] = {}
        for slot in [slot for slot in self._slots if everything or now_ns >= slot.due_ns]:
            driver = slot.kind.asks_driver
            if driver and self.drivers[driver].needed:
                asking.setdefault(driver, []).append(slot)
            else:
                slot.due_ns = following(slot.due_ns, slot.period_ns, now_ns)
                outcomes.append(self._read(slot, now_ns))
        for driver, thread in self.drivers.items():
            outcomes += self._answers(thread, asking.get(driver, []), now_ns)
        outcomes.sort(key=lambda outcome: outcome.slot.place)  # as if all had been read in turn
        readings = [reading for outcome in outcomes for reading in self._account(outcome, now_ns)]
        if not self._spread and not any(thread.waiting for thread in self.drivers.values()):
            self._spread = True
            spread(self._slots, self.host.counts.duration_s, now_ns, self._interval_ns)
        return readings

    def hasten(self) -> None:
        """Have what causes are read from sampled at the next tick, due or not."""
        for slot in self._slots:
            if slot.kind.tells_why and slot.sampler is not None:
                slot.due_ns = LONG_AGO_NS

    def _late(self, thread: DriverThread, now_ns: int) -> list[Outcome]:
        """What a driver answered after the tick that asked, as of just before this one, which may ask the same again.

        What it never will is a failure.
        """
        late, hung = thread.late(now_ns)
        if hung is not None:
            self.host.counts.success[hung.slot.name] = 0
            self.host.counts.errors[hung.slot.name] += 1
            if hung.gpu:  # the thread that was given up may still write to its sampler: it is made anew
                self._slots[hung.slot.place] = hung.slot.anew()
                for slot in hung.behind:
                    slot.due_ns = LONG_AGO_NS
        return [one._replace(reading=one.reading and one.reading._replace(time_ns=now_ns - 1)) for one in late]

    def _answers(self, thread: DriverThread, due: list[Slot], now_ns: int) -> list[Outcome]:
        """What a driver answers at once. While it owes an answer it is asked nothing; old values are not shown.

        A driver that has never answered yet is being loaded, which takes seconds: no failure, unless it hangs.
        """
        waiting, counts = thread.waiting, self.host.counts
        for slot in (*waiting, *due) if waiting else ():
            self.latest.pop(slot.name, None)
            if thread.hangs or slot.name in counts.success:
                counts.success[slot.name] = 0
        if waiting or not due:
            return []
        for slot in due:
            slot.due_ns = following(slot.due_ns, slot.period_ns, now_ns)
        return thread.ask(due, now_ns)

    def _account(self, outcome: Outcome, now_ns: int) -> Iterator[Reading]:
        """Note what became of a reading; yields the end of series that are gone, then what was read."""
        slot, reading, error, duration_s = outcome
        counts = self.host.counts
        if isinstance(error, Absent):
            if isinstance(error.__cause__, PermissionError):  # it is there: who runs the agent may want to know
                self._say(slot, error)
            slot.sampler = None
            slot.due_ns = now_ns + max(ABSENT_RETRY_NS, slot.period_ns)
            counts.success.pop(slot.name, None)
            counts.duration_s.pop(slot.name, None)
        else:
            counts.success[slot.name] = int(error is None)
            counts.duration_s[slot.name] = duration_s
        if error is not None and not isinstance(error, Absent):
            counts.errors[slot.name] += 1
            self._say(slot, error)
        self.latest.pop(slot.name, None)
        if error is None or isinstance(error, Absent):
            before, slot.before = slot.before, reading
            if before is not None and (reading is None or reading.series is not before.series):
                time_ns = now_ns if reading is None else reading.time_ns
                yield before._replace(time_ns=time_ns, values=[NAN] * len(before.values))
        if reading is not None:
            self.latest[slot.name] = reading
            yield reading

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
