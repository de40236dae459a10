"""What a training thread did between two of its collectives, as the torch probe measures it."""

from typing import Any

from hindmost.probes.self_time import CPU_KNOWN, RUNQUEUE_KNOWN, SELF, SelfTime

MS = 1_000_000


class Loop:
    """A thread that alternates between intervals of its own and calls of 1 ms, on a clock that it advances itself."""

    def __init__(self, reading_ns: int = 0, queues: bool = True) -> None:
        self.now = MS
        self.cpu = self.queued = self.readings = 0
        self.reading_ns, self.queues = reading_ns, queues
        self.events: list[tuple[Any, ...]] = []
        self.ring = self
        self.closers: list[Any] = []
        self.self_time = SelfTime(self, self.read)  # type: ignore[arg-type]

    def clock(self) -> int:
        return self.now

    def training_thread(self) -> bool:
        return True

    def event(self, *columns: Any) -> None:
        self.events.append(columns)

    def read(self) -> tuple[int, int]:
        self.now += self.reading_ns
        self.readings += 1
        return self.cpu, self.queued if self.queues else -1

    def step(self, cpu: int = 0, queued: int = 0, asleep: int = 0) -> None:
        """An interval of so many ns each, then a call."""
        self.cpu, self.queued, self.now = self.cpu + cpu, self.queued + queued, self.now + cpu + queued + asleep
        self.self_time.ends()
        start, self.now = self.now, self.now + MS
        self.self_time.write(start)
        self.self_time.begins(self.now)


def test_a_long_interval_is_cpu_time_and_queue_time() -> None:
    """Once it is foreseen; what is neither is left to the reader."""
    loop = Loop()
    for _ in range(5):
        loop.step(cpu=3 * MS, queued=2 * MS, asleep=5 * MS)
    kind, _, _, length, queued_us, _, _, cpu, flags = loop.events[-1]
    assert (kind, length, cpu, queued_us) == (SELF, 10 * MS, 3 * MS, 2000)
    assert flags == CPU_KNOWN | RUNQUEUE_KNOWN


def test_short_intervals_are_not_measured() -> None:
    """Readings would cost as much as there is to tell."""
    loop = Loop()
    for _ in range(100):
        loop.step(cpu=MS // 10)
    assert (loop.events, loop.readings) == ([], 0)


def test_the_long_interval_of_a_step_of_many_calls_is_foreseen() -> None:
    """Two of three calls follow each other closely: one interval a step is measured, and none of the others."""
    loop = Loop()
    for _ in range(10):
        loop.step(cpu=8 * MS)
        loop.step(cpu=MS // 10)
        loop.step(cpu=MS // 10)
    assert [event[7] for event in loop.events[1:]] == [8 * MS] * (len(loop.events) - 1)
    assert len(loop.events) >= 6
    assert loop.readings <= 2 * (len(loop.events) + 3)


def test_what_came_before_a_wait_does_not_count_for_the_next_call() -> None:
    """A wait for something else was in that interval."""
    loop = Loop()
    for _ in range(4):
        loop.step(cpu=8 * MS)
    events = len(loop.events)
    loop.self_time.broken()
    loop.step(cpu=8 * MS)
    assert len(loop.events) == events


def test_readings_take_a_four_hundredth_of_the_time_at_most() -> None:
    """Where they are dear, fewer intervals are measured."""
    loop = Loop(reading_ns=50_000)
    for _ in range(1000):
        loop.step(cpu=2 * MS)
    assert loop.readings > 20
    assert loop.readings * 50_000 <= loop.now / 400 * 1.1


def test_a_kernel_that_does_not_count_the_queue_leaves_cpu_time() -> None:
    """The delay is unmeasured then, not zero."""
    loop = Loop(queues=False)
    for _ in range(5):
        loop.step(cpu=8 * MS)
    assert loop.events[-1][8] == CPU_KNOWN
