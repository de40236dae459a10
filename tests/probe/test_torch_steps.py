"""Where steps begin and end, for loops of any shape: given as times, read from the ring."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hindmost import ring
from hindmost.identity import Identity
from hindmost.probes.torch_native import native_hooks
from hindmost.probes.torch_steps import SOURCES, StepDetector
from hindmost.recorder import PHASE, STEP, Recorder


class Loop:
    """A training loop that takes 10 of whatever it does."""

    def __init__(self, directory: Path, written_in: str) -> None:
        self.now = 0
        self.writer = ring.Writer.create(directory, Identity("job", 0, 1, 0, "node", "torch", "train.py"), "py", 1024)
        self.reader = ring.Reader(self.writer.path)
        self.recorder = Recorder(self.writer, clock=lambda: self.now)
        torch: Any = SimpleNamespace(is_grad_enabled=lambda: True)
        native = native_hooks(torch, self.recorder, None)
        assert (native is not None) == (written_in == "c")
        if native is not None:
            native.first(False)
        self.seen: Any = native.loop if native is not None else StepDetector(self.recorder)
        self._read: list[ring.Event] = []

    @property
    def written(self) -> list[ring.Event]:
        """All that the ring was given."""
        self._read += self.reader.poll()
        return self._read

    def fetch(self, work: int = 0, source: int = 1, gradients: bool = True) -> None:
        start = self.now
        self.seen.input_begins(start, source, gradients)
        self.now += 10
        self.seen.input_ends(start, self.now, work)

    def exhausted(self, gradients: bool = True, source: int = 1) -> None:
        self.seen.input_begins(self.now, source, gradients)
        self.seen.input_fails()

    def compute(self) -> None:
        self.now += 10

    def backward(self) -> None:
        start = self.now
        self.seen.backward_begins(start)
        self.now += 10
        self.seen.backward_ends(start, self.now)

    def optimize(self, optimizer: int = 1) -> None:
        start = self.now
        self.seen.optimizer_begins(start)
        self.now += 10
        self.seen.optimizer_ends(start, self.now, optimizer)

    def train(self, batches: int) -> None:
        for _ in range(batches):
            self.fetch(work=16)
            self.compute()
            self.backward()
            self.optimize()

    def steps(self, name: str = "train") -> list[tuple[int, int]]:
        return self.intervals(STEP, name)

    def phases(self, name: str) -> list[tuple[int, int]]:
        return self.intervals(PHASE, name)

    def intervals(self, kind: int, name: str) -> list[tuple[int, int]]:
        found = [event for event in self.written if (event.kind, event.name) == (kind, name)]
        return [(event.start_ns, event.start_ns + event.duration_ns) for event in found]

    def numbers(self, name: str) -> list[int]:
        return [event.seq for event in self.written if (event.kind, event.name) == (STEP, name)]

    def work(self) -> list[int]:
        return [event.value for event in self.written if event.kind == STEP]


@pytest.fixture
def make(tmp_path: Path, written_in: str) -> Iterator[Callable[[], Loop]]:
    """Makes loops whose detector is in Python, or in C."""
    made: list[Loop] = []

    def loop() -> Loop:
        made.append(Loop(tmp_path / str(len(made)), written_in))
        return made[-1]

    yield loop
    for one in made:
        one.reader.close()
        one.writer.close()


@pytest.fixture
def loop(make: Callable[[], Loop]) -> Loop:
    return make()


def test_a_step_reaches_from_fetch_to_fetch(loop: Loop) -> None:
    """Each batch with an optimizer step is one step; the last ends with its optimizer."""
    loop.train(3)
    loop.seen.finish()
    assert loop.steps() == [(0, 40), (40, 80), (80, 120)]
    assert loop.phases("forward") == [(10, 20), (50, 60), (90, 100)]
    assert loop.numbers("train") == [0, 1, 2]
    assert set(loop.work()) == {16}


def test_accumulated_gradients_are_one_step(loop: Loop) -> None:
    """Fetches without an optimizer step between them belong together, and so does their work."""
    for _ in range(2):
        for _ in range(3):
            loop.fetch(work=4)
            loop.backward()
        loop.optimize()
    loop.exhausted()
    assert loop.steps() == [(0, 70), (70, 140)]
    assert set(loop.work()) == {12}


def test_two_optimizers_after_one_fetch_are_one_step(loop: Loop) -> None:
    """A GAN steps its discriminator and its generator in one step."""
    for _ in range(2):
        loop.fetch()
        for optimizer in (1, 2):
            loop.backward()
            loop.optimize(optimizer)
    loop.exhausted()
    assert loop.steps() == [(0, 50), (50, 100)]


def test_a_loop_that_fetches_nothing_has_steps(loop: Loop) -> None:
    """Without input each step ends with the first optimizer's step, and starts where the one before ended."""
    for _ in range(3):
        loop.compute()
        loop.backward()
        loop.optimize(1)
        loop.backward()
        loop.optimize(2)
    assert loop.steps() == [(10, 30), (30, 80), (80, 130)]


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("ends", [True, False])
def test_evaluating_in_a_loop_that_fetches_nothing_merges_no_steps(loop: Loop, gradients: bool, ends: bool) -> None:
    """Batches that only an evaluation fetches, exhausted or not, are no input of the steps that follow."""
    for _ in range(3):
        for _ in range(4):
            loop.backward()
            loop.optimize()
        for _ in range(2):
            loop.fetch(work=5, source=2, gradients=gradients)
        if ends:
            loop.exhausted(gradients, source=2)
    assert [end - begin for begin, end in loop.steps()] == [20] * 12
    assert len(loop.steps("eval")) == (0 if gradients else 6 if ends else 3), "of the last, nothing tells when it ended"
    assert [event.value for event in loop.written if (event.kind, event.name) == (STEP, "train")] == [0] * 12


@pytest.mark.parametrize("gradients", [True, False])
def test_a_loop_that_fetches_after_warming_up_without_is_recognised(loop: Loop, gradients: bool) -> None:
    """Steps on made-up data come first; from the second step on fetched ones, each has its fetch and its work."""
    for _ in range(3):
        loop.backward()
        loop.optimize()
    for _ in range(4):
        loop.fetch(work=7, gradients=gradients)
        loop.backward()
        loop.optimize()
    loop.exhausted()
    assert loop.steps() == [(0, 20), (20, 40), (40, 60), (70, 90), (90, 120), (120, 150), (150, 180)]
    assert loop.work() == [0, 0, 0, 0, 7, 7, 7]


def test_one_batch_used_for_ever_becomes_steps(loop: Loop) -> None:
    """After one fetch that is followed by many optimizer steps, every optimizer step is a step."""
    loop.fetch()
    for _ in range(20):
        loop.backward()
        loop.optimize()
    assert len(loop.steps()) == 12
    assert loop.steps()[-1] == (390, 410)


def test_batches_without_gradients_are_evaluation(loop: Loop) -> None:
    """Fetches under no_grad are eval steps with numbers of their own; training goes on counting."""
    loop.train(2)
    loop.exhausted()
    for _ in range(2):
        loop.fetch(source=2, gradients=False)
        loop.compute()
    loop.train(1)
    loop.exhausted()
    assert loop.steps("eval") == [(80, 100), (100, 120)]
    assert loop.steps("train") == [(0, 40), (40, 80), (120, 160)]
    assert loop.numbers("train") == [0, 1, 2]


def test_an_evaluation_whose_loader_is_exhausted_has_ended(loop: Loop) -> None:
    """The last batch of an evaluation is one step, and what comes after it is none: numbers have no gaps."""
    for _ in range(2):
        loop.train(1)
        loop.exhausted()
        for _ in range(2):
            loop.fetch(source=2, gradients=False)
        loop.exhausted(gradients=False)
        loop.now += 1000
    loop.train(1)
    loop.seen.finish()
    assert loop.numbers("eval") == [0, 1, 2, 3]
    assert loop.numbers("train") == [0, 1, 2]
    assert loop.steps("eval") == [(40, 50), (50, 60), (1100, 1110), (1110, 1120)]


def test_work_of_more_sources_than_are_kept_apart_is_counted(loop: Loop) -> None:
    """Every epoch may have a data set of its own: each step still has its own batch's work."""
    for source in range(1, 41):
        loop.fetch(work=source, source=source)
        loop.backward()
        loop.optimize()
    loop.seen.finish()
    assert loop.work() == list(range(1, 41))


def test_two_loaders_of_one_data_set_count_both(loop: Loop) -> None:
    """From the second step on: the first might be a loader's that is a batch ahead."""
    for _ in range(4):
        loop.fetch(work=8)
        loop.fetch(work=4)
        loop.backward()
        loop.optimize()
    loop.seen.finish()
    assert loop.work() == [8, 12, 12, 12]


def test_a_loader_that_is_a_batch_ahead_counts_each_once(loop: Loop) -> None:
    """It fetches two as each epoch begins, and none for the last step."""
    for _ in range(3):
        loop.fetch(work=5)
        for ahead in (True, True, False):
            if ahead:
                loop.fetch(work=5)
            else:
                loop.exhausted()
            loop.backward()
            loop.optimize()
    loop.seen.finish()
    assert loop.work() == [5] * 9


def test_an_optimizer_for_each_parameter_is_one_step(loop: Loop) -> None:
    """Optimizers that step inside backward, one a parameter, do not end a step each."""
    for _ in range(3):
        loop.fetch()
        loop.backward()
        for optimizer in range(1, 51):
            loop.optimize(optimizer)
    loop.seen.finish()
    assert loop.steps() == [(0, 520), (520, 1040), (1040, 1560)]


def test_an_evaluation_ends_where_something_else_begins(loop: Loop) -> None:
    """A loop that knows its last batch fetches no more: a checkpoint ends its evaluation, and it is no step's."""
    loop.train(1)
    loop.fetch(source=2, gradients=False)
    loop.compute()
    loop.seen.pauses(loop.now)
    loop.now += 1000
    loop.train(1)
    loop.exhausted()
    assert loop.steps("eval") == [(40, 60)]
    assert loop.steps("train") == [(0, 40), (1060, 1100)]


def test_a_step_that_is_interrupted_is_none(loop: Loop) -> None:
    """Where an elastic job begins again, what was begun is forgotten, and what had ended is kept."""
    loop.train(1)
    loop.seen.forgets()
    loop.now += 1000
    loop.fetch(work=5)
    loop.backward()
    loop.seen.forgets()
    loop.now += 1000
    loop.train(1)
    loop.exhausted()
    assert loop.steps() == [(0, 40), (2060, 2100)]
    assert loop.work() == [16, 16]


def test_evaluation_that_fetches_with_gradients_on_shows_in_its_source(loop: Loop) -> None:
    """A loader that no backward ever followed, next to one that trains, only evaluates."""
    loop.train(2)
    loop.exhausted()
    for _ in range(2):
        loop.fetch(source=2)
        loop.compute()
    loop.exhausted()
    assert loop.steps("eval") == [(80, 100), (100, 120)]


def test_a_prefetched_batch_is_no_evaluation(loop: Loop) -> None:
    """A loop that fetches one batch ahead has a step a batch, from the first on."""
    loop.fetch(work=7)
    for batch in range(3):
        loop.fetch(work=batch)
        loop.backward()
        loop.optimize()
    loop.exhausted()
    loop.backward()
    loop.optimize()
    assert loop.work() == [7, 0, 1, 2]
    assert loop.steps("eval") == []
    assert loop.steps() == [(0, 40), (40, 70), (70, 100), (100, 120)]


def test_time_between_epochs_belongs_to_no_step(loop: Loop) -> None:
    """What happens after a loader is exhausted and before the next fetch is not a step's."""
    loop.train(1)
    loop.exhausted()
    loop.now += 1000
    loop.train(1)
    loop.seen.finish()
    assert loop.steps() == [(0, 40), (1040, 1080)]
    assert loop.reader.open_records() == []


def test_a_closure_inside_the_optimizer_keeps_its_phases_nested(loop: Loop) -> None:
    """An optimizer that runs forward and backward in a closure has them inside its own interval."""
    loop.fetch()
    start = loop.now
    loop.seen.optimizer_begins(start)
    loop.compute()
    loop.backward()
    loop.seen.optimizer_ends(start, loop.now, 1)
    assert loop.phases("forward") == [(10, 20)]
    assert loop.phases("backward") == [(20, 30)]
    assert loop.phases("optimizer") == [(10, 30)]


def test_an_optimizer_step_before_any_backward_is_no_step(loop: Loop, make: Callable[[], Loop]) -> None:
    """Horovod steps an optimizer once to give it state; without any backward, steps are believed after some."""
    loop.optimize()
    loop.train(1)
    loop.exhausted()
    assert loop.steps() == [(10, 50)]
    without = make()
    for _ in range(12):
        without.optimize()
    assert len(without.steps()) == 4


def test_marked_steps_replace_recognised_ones(loop: Loop) -> None:
    """Once the loop marks its own steps, none is recognised, and phases still are."""
    loop.recorder.marks()
    loop.train(3)
    loop.seen.finish()
    assert loop.steps() == []
    assert len(loop.phases("backward")) == 3


def test_a_data_set_an_epoch_is_forgotten_when_others_have_come(loop: Loop) -> None:
    """However many sources of input a loop goes through, the last few are known; which of them trains is, too."""
    for source in range(1, 101):
        loop.fetch(source=source, work=source)
        loop.compute()
        loop.backward()
        loop.optimize()
    loop.fetch(source=200, work=7)
    loop.fetch(source=100, work=1)
    loop.seen.finish()
    assert [event.value for event in loop.written if event.kind == STEP and event.name == "train"] == [*range(1, 101)]
    assert [event.value for event in loop.written if event.kind == STEP and event.name == "eval"] == [7]
    assert len(getattr(loop.seen, "_sources", ())) <= SOURCES  # of what is in memory nothing else tells
