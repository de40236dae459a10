"""What hooks of a torch loop leave for later, what they take, and what they do where that is too much."""

import pytest
from hindmost import ring
from hindmost.recorder import FLUSH_NS
from hindmost.step_sampling import MOST_SHARE, PATIENCE_NS, OverheadLimit

from tests.probe.torch_loop import Loop, steps


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
