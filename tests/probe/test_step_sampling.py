"""What is measured on some steps only, and how often: by what it costs."""

import pytest
from hindmost.step_sampling import StepSampling, Usage, every


class Loop:
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
        """The numbers of the steps that are measured."""
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
    loop = Loop(step_ms * 1_000_000, cost_us * 1000)
    loop.sampling.on_gpu = on_gpu
    steps = [number for number in loop.measured(1024) if number > 512]
    assert steps == [number for number in range(513, 1024) if number % share == 0]


def test_a_measured_step_has_its_own_usage() -> None:
    """What a measured step used is from its start to its end, whatever came before."""
    loop = Loop(1_000_000, 0)
    loop.sampling.tick(10)
    loop.sampling.usage = lambda: (100, -1)
    used = loop.sampling.tick(20)
    assert used is not None
    assert (used.start_ns, used.end_ns, used.cpu_ns, used.runqueue_ns) == (10, 20, 93, -1)


def test_one_dear_reading_is_forgotten() -> None:
    """A step that was interrupted while it was measured does not make all later ones unmeasured for long."""
    loop = Loop(30_000_000, 100)
    loop.measured(100)
    loop.sampling.spent_ns += 50_000_000
    assert loop.measured(400)[-100:] == list(range(300, 400))
