"""Which thread of a torch loop is recorded, where several fetch or train."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

from hindmost import ring, stepping

from tests.unit.torch_loop import Loop, steps

if TYPE_CHECKING:
    from collections.abc import Callable


def in_another_thread(function: Callable[..., object], *arguments: object) -> None:
    other = threading.Thread(target=function, args=arguments)
    other.start()
    other.join()


def test_other_threads_are_not_recorded(loop: Loop) -> None:
    """A thread that is not the one that trains may fetch and step as it likes."""
    loop.train(1)
    other = threading.Thread(target=loop.train, args=(5,))
    other.start()
    other.join()
    assert len([event for event in loop.written() if event.name == "input"]) == 1


def test_a_thread_that_fetches_ahead_is_not_the_one_that_trains(loop: Loop) -> None:
    """Steps are the training thread's, as of a loop that fetches nothing; no fetch of the other's is its input."""
    in_another_thread(loop.fetch)
    for _ in range(5):
        in_another_thread(loop.fetch)
        loop.compute()
    events = loop.written()
    assert [seq for seq, _ in steps(events)] == [0, 1, 2, 3, 4]
    assert steps(events)[1:] == [(seq, 40_000) for seq in (1, 2, 3, 4)], "with what it waited"
    first = next(event for event in events if event.kind == ring.STEP)
    assert not [event for event in events if event.name == "input" and event.start_ns >= first.start_ns]
    assert len([event for event in events if event.name == "forward"]) == 4, "when the first began is not known"


def test_a_fetch_in_progress_as_another_thread_trains_is_no_input(loop: Loop) -> None:
    """What the other thread is still fetching when the training thread shows itself ends outside its steps."""
    compute = loop.compute
    fetch = loop._fetch

    def slow(iterator: object) -> object:
        in_another_thread(compute)
        assert [event for event in loop.reader.open_records() if event.name == "input"] == []
        return fetch(iterator)

    loop.functions = SimpleNamespace(fetch=slow, backward=loop._backward)
    for name in ("fetch", "backward"):
        loop.hooks.surround(loop.functions, name, name)
    loop.fetch()
    events = loop.written()
    assert len(steps(events)) == 1
    assert not [event for event in events if event.name == "input"]


def test_once_a_thread_trains_no_other_takes_its_place(loop: Loop) -> None:
    """A second thread that trains, too, is not recorded: its steps would be mixed with the first's."""
    loop.compute()
    in_another_thread(loop.train, 3)
    loop.compute()
    assert len(steps(loop.written())) == 2


def test_a_loop_that_marks_its_steps_may_fetch_ahead(loop: Loop) -> None:
    """Who marks a step trains, whichever thread fetched before: every step is a marked one."""
    stepping.attach(loop.recorder)
    in_another_thread(loop.fetch)
    for _ in range(3):
        with stepping.step():
            loop.compute()
    events = loop.written()
    assert steps(events) == [(0, 30_000), (1, 30_000), (2, 30_000)]
