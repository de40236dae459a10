"""What is measured on some steps only, and what hooks leave for later: by what they cost."""

import pytest
from hindmost import ring
from hindmost.recorder import FLUSH_NS
from hindmost.step_sampling import MOST_SHARE, PATIENCE_NS, OverheadLimit, StepSampling, Usage, every

from tests.probe.torch_loop import Loop, steps


class TimedLoop:
    """Steps of one length, of which measuring costs so much."""

    def __init__(self, step_ns: int, cost_ns: int) -> None:
        self.now = self.cpu = 0
        self.step_ns, self.cost_ns = step_ns, cost_ns
        self.sampling = StepSampling(lambda: self.now, self.usage)

    def usage(self) -> tuple[int, int]:
        self.now += self.cost_ns
        self.cpu += 7
        return self.cpu, self.cpu * 2

    def measured(self, steps: int) -> list[int]:
        found = []
        for number in range(steps):
            before = self.sampling.measuring
            used = self.sampling.tick(self.now)
            assert before == (used is not None)
            if self.sampling.measuring:
                found.append(number)
            self.now += self.step_ns
        return found


def test_usage_of_this_process_is_measured() -> None:
    """CPU time and run-queue delay are read from the kernel, and never run backwards."""
    usage = Usage()
    first, second = usage.read(), usage.read()
    usage.close()
    assert 0 < first[0] <= second[0]
    assert -1 <= first[1] <= second[1]


def test_a_kernel_without_schedstat_leaves_the_delay_unmeasured() -> None:
    """No schedstat means -1, not 0."""
    assert Usage("/nonexistent/schedstat").read()[1] == -1


@pytest.mark.parametrize(("cost", "budget", "steps"), [(0, 0, 1), (5, 10, 1), (10, 10, 2), (39, 10, 4), (9999, 1, 128)])
def test_what_is_dear_is_done_rarely(cost: int, budget: int, steps: int) -> None:
    """Every how many steps: a power of two, so that ranks that differ sample the same ones, and at most 128."""
    assert every(cost, budget) == steps


@pytest.mark.parametrize(
    ("cost_us", "step_ms", "on_gpu", "share"),
    [
        (1, 30, True, 1),
        (1, 2, True, 1),
        (12, 30, True, 4),
        (12, 30, False, 1),
        (6, 2, False, 4),
        (60, 30, True, 16),
        (40, 1, True, 64),
        (300, 2, True, 128),
        (300, 30, True, 64),
        (60, 200, True, 1),
    ],
)
def test_what_measuring_costs_is_bounded(cost_us: int, step_ms: int, on_gpu: bool, share: int) -> None:
    """Where measuring is dear or steps short only every 2nd, 4th … step is measured, the same ones on every rank."""
    loop = TimedLoop(step_ms * 1_000_000, cost_us * 1000)
    loop.sampling.on_gpu = on_gpu
    steps = [number for number in loop.measured(1024) if number > 512]
    assert steps == [number for number in range(513, 1024) if number % share == 0]


def test_a_measured_step_has_its_own_usage() -> None:
    """What a measured step used is from its start to its end, whatever came before."""
    loop = TimedLoop(1_000_000, 0)
    loop.sampling.tick(10)
    loop.sampling.usage = lambda: (100, -1)
    used = loop.sampling.tick(20)
    assert used is not None
    assert (used.start_ns, used.end_ns, used.cpu_ns, used.runqueue_ns) == (10, 20, 93, -1)


def test_one_dear_reading_is_forgotten() -> None:
    """A step that was interrupted while it was measured does not make all later ones unmeasured for long."""
    loop = TimedLoop(30_000_000, 100)
    loop.measured(100)
    loop.sampling.spent_ns += 50_000_000
    assert loop.measured(400)[-100:] == list(range(300, 400))


def test_the_row_is_worked_off_in_time(loop: Loop) -> None:
    """Whether a loop trains or only evaluates, what it did is in the ring some tenths of a second later."""
    loop.unit = FLUSH_NS // 100
    loop.train(100)
    assert len(loop.recorder.later) <= 8 * 26
    loop.evaluate(500)
    assert len(loop.recorder.later) <= 2 * 200


def test_what_a_killed_process_has_lost(loop: Loop, written_in: str) -> None:
    """Hooks in C have written all that was: nothing is lost with the process. In Python a tenth of a second may be."""
    loop.train(1)  # keeps the books for the first time
    loop.train(30)
    found = len(steps(loop.reader.poll()))
    assert found == (30 if written_in == "c" else 0)


def test_steps_that_are_too_short_to_record_are_counted(loop: Loop) -> None:
    """Where hooks take too much, every 4th step is recorded in full, under its own number; evaluation all the same."""
    loop.recorder.sampling.limit.mask = 3
    loop.train(9, optimizers=2)
    loop.evaluate(2)
    loop.train(8)
    events = loop.written()
    assert steps(events) == [(0, 50_000), (4, 50_000), (8, 50_000), (9, 40_000), (12, 40_000), (16, 40_000)]
    assert len(steps(events, "eval")) == 2
    assert len([event for event in events if event.name == "backward"]) == 6


@pytest.mark.parametrize("often", [20, 4])
def test_hooks_that_take_too_much_record_less(often: int) -> None:
    """Over the share for two seconds, however often that is reported: half is recorded; cheap hooks undo it."""
    limit, every = OverheadLimit(), PATIENCE_NS // often
    dear, cheap = int(every * MOST_SHARE) + 1, int(every * MOST_SHARE / 10)
    for _ in range(often - 1):
        limit.add(dear, every)
    limit.add(cheap, every)
    assert limit.mask == 0
    for _ in range(2 * often):
        limit.add(dear, every)
    assert limit.mask == 3
    for _ in range(often):
        limit.add(cheap, every)
    assert limit.mask == 1


def test_one_interrupted_hook_of_a_long_step_changes_nothing() -> None:
    """A step of a minute in which a hook was held up for ten seconds is one sign, not many."""
    limit = OverheadLimit()
    limit.add(10 * 10**9, 60 * 10**9)
    limit.add(0, 60 * 10**9)
    assert limit.mask == 0


def test_what_hooks_took_is_written(loop: Loop) -> None:
    """About once a second a mark says what share of the time before it was the probe's own."""
    loop.unit = 1_000_000
    loop.train(1000)
    marks = [event for event in loop.written() if event.kind == ring.MARK]
    assert {event.name for event in marks} == {"probe"}
    assert all(event.duration_ns >= 10**9 for event in marks)
    assert len(marks) == 3
