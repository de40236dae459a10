"""What the hooks of a torch loop leave behind, with a torch that is not there and a clock that is told."""

from __future__ import annotations

import gc
import inspect
import pickle
import threading
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hindmost import bootstrap, ring, stepping
from hindmost.identity import Identity
from hindmost.pacing import MOST_SHARE, PATIENCE, Thrift
from hindmost.probes import torch_copies
from hindmost.probes.guard import undo
from hindmost.probes.torch_cuda import GpuPhases
from hindmost.probes.torch_hooks import Hooks
from hindmost.probes.torch_native import native_hooks
from hindmost.recorder import FLUSH_NS, Recorder

from tests.unit.fake_cuda import FakeCuda

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType


class Loop:
    """A training loop of 40 us a step, whose functions are hooked as torch's are."""

    def __init__(self, directory: Path, written_in: str, cuda: FakeCuda | None = None) -> None:
        self.now = 1_000
        self.unit = 10_000
        self.gradients = True
        self.batch: Any = [SimpleNamespace(shape=(4, 2))]
        self.error: BaseException | None = None
        self.writer = ring.Writer.create(directory, Identity("job", 0, 1, 0, "node", "torch", "train.py"), "py", 16384)
        self.recorder = Recorder(self.writer, clock=lambda: self.now)
        self.recorder.pace.usage = lambda: (self.now // 2, -1)
        torch: Any = SimpleNamespace(is_grad_enabled=lambda: self.gradients)
        self.gpu = GpuPhases(cuda, self.recorder) if cuda is not None else None
        native = native_hooks(torch, self.recorder, self.gpu)
        assert (native is not None) == (written_in == "c")
        self.hooks: Any = native or Hooks(torch, self.recorder, self.gpu)
        self.functions = SimpleNamespace(fetch=self._fetch, backward=self._backward)
        for name in ("fetch", "backward"):
            self.hooks.surround(self.functions, name, name)
        self.reader = ring.Reader(self.writer.path)

    def _fetch(self, _iterator: object) -> Any:
        self.now += self.unit
        if self.error is not None:
            raise self.error
        return self.batch

    def _backward(self, loss: object, *, retain: bool = False) -> tuple[object, bool]:
        self.now += self.unit
        if self.error is not None:
            raise self.error
        return loss, retain

    def fetch(self) -> Any:
        return self.functions.fetch(self)

    def compute(self, optimizers: int = 1) -> None:
        self.now += self.unit
        self.functions.backward(self)
        for _ in range(optimizers):
            self.hooks.step_begins(self)
            self.now += self.unit
            self.hooks.step_ends(self)

    def train(self, steps: int, optimizers: int = 1) -> None:
        for _ in range(steps):
            self.fetch()
            self.compute(optimizers)

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
def loop(tmp_path: Path, written_in: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    monkeypatch.setattr(bootstrap, "_complained", False)
    made = Loop(tmp_path, written_in)
    yield made
    stepping.attach(None)
    made.reader.close()
    made.writer.close()


def steps(events: list[ring.Event], kind: str = "train") -> list[tuple[int, int]]:
    return [(event.seq, event.duration_ns) for event in events if (event.kind, event.name) == (ring.STEP, kind)]


def test_steps_are_written_in_order_with_their_work(loop: Loop) -> None:
    """Every phase stands before its step, and has the time at which it was seen."""
    loop.recorder.due_ns = 1 << 62
    loop.train(3)
    events = loop.written()
    assert steps(events) == [(0, 40_000), (1, 40_000), (2, 40_000)]
    names = [event.name for event in events if event.name not in ("cpu", "runqueue")]
    assert names[:5] == ["input", "forward", "backward", "optimizer", "train"]
    assert {event.value for event in events if event.kind == ring.STEP} == {4}


def test_what_a_killed_process_has_lost(loop: Loop, written_in: str) -> None:
    """Hooks in C have written all that was: nothing is lost with the process. In Python a tenth of a second may be."""
    loop.train(1)  # keeps the books for the first time
    loop.train(30)
    found = len(steps(loop.reader.poll()))
    assert found == (30 if written_in == "c" else 0)


def test_the_row_is_worked_off_in_time(loop: Loop) -> None:
    """Whether a loop trains or only evaluates, what it did is in the ring some tenths of a second later."""
    loop.unit = FLUSH_NS // 100
    loop.train(100)
    assert len(loop.recorder.later) <= 8 * 26
    loop.evaluate(500)
    assert len(loop.recorder.later) <= 2 * 200


def test_a_measured_step_has_its_cpu_time_whatever_the_loop(loop: Loop) -> None:
    """What a step used is told of loops that fetch, that fetch nothing, and that mark their own steps."""
    stepping.attach(loop.recorder)
    loop.unit = 10_000_000
    loop.train(2)
    loop.fetch()
    for _ in range(20):
        loop.compute()
    events = loop.written()
    assert len(steps(events)) == 2 + 12
    assert len([event for event in events if event.name == "cpu"]) == 14
    for _ in range(5):
        with stepping.step():
            loop.train(1)
    events = loop.written()
    assert [(event.start_ns, event.seq) for event in events if event.kind == ring.STEP]
    used = [(event.start_ns, event.duration_ns) for event in events if event.name == "cpu"]
    marked = [(event.start_ns, event.duration_ns // 2) for event in events if event.kind == ring.STEP]
    assert [seq for seq, _ in steps(events)] == [14, 15, 16, 17, 18]
    assert used[-4:] == marked[-4:]
    assert {event.value for event in events if event.kind == ring.STEP} == {4}


class Copies:
    """Told whose frame has the batch, and when the model's work begins."""

    def __init__(self, told: list[str]) -> None:
        self._told = told

    def begin(self, frame: FrameType) -> None:
        self._told.append(frame.f_code.co_name)

    def end(self) -> None:
        self._told.append("end")


def test_gpu_times_of_measured_steps(tmp_path: Path, written_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a measured step one event stands at each border of its phases; copies are looked for where it was fetched."""
    told: list[str] = []
    monkeypatch.setattr(torch_copies, "install", lambda *_: Copies(told))
    cuda = FakeCuda()
    loop = Loop(tmp_path, written_in, cuda)
    loop.unit = 10_000_000
    for _ in range(20):
        loop.fetch()
        cuda.enqueued += 3
        loop.functions.backward(loop)
        cuda.enqueued += 5  # after backward: an all-reduce by hand
        loop.hooks.step_begins(loop)
        cuda.enqueued += 1
        loop.hooks.step_ends(loop)
        cuda.done = cuda.enqueued
    phases = [event for event in loop.written() if event.name.startswith("gpu_")]
    times = {(event.seq, event.name): event.duration_ns / 1e6 for event in phases}
    # Step 0 has no number to tell it by.
    assert times.keys() == {
        (step, f"gpu_{name}") for step in range(1, 20) for name in ("forward", "backward", "optimizer")
    }
    assert [times[7, f"gpu_{name}"] for name in ("forward", "backward", "optimizer")] == [3, 0, 6]
    assert cuda.records == 20 * 4, "where a phase ends the next begins"
    assert told == [loop.fetch.__name__, "end"] * 20
    loop.reader.close()
    loop.writer.close()


def test_tokens_are_counted_where_a_batch_has_them(loop: Loop) -> None:
    """A batch's work is found wherever the loader puts it; one without a shape has none, and is no fault."""
    tokens = SimpleNamespace(shape=(4, 512))
    for batch in ({"input_ids": tokens, "labels": tokens}, (tokens, 1), [[tokens]], tokens, "no tensor", None, []):
        loop.batch = batch
        loop.train(1)
    assert [event.value for event in loop.written() if event.kind == ring.STEP] == [2048, 4, 4, 4, 0, 0, 0]


def test_what_is_hooked_is_as_it_was(loop: Loop) -> None:
    """Arguments, results and errors pass, and whoever looks at the function sees the one that was there."""
    assert loop.fetch() is loop.batch
    assert loop.functions.backward("loss", retain=True) == ("loss", True)
    assert loop.functions.backward.__wrapped__ == loop._backward
    assert loop.functions.backward.__name__ == "_backward"
    for loop.error in (StopIteration(), ValueError("mine"), KeyboardInterrupt()):
        with pytest.raises(type(loop.error)) as raised:
            loop.fetch()
        assert raised.value is loop.error
        with pytest.raises(type(loop.error)):
            loop.functions.backward("loss")
    loop.error = None
    loop.train(2)
    events = loop.written()
    assert len([event for event in events if event.name == "backward"]) == 1 + 3 + 2
    assert loop.reader.open_records() == []


def test_a_hooked_function_may_be_looked_at(loop: Loop) -> None:
    """Whoever inspects the function, or refers to it weakly, finds the signature and the name of the hooked one."""
    for hooked, original in ((loop.functions.backward, loop._backward), (loop.functions.fetch, loop._fetch)):
        assert inspect.signature(hooked) == inspect.signature(original)
        assert weakref.ref(hooked)() is hooked
        assert original.__name__ in repr(hooked)


def test_hooks_that_are_not_needed_any_more_are_collected(tmp_path: Path, written_in: str) -> None:
    """Hooks, what they surround and what they call for refer to each other; without us they all go."""
    made = Loop(tmp_path, written_in)
    made.train(3)
    made.functions.fetch.itself = made.functions.fetch
    gone = [weakref.ref(each) for each in (made.functions.fetch, made.functions.backward, made.hooks, made)]
    made.reader.close()
    made.writer.close()
    undo.clear()
    del made
    gc.collect()
    assert [each() for each in gone] == [None] * 4


def test_a_hook_in_a_class_is_a_method(loop: Loop) -> None:
    """What the class's own method was given, it is given; the class can be asked for it, and it is pickled by name."""
    loop.hooks.surround(Iterations, "__next__", "fetch")
    try:
        iterator = Iterations()
        assert [next(iterator), iterator.__next__(), Iterations.__next__(iterator)] == [[1], [2], [3]]
        assert pickle.loads(pickle.dumps(Iterations.__next__)) is Iterations.__next__  # noqa: S301 - our own
    finally:
        Iterations.__next__ = Iterations.__next__.__wrapped__  # type: ignore[attr-defined, method-assign]
    assert len([event for event in loop.written() if event.name == "input"]) == 3


class Iterations:
    """An iterator whose ``__next__`` is Python's, as a DataLoader's is."""

    def __init__(self) -> None:
        self.count = 0

    def __next__(self) -> list[int]:
        self.count += 1
        return [self.count]


def test_other_threads_are_not_recorded(loop: Loop) -> None:
    """A thread that is not the one that trains may fetch and step as it likes."""
    loop.train(1)
    other = threading.Thread(target=loop.train, args=(5,))
    other.start()
    other.join()
    assert len([event for event in loop.written() if event.name == "input"]) == 1


def in_another_thread(function: Callable[..., object], *arguments: object) -> None:
    other = threading.Thread(target=function, args=arguments)
    other.start()
    other.join()


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


def test_an_optimizer_that_raised_does_not_end_the_recording(loop: Loop) -> None:
    """Its step has no end; the next one's is seen, in a loop that fetches nothing, too."""
    loop.compute()
    loop.functions.backward(loop)
    loop.hooks.step_begins(loop)  # raises: no end is told
    for _ in range(3):
        loop.compute()
    events = loop.written()
    assert len(steps(events)) == 4
    assert len([event for event in events if event.name == "optimizer"]) == 4


def test_a_closure_is_part_of_its_optimizers_step(loop: Loop) -> None:
    """A backward inside the optimizer's step, nested or not, leaves it one step."""
    for _ in range(3):
        loop.hooks.step_begins(loop)
        loop.hooks.step_begins(loop)
        loop.functions.backward(loop)
        loop.functions.backward(loop)
        loop.hooks.step_ends(loop)
        loop.hooks.step_ends(loop)
    events = loop.written()
    assert len(steps(events)) == 3
    assert len([event for event in events if event.name == "optimizer"]) == 3


def test_a_fault_of_ours_is_one_line(loop: Loop, capsys: pytest.CaptureFixture[str]) -> None:
    """A hook that fails says so once, and the loop goes on; Ctrl-C inside a hook is the loop's."""

    def fails() -> tuple[int, int]:
        raise RuntimeError("ours")

    loop.recorder.pace.usage = fails
    assert loop.fetch() is loop.batch
    loop.compute()
    loop.train(2)
    assert capsys.readouterr().err.count("hindmost:") == 1


def test_ctrl_c_inside_a_hook_is_the_loops(loop: Loop) -> None:
    """An interruption is not swallowed, wherever it strikes, and the loop can go on after it."""

    def interrupted() -> tuple[int, int]:
        raise KeyboardInterrupt

    loop.train(1)
    usage, loop.recorder.pace.usage = loop.recorder.pace.usage, interrupted
    with pytest.raises(KeyboardInterrupt):
        loop.fetch()
    loop.recorder.pace.usage = usage
    loop.train(2)
    assert len([event for event in loop.written() if event.name == "backward"]) == 3


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
