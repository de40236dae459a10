"""What the hooks of a torch loop leave behind, with a torch that is not there and a clock that is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from hindmost import ring
from hindmost.identity import Identity
from hindmost.pacing import MOST_SHARE, PATIENCE, Thrift
from hindmost.probes.recognise import Recogniser
from hindmost.probes.torch import Hooks
from hindmost.recorder import FLUSH_NS, Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Loop:
    """A training loop of 40 us a step, whose hooks are called as around() does."""

    def __init__(self, directory: Path) -> None:
        self.now = 1_000
        self.unit = 10_000
        self.gradients = True
        self.writer = ring.Writer.create(directory, Identity("job", 0, 1, 0, "node", "torch", "train.py"), "py", 16384)
        self.recorder = Recorder(self.writer, clock=lambda: self.now)
        torch = SimpleNamespace(is_grad_enabled=lambda: self.gradients)
        self.hooks = Hooks(torch, self.recorder, Recogniser(self.recorder), None)
        self.reader = ring.Reader(self.writer.path)

    def fetch(self) -> None:
        start = self.hooks.input_begins(self)
        self.now += self.unit
        if start is not None:
            self.hooks.input_ends(start, [SimpleNamespace(shape=(4, 2))], self)

    def train(self, steps: int, optimizers: int = 1) -> None:
        for _ in range(steps):
            self.fetch()
            self.now += self.unit
            start = self.hooks.backward_begins()
            self.now += self.unit
            if start is not None:
                self.hooks.backward_ends(start)
            for _ in range(optimizers):
                self.hooks.step_begins()
                self.now += self.unit
                self.hooks.step_ends(self)

    def evaluate(self, batches: int) -> None:
        self.gradients = False
        for _ in range(batches):
            self.fetch()
        self.gradients = True

    def written(self) -> list[ring.Event]:
        for close in (self.recorder.flush, *self.recorder.closers):
            close()
        return self.reader.poll()


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    made = Loop(tmp_path)
    yield made
    made.reader.close()
    made.writer.close()


def steps(events: list[ring.Event], kind: str = "train") -> list[tuple[int, int]]:
    return [(event.seq, event.duration_ns) for event in events if (event.kind, event.name) == (ring.STEP, kind)]


def test_steps_are_written_later_and_in_order(loop: Loop) -> None:
    """Nothing is written while a step runs; worked off, every phase stands before its step, and stamps are kept."""
    loop.recorder.due_ns = 1 << 62
    loop.train(3)
    assert [event.name for event in loop.reader.poll() if event.kind == ring.STEP] == []
    events = loop.written()
    assert steps(events) == [(0, 40_000), (1, 40_000), (2, 40_000)]
    names = [event.name for event in events if event.name not in ("cpu", "runqueue")]
    assert names[:5] == ["input", "forward", "backward", "optimizer", "train"]
    assert {event.value for event in events if event.kind == ring.STEP} == {4}


def test_the_row_is_worked_off_in_time(loop: Loop) -> None:
    """Whether a loop trains or only evaluates, what it did is in the ring some tenths of a second later."""
    loop.unit = FLUSH_NS // 100
    loop.train(100)
    assert len(loop.recorder.later) <= 8 * 26
    loop.evaluate(500)
    assert len(loop.recorder.later) <= 2 * 200


def test_steps_that_are_too_short_to_record_are_counted(loop: Loop) -> None:
    """Where hooks take too much, every 4th step is recorded in full, under its own number; evaluation all the same."""
    loop.recorder.pace.thrift.mask = 3
    loop.train(9, optimizers=2)
    loop.evaluate(2)
    loop.train(8)
    events = loop.written()
    assert steps(events) == [(0, 50_000), (4, 50_000), (8, 50_000), (9, 40_000), (12, 40_000), (16, 40_000)]
    assert len(steps(events, "eval")) == 2
    assert len([event for event in events if event.name == "backward"]) == 6


def test_hooks_that_take_too_much_record_less() -> None:
    """Many flushes on end over the share halve what is recorded; one does not; long steps bring it back."""
    thrift = Thrift()
    dear, cheap = int(1e9 * MOST_SHARE) + 1, int(1e9 * MOST_SHARE / 10)
    for _ in range(PATIENCE - 1):
        thrift.told(dear, 10**9)
    thrift.told(cheap, 10**9)
    assert thrift.mask == 0
    for _ in range(2 * PATIENCE):
        thrift.told(dear, 10**9)
    assert thrift.mask == 3
    for _ in range(PATIENCE):
        thrift.told(cheap, 10**9)
    assert thrift.mask == 1


def test_what_hooks_took_is_written(loop: Loop) -> None:
    """About once a second a mark says what share of the time before it was the probe's own."""
    loop.unit = 1_000_000
    loop.train(1000)
    marks = [event for event in loop.written() if event.kind == ring.MARK]
    assert {event.name for event in marks} == {"probe"}
    assert all(event.duration_ns >= 10**9 for event in marks)
    assert len(marks) == 3
