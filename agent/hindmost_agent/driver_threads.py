"""Samplers that call a driver, in their own thread: a call that never returns stops nothing else.

```
tick      ask ──▶ wait, at most ``patience_s`` ──▶ what is there by now         next tick: the rest, if it came
thread        └─▶ sampler, sampler, …, done
```

A GPU that has not answered for ``HUNG_NS`` is left out: its thread is given up, and a new one asks the others. When the
call comes back after all, its thread ends and the GPU is taken on again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from hindmost_agent.sampler import GPU

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hindmost_agent.sampler import Host
    from hindmost_agent.slot import Outcome, Slot

log = logging.getLogger(__name__)

NS = 1_000_000_000
#: Longer than a driver takes that loads its GPUs or waits for one's firmware, which passes.
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
    """One thread. It ends when it is dropped or given up, unless a call keeps it."""

    def __init__(self, read: Callable[[Slot, int], Outcome]) -> None:
        #: The samplers that are being read, the first of them just now.
        self.asked: deque[Slot] = deque()
        self.gpu = ""
        self._moved_ns = 0
        self._stood: tuple[int, str] | None = None
        self._given_up = False
        self._wanted: SimpleQueue[int | None] = SimpleQueue()
        self._done: SimpleQueue[None] = SimpleQueue()
        self._outcomes: deque[Outcome] = deque()
        self.thread = threading.Thread(target=self._work, args=(read,), name="drivers", daemon=True)
        self.thread.start()

    @property
    def ended(self) -> bool:
        """Whether the thread has left the call in which it was given up."""
        return not self.thread.is_alive()

    def ask(self, slots: Sequence[Slot], now_ns: int) -> None:
        """Have these read, one after the other. Only when nothing is being read."""
        self._stood = None
        self.asked.extend(slots)
        self._wanted.put(now_ns)

    def take(self, patience_s: float) -> list[Outcome]:
        """What has been read by now, after waiting for the last of it for so long."""
        with contextlib.suppress(Empty):
            self._done.get(timeout=patience_s) if patience_s else self._done.get_nowait()
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
            self._done.put(None)


class Beside:
    """The thread of one kind of driver, started with the first question. Without a driver there is none."""

    def __init__(self, driver: str, read: Callable[[Slot, int], Outcome], host: Host, patience_s: float) -> None:
        self.driver = driver
        self.patience_s = patience_s
        self._read = read
        self._host = host
        self._worker: Worker | None = None
        self._given_up: list[Worker] = []
        self._said = False

    def __del__(self) -> None:
        if self._worker is not None:
            self._worker.end()

    @property
    def started(self) -> bool:
        """Whether it has ever been asked."""
        return self._worker is not None

    @property
    def needed(self) -> bool:
        """Whether there is a driver that could block its caller."""
        return self._worker is not None or self._host.has_driver(self.driver)

    @property
    def _gpu(self) -> str:
        """The GPU that is being asked, where that is known."""
        return self._host.asking.gpu if self.driver == GPU else ""

    @property
    def hangs(self) -> bool:
        """Whether it has not answered for too long."""
        return self._said

    @property
    def waiting(self) -> tuple[Slot, ...]:
        """Samplers that were asked for and have not answered."""
        return () if self._worker is None else tuple(self._worker.asked)

    def late(self, now_ns: int) -> tuple[list[Outcome], Hung | None]:
        """What came after its tick; and what was given up now, having taken too long."""
        self._take_back()
        worker = self._worker
        if worker is None:
            return [], None
        outcomes = worker.take(0)
        asked, stands = tuple(worker.asked), worker.stands(self._gpu, now_ns)
        if asked and stands:
            return outcomes, self._give_up(worker, *asked)
        if not asked and self._said:
            self._said = False
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
        if self._said:
            return None
        self._said = True
        what = "the %s driver has not answered %s for %d s: it is not sampled until it does"
        log.warning(what, self.driver, slot.name, HUNG_NS // NS)
        return Hung(slot, "", ())

    def _take_back(self) -> None:
        for worker in [worker for worker in self._given_up if worker.ended]:
            self._given_up.remove(worker)
            self._host.asking.given_up -= {worker.thread}
            self._host.hung -= {worker.gpu}
            self._host.gpu_generation += 1
            log.info("%s answers again, and is sampled", worker.gpu)
