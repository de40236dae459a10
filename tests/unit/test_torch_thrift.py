"""What hooks of a torch loop leave for later, what they take, and what they do where that is too much."""

from __future__ import annotations

from hindmost import ring
from hindmost.pacing import MOST_SHARE, PATIENCE, Thrift
from hindmost.recorder import FLUSH_NS

from tests.unit.torch_loop import Loop, steps


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
