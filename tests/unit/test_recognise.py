"""Where steps begin and end, whatever shape the loop has: told in times, seen in what the ring is given."""

from __future__ import annotations

from typing import NamedTuple

from hindmost.probes.recognise import Recogniser
from hindmost.recorder import PHASE, STEP, Recorder


class Written(NamedTuple):
    kind: int
    name: str
    start: int
    end: int
    seq: int
    value: int


class FakeRing:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.written: list[Written] = []
        self.names: list[str] = []
        self.open: dict[int, int] = {}

    def name(self, text: str) -> int:
        if text not in self.names:
            self.names.append(text)
        return self.names.index(text)

    def event(self, kind: int, name: int, start: int, duration: int, seq: int = 0, value: int = 0) -> None:
        self.written.append(Written(kind, self.names[name], start, start + duration, seq, value))

    def enter(self, slot: int, kind: int, name: int, start_ns: int, seq: int = 0, comm: int = 0xFFFF) -> None:
        self.open[slot] = start_ns

    def leave(self, slot: int) -> None:
        self.open.pop(slot, None)

    def communicator(self, id: int, rank: int, size: int, name: str) -> int:  # noqa: A002 - the ring's word
        return 0

    def set_framework(self, text: str) -> None: ...

    def set_gpu(self, uuid: str) -> None: ...


class Loop:
    """A training loop that takes 10 of whatever it does."""

    def __init__(self) -> None:
        self.now = 0
        self.ring = FakeRing()
        self.recorder = Recorder(self.ring, clock=lambda: self.now)
        self.seen = Recogniser(self.recorder)

    def fetch(self, work: int = 0, source: int = 1, gradients: bool = True) -> None:
        start = self.now
        self.seen.input_begins(start, source, gradients)
        self.now += 10
        self.seen.input_ends(start, self.now, work)

    def exhausted(self) -> None:
        self.seen.input_begins(self.now, 1, True)
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
        return [(event.start, event.end) for event in self.ring.written if event[:2] == (STEP, name)]

    def phases(self, name: str) -> list[tuple[int, int]]:
        return [(event.start, event.end) for event in self.ring.written if event[:2] == (PHASE, name)]


def test_a_step_reaches_from_fetch_to_fetch() -> None:
    """Each batch with an optimizer step is one step; the last ends with its optimizer."""
    loop = Loop()
    loop.train(3)
    loop.seen.finish()
    assert loop.steps() == [(0, 40), (40, 80), (80, 120)]
    assert loop.phases("forward") == [(10, 20), (50, 60), (90, 100)]
    assert [event.seq for event in loop.ring.written if event.kind == STEP] == [0, 1, 2]
    assert {event.value for event in loop.ring.written if event.kind == STEP} == {16}


def test_accumulated_gradients_are_one_step() -> None:
    """Fetches without an optimizer step between them belong together, and so does their work."""
    loop = Loop()
    for _ in range(2):
        for _ in range(3):
            loop.fetch(work=4)
            loop.backward()
        loop.optimize()
    loop.exhausted()
    assert loop.steps() == [(0, 70), (70, 140)]
    assert {event.value for event in loop.ring.written if event.kind == STEP} == {12}


def test_two_optimizers_after_one_fetch_are_one_step() -> None:
    """A GAN steps its discriminator and its generator in one step."""
    loop = Loop()
    for _ in range(2):
        loop.fetch()
        for optimizer in (1, 2):
            loop.backward()
            loop.optimize(optimizer)
    loop.exhausted()
    assert loop.steps() == [(0, 50), (50, 100)]


def test_a_loop_that_fetches_nothing_has_steps() -> None:
    """Without input each step ends with the first optimizer's step, and starts where the one before ended."""
    loop = Loop()
    for _ in range(3):
        loop.compute()
        loop.backward()
        loop.optimize(1)
        loop.backward()
        loop.optimize(2)
    assert loop.steps() == [(10, 30), (30, 80), (80, 130)]


def test_one_batch_used_for_ever_becomes_steps() -> None:
    """After one fetch that is followed by many optimizer steps, every optimizer step is a step."""
    loop = Loop()
    loop.fetch()
    for _ in range(20):
        loop.backward()
        loop.optimize()
    assert len(loop.steps()) == 12
    assert loop.steps()[-1] == (390, 410)


def test_batches_without_gradients_are_evaluation() -> None:
    """Fetches under no_grad are eval steps with numbers of their own; training goes on counting."""
    loop = Loop()
    loop.train(2)
    loop.exhausted()
    for _ in range(2):
        loop.fetch(source=2, gradients=False)
        loop.compute()
    loop.train(1)
    loop.exhausted()
    assert loop.steps("eval") == [(80, 100), (100, 120)]
    assert loop.steps("train") == [(0, 40), (40, 80), (120, 160)]
    assert [event.seq for event in loop.ring.written if event[:2] == (STEP, "train")] == [0, 1, 2]


def test_an_evaluation_ends_where_something_else_begins() -> None:
    """A loop that knows its last batch fetches no more: a checkpoint ends its evaluation, and it is no step's."""
    loop = Loop()
    loop.train(1)
    loop.fetch(source=2, gradients=False)
    loop.compute()
    loop.seen.pauses(loop.now)
    loop.now += 1000
    loop.train(1)
    loop.exhausted()
    assert loop.steps("eval") == [(40, 60)]
    assert loop.steps("train") == [(0, 40), (1060, 1100)]


def test_a_step_that_is_interrupted_is_none() -> None:
    """Where an elastic job begins again, what was begun is forgotten, and what had ended is kept."""
    loop = Loop()
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
    assert [event.value for event in loop.ring.written if event.kind == STEP] == [16, 16]


def test_evaluation_that_fetches_with_gradients_on_is_told_by_its_source() -> None:
    """A loader that no backward ever followed, beside one that trains, only evaluates."""
    loop = Loop()
    loop.train(2)
    loop.exhausted()
    for _ in range(2):
        loop.fetch(source=2)
        loop.compute()
    loop.exhausted()
    assert loop.steps("eval") == [(80, 100), (100, 120)]


def test_a_prefetched_batch_is_no_evaluation() -> None:
    """A loop that fetches one batch ahead has a step a batch, from the first on."""
    loop = Loop()
    loop.fetch(work=7)
    for batch in range(3):
        loop.fetch(work=batch)
        loop.backward()
        loop.optimize()
    loop.exhausted()
    loop.backward()
    loop.optimize()
    assert [event.value for event in loop.ring.written if event.kind == STEP] == [7, 0, 1, 2]
    assert loop.steps("eval") == []
    assert loop.steps() == [(0, 40), (40, 70), (70, 100), (100, 120)]


def test_time_between_epochs_belongs_to_no_step() -> None:
    """What happens after a loader is exhausted and before the next fetch is not a step's."""
    loop = Loop()
    loop.train(1)
    loop.exhausted()
    loop.now += 1000
    loop.train(1)
    loop.seen.finish()
    assert loop.steps() == [(0, 40), (1040, 1080)]
    assert loop.ring.open == {}


def test_a_closure_inside_the_optimizer_keeps_its_phases_nested() -> None:
    """An optimizer that runs forward and backward in a closure has them inside its own interval."""
    loop = Loop()
    loop.fetch()
    start = loop.now
    loop.seen.optimizer_begins(start)
    loop.compute()
    loop.backward()
    loop.seen.optimizer_ends(start, loop.now, 1)
    assert loop.phases("forward") == [(10, 20)]
    assert loop.phases("backward") == [(20, 30)]
    assert loop.phases("optimizer") == [(10, 30)]


def test_an_optimizer_step_before_any_backward_is_no_step() -> None:
    """Horovod steps an optimizer once to give it state; without any backward, steps are believed after some."""
    loop = Loop()
    loop.optimize()
    loop.train(1)
    loop.exhausted()
    assert loop.steps() == [(10, 50)]
    without = Loop()
    for _ in range(12):
        without.optimize()
    assert len(without.steps()) == 4


def test_marked_steps_replace_recognised_ones() -> None:
    """Once the loop marks its own steps, none is recognised, and phases still are."""
    loop = Loop()
    loop.recorder.explicit = True
    loop.train(3)
    loop.seen.finish()
    assert loop.steps() == []
    assert len(loop.phases("backward")) == 3
