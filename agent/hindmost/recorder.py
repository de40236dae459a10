"""What probes and marks record of the training thread: steps and phases, written to this process's ring."""

from __future__ import annotations

import time
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from hindmost.step_sampling import Measured, StepSampling, Usage

if TYPE_CHECKING:
    from collections.abc import Callable

STEP, PHASE, MARK = 1, 2, 6  # kinds of ring.h
STEP_SLOT = 0
#: So long what hooks saw may wait to be written; the agent looks once a second.
FLUSH_NS = 100_000_000
#: How often it is written what hooks took, as a mark ``probe`` whose value is in ns.
ACCOUNT_NS = 1_000_000_000
#: What may train, the more specific one later. A framework that is not listed is more specific than all of these.
FRAMEWORKS = ("python", "mpi4py", "torch", "keras", "horovod")
FIRST_PHASE_SLOT, LAST_PHASE_SLOT = 1, 7


class Ring(Protocol):
    """What is needed of ``hindmost.ring.Writer``."""

    event: Any

    def name(self, text: str) -> int: ...
    def enter(
        self,
        slot: int,
        kind: int,
        name: int,
        start_ns: int,
        seq: int = ...,
        comm: int = ...,
        peer: int = ...,
        flags: int = ...,
    ) -> None: ...
    def leave(self, slot: int) -> None: ...
    def communicator(self, id: int, rank: int, size: int, name: str) -> int: ...  # noqa: A002 - the ring's word
    def set_framework(self, text: str) -> None: ...
    def set_gpu(self, uuid: str) -> None: ...


class Follower(Protocol):
    """Hooks in C that write to the ring by themselves: what a recorder tells them and asks of them."""

    def writes_to(self, ring: Ring) -> None: ...
    def trains_in(self, thread: int, *, surely: bool) -> None: ...
    def begins_again(self) -> None: ...
    def gives_up(self) -> tuple[dict[str, int], int]: ...
    def take_work(self) -> int: ...
    def take_own_ns(self) -> int: ...


class Recorder:
    """Writes steps and phases of the training thread. One a process; times are ns of ``CLOCK_MONOTONIC``.

    A hook that runs once a step runs in cold caches, where Python is many times slower than in a loop. So what hooks
    of frameworks see is only stamped, and kept as calls in ``later``; ``flush`` makes them, many steps' at a time.
    Whatever is written meanwhile waits in the same row, so that the ring's order stays that of time.
    """

    def __init__(
        self,
        ring: Ring,
        clock: Callable[[], int] = time.monotonic_ns,
        sampling: StepSampling | None = None,
    ) -> None:
        self.ring = ring
        self.clock = clock
        self.explicit = False  # the loop marks its own steps: what probes recognise is not written
        self.seen_work = 0  # samples or tokens that probes saw this step use
        self.numbers = {"train": 0, "eval": 0}  # the next step of each kind
        self.closers: list[Callable[[], None]] = []  # what has to be written before the ring is closed
        #: Called after each written step with its number, its start (ns) and its kind.
        self.on_step: list[Callable[[int, int, str], None]] = []
        #: Called as a marked step ends, with its start and end (ns): phases that are known only now are written then.
        self.on_end: list[Callable[[int, int], None]] = []
        #: Called where an epoch begins: batches that were fetched and not used are no step's.
        self.on_epoch: list[Callable[[], None]] = []
        #: Called with the time (ns) where the loop does what is no batch's: an evaluation before it has ended.
        self.on_pause: list[Callable[[int], None]] = []
        #: Called where what was taken for the training thread proves not to be: what it did is no step's.
        self.on_handover: list[Callable[[], None]] = []
        #: Called with rank and world size, as a process group is joined; with these and the local rank, as they change.
        self.join_group: Callable[[int, int], None] = lambda *_: None
        self.change_rank: Callable[[int, int, int], None] = lambda *_: None
        self.thread = 0  # the ident of the training thread; 0: none has shown itself
        self.surely = False  # it did what only a thread that trains does; until then another may take its place
        self.later: list[tuple[Any, ...]] = []  # calls to be made, oldest first: function, arguments
        self.due_ns = 0  # when they should be
        self.own_ns = 0  # what hooks took of the training thread's time since the last flush
        self.sampling = sampling or StepSampling(clock, self._first_usage)
        self._followers: list[Follower] = []
        self.ids: dict[str, int] = {}  # the ring's indices of names: a look-up here is a call less
        self._start_up: list[tuple[str, int, int]] = []  # what was set up before a thread trained; for its ring
        self._own = (0, 0)  # what hooks took, since when: not yet written
        self._flushed_ns = 0
        self._measured: Measured | None = None
        self._flushing = False
        self._framework = FRAMEWORKS[0]
        self._depth = 0
        self._ended = -1

    def training_thread(self) -> bool:
        """Whether the caller is the thread that trains; the first that asks is."""
        if not self.thread:
            # First, and now: a collection may strike while a ring is made, or a name registered under its lock.
            self.ring.name("gc")
            self.thread = get_ident()
            start_up, self._start_up = self._start_up, []
            for one in start_up:
                self.set_up(*one)
        return self.thread == get_ident()

    def set_up(self, name: str, start_ns: int, end_ns: int) -> None:
        """Record what a process does before it trains: ``import`` of a framework, ``init`` of communicators.

        No ring is made for it: it waits until a thread trains.
        """
        if self.thread > 0:
            self.ring.event(MARK, self.id(name), start_ns, end_ns - start_ns)
        elif not self.thread:
            self._start_up.append((name, start_ns, end_ns))

    def record_version(self, name: str, version: object) -> None:
        """Record which version of a library the process uses; nothing where it does not say."""
        if version is not None:
            now_ns = self.clock()
            self.set_up(f"version {name} {version}", now_ns, now_ns)

    def trains_here(self) -> bool:
        """Whether the caller, which does what only a thread that trains does, is that thread; the first is for good.

        Until then it was the first thread that asked: maybe one that fetches ahead for the training thread.
        """
        here = get_ident()
        if self.surely or self.thread < 0:
            return self.thread == here
        handed_over = self.thread not in (0, here)
        if handed_over:
            self.thread = 0
            self.sampling.usage = self._first_usage
        self.training_thread()
        self.surely = True
        for follower in self._followers:
            follower.trains_in(here, surely=True)
        if handed_over:
            for callback in self.on_handover:
                callback()
        return True

    def follow(self, follower: Follower) -> None:
        """Have it know of what changes here."""
        self._followers.append(follower)

    def training(self) -> bool:
        """Whether a training thread has shown itself yet."""
        return self.thread > 0

    def name_framework(self, text: str) -> None:
        """Say what trains here. A Horovod job imports torch too: the more specific framework is recorded."""
        if _specific(text) > _specific(self._framework):
            self._framework = text
            self.ring.set_framework(text)

    def move(self, ring: Ring) -> None:
        """Go on in another ring."""
        self.flush()
        self.ring = ring
        self.ids.clear()
        ring.name("gc")
        ring.set_framework(self._framework)
        for follower in self._followers:
            follower.writes_to(ring)

    def begin_again(self, ring: Ring) -> None:
        """A process without a rank, or a fork that was no rank, is one now: record into this ring, from 0."""
        self.later.clear()
        self.move(ring)
        self.numbers = {"train": 0, "eval": 0}
        self._ended = -1
        self.thread, self.surely = 0, False
        for follower in self._followers:
            follower.begins_again()
            follower.trains_in(0, surely=False)

    def abandon(self) -> None:
        """This process is a fork of the one that trains: nothing is recorded here."""
        self.later.clear()
        self.thread = -1
        for follower in self._followers:
            follower.trains_in(-1, surely=True)

    def usage(self) -> tuple[int, int]:
        """CPU ns of this process and run-queue ns of the training thread, so far; -1 unmeasured."""
        return self.sampling.usage()

    def tick(self, now_ns: int) -> None:
        """A step may end here, and the next begin: the place to measure what it used."""
        measured = self.sampling.tick(now_ns)
        if measured is not None:
            self.defer(self._keep, measured)

    def flush(self) -> None:
        """Make the calls that wait, in order. One that a collection adds meanwhile waits for the next time."""
        later = self.later
        if self._flushing or not later:
            return
        self._flushing = True
        try:
            calls = later[:]
            for function, *arguments in calls:
                function(*arguments)
        finally:
            del later[: len(calls)]
            self._flushing = False

    def flush_at(self, now_ns: int) -> None:
        """Flush, say when to do so again, and account for what hooks took."""
        self.due_ns = now_ns + FLUSH_NS
        self.flush()
        before, self._flushed_ns = self._flushed_ns, now_ns
        own, self.own_ns = self.own_ns + self.clock() - now_ns, 0
        for follower in self._followers:
            own += follower.take_own_ns()
        if not before:
            self._own = (0, now_ns)
            return
        self.sampling.limit.add(own, now_ns - before)
        own, since = self._own[0] + own, self._own[1]
        if now_ns - since >= ACCOUNT_NS:
            self.ring.event(MARK, self.id("probe"), since, now_ns - since, value=own)
            own, since = 0, now_ns
        self._own = (own, since)

    def defer(self, function: Callable[..., None], *arguments: object) -> None:
        """Call it, after what waits."""
        if self.later:
            self.later.append((function, *arguments))
        else:
            function(*arguments)

    def pauses(self, now_ns: int) -> None:
        """What the loop does now is no batch's."""
        for callback in self.on_pause:
            self.defer(callback, now_ns)

    def phase(self, name: str, start_ns: int, end_ns: int) -> None:
        """Record an interval that has ended."""
        self.defer(self.write, name, start_ns, end_ns)

    def write(self, name: str, start_ns: int, end_ns: int) -> None:
        """Write an interval, ahead of what waits."""
        self.ring.event(PHASE, self.ids.get(name) or self.id(name), start_ns, end_ns - start_ns)

    def enter(self, name: str, start_ns: int) -> None:
        """Show a phase as being in progress, until ``leave``."""
        self._depth += 1
        if self._depth <= LAST_PHASE_SLOT:
            self.ring.enter(self._depth, PHASE, self.ids.get(name) or self.id(name), start_ns)

    def id(self, name: str) -> int:
        """The ring's index of a name."""
        index = self.ids[name] = self.ring.name(name)
        return index

    def leave(self) -> None:
        """The innermost phase in progress has ended."""
        if FIRST_PHASE_SLOT <= self._depth <= LAST_PHASE_SLOT:
            self.ring.leave(self._depth)
        self._depth = max(0, self._depth - 1)

    def marks(self) -> None:
        """The loop says for itself where its steps are: from now on none is recognised."""
        if not self.explicit:
            self.flush()
            self.explicit = True
            for follower in self._followers:
                numbers, self._ended = follower.gives_up()
                self.numbers |= numbers

    def step_begins(self, start_ns: int, kind: str = "train") -> None:
        """Show a step as being in progress."""
        index = self.ids.get(kind) or self.id(kind)
        self.ring.enter(STEP_SLOT, STEP, index, start_ns, self.numbers.get(kind, 0))

    def step_leaves(self) -> None:
        """No step is in progress: between epochs, or when training has ended."""
        self.ring.leave(STEP_SLOT)

    def step(self, start_ns: int, end_ns: int, kind: str = "train", work: int = 0) -> None:
        """Record a step that the loop marked. ``work``: samples or tokens, 0: as was seen."""
        if self._ended < 0:
            self.tick(start_ns)
        self._ended = end_ns
        number = self._number(kind)
        for ends in self.on_end:
            ends(start_ns, end_ns)
        self.tick(end_ns)
        self.defer(self._write_step, number, start_ns, end_ns, kind, work)
        if end_ns >= self.due_ns:
            self.flush_at(end_ns)

    def write_step(self, start_ns: int, end_ns: int, kind: str) -> None:
        """Write a step that was recognised, ahead of what waits."""
        self._ended = end_ns
        self._write_step(self._number(kind), start_ns, end_ns, kind, 0)

    def write_numbered(self, number: int, start_ns: int, end_ns: int, kind: str, work: int) -> None:
        """Write a step that was recognised, and numbered, elsewhere."""
        self._write_step(number, start_ns, end_ns, kind, work)

    def has_measured(self) -> bool:
        """Whether it is known what the next step used."""
        return self._measured is not None

    def previous_end(self, now_ns: int) -> int:
        """Where the last step ended; ``now_ns`` when there was none."""
        return self._ended if self._ended >= 0 else now_ns

    def step_ends_here(self, now_ns: int, kind: str, work: int) -> None:
        """A step that was not bracketed ends: it began where the one before ended. The first call only says where."""
        self.marks()
        if self._ended >= 0:
            self.step(self._ended, now_ns, kind, work)
        else:
            self.tick(now_ns)
        self._ended = now_ns
        self.step_begins(now_ns, kind)

    def _number(self, kind: str) -> int:
        number = self.numbers.get(kind, 0)
        self.numbers[kind] = number + 1
        return number

    def _write_step(self, number: int, start_ns: int, end_ns: int, kind: str, work: int) -> None:
        used, self._measured = self._measured, None
        if used is not None and (used.start_ns, used.end_ns) == (start_ns, end_ns):
            # Amounts within the step, not intervals of it.
            self.ring.event(PHASE, self.id("cpu"), start_ns, used.cpu_ns)
            if used.runqueue_ns >= 0:
                self.ring.event(PHASE, self.id("runqueue"), start_ns, used.runqueue_ns)
        seen, self.seen_work = self.seen_work, 0
        for follower in self._followers:
            seen += follower.take_work()
        index = self.ids.get(kind) or self.id(kind)
        self.ring.event(STEP, index, start_ns, end_ns - start_ns, number, value=work or seen)
        for heard in self.on_step:
            heard(number, start_ns, kind)

    def _keep(self, measured: Measured) -> None:
        self._measured = measured

    def _first_usage(self) -> tuple[int, int]:
        """Open the files of the thread that trains, and read them from now on."""
        opened = Usage()
        self.closers.append(opened.close)
        self.sampling.usage = opened.read
        return opened.read()


def _specific(framework: str) -> int:
    return FRAMEWORKS.index(framework) if framework in FRAMEWORKS else len(FRAMEWORKS)
