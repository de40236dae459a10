"""Which thread of a torch loop is recorded, where several fetch or train."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from hindmost import ring, stepping

from tests.probe.torch_loop import Loop, steps


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


class Engine:
    """Autograd's thread for a GPU: ``backward`` has two optimizers step there, as hooks of gradients do."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.thread = ThreadPoolExecutor(1)
        loop.functions = SimpleNamespace(fetch=loop._fetch, backward=self._backward)
        for name in ("fetch", "backward"):
            loop.hooks.surround(loop.functions, name, name)

    def _backward(self, _loss: object) -> None:
        self._loop.now += self._loop.unit
        self.thread.submit(self.steps).result()

    def steps(self) -> None:
        for optimizer in (self, self._loop):
            self._loop.hooks.step_begins(optimizer)
            self._loop.hooks.step_ends(optimizer)


@pytest.fixture
def engine(loop: Loop) -> Iterator[Engine]:
    made = Engine(loop)
    yield made
    made.thread.shutdown()


@pytest.mark.parametrize("fetches", [True, False])
def test_optimizers_may_step_in_the_thread_of_a_gpu_s_backward(loop: Loop, engine: Engine, fetches: bool) -> None:
    """Their steps are the training thread's, and part of its backward: when they began there is not its time."""
    for _ in range(6):
        if fetches:
            loop.fetch()
        loop.now += loop.unit
        loop.functions.backward(loop)
    events = loop.written()
    assert [seq for seq, _ in steps(events)] == [0, 1, 2, 3, 4, 5]
    assert steps(events)[1:] == [(seq, 30_000 if fetches else 20_000) for seq in range(1, 6)]
    assert {name: [event.name for event in events].count(name) for name in ("backward", "optimizer")} == {
        "backward": 6,
        "optimizer": 0,
    }


def test_steps_that_go_unrecorded_are_counted_whatever_thread_makes_them(loop: Loop, engine: Engine) -> None:
    """Where hooks take too much, every 4th step is recorded, also of a loop whose optimizers step within backward."""
    loop.recorder.sampling.limit.mask = 3
    for _ in range(9):
        loop.fetch()
        loop.functions.backward(loop)
    assert [seq for seq, _ in steps(loop.written())] == [0, 4, 8]


def test_a_second_thread_that_trains_steps_for_itself(loop: Loop, engine: Engine) -> None:
    """What called backward itself is no thread of autograd's: its optimizer's steps end none of the first's."""
    computes = loop._backward
    loop.fetch()
    loop.functions.backward(loop)
    other = SimpleNamespace(backward=computes)
    loop.hooks.surround(other, "backward", "backward")
    engine.thread.submit(other.backward, loop).result()
    loop.written()
    for _ in range(3):
        loop.functions.backward(loop)
    assert steps(loop.written()) == []
