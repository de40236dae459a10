"""A hooked function is the same as before for all other code."""

import gc
import inspect
import pickle
import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from hindmost.probes.guard import around, remove_all, undo

from tests.probe.torch_loop import Loop


def test_what_is_hooked_is_as_it_was(loop: Loop) -> None:
    """Arguments, results and errors pass, and reading the function gives the one that was there."""
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
    """Inspection and weak references find a function with the signature and name of the hooked one."""
    for hooked, original in ((loop.functions.backward, loop._backward), (loop.functions.fetch, loop._fetch)):
        assert inspect.signature(hooked) == inspect.signature(original)
        assert weakref.ref(hooked)() is hooked
        assert original.__name__ in repr(hooked)
        assert inspect.isfunction(hooked)


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
        remove_all()
    assert len([event for event in loop.written() if event.name == "input"]) == 3


def test_a_function_of_pythons_is_hooked_in_itself(loop: Loop) -> None:
    """From Python 3.12 on hooks in C are in the function: it and its tracebacks are as they were; it is given back."""
    before = Iterations.__next__
    loop.hooks.surround(Iterations, "__next__", "fetch")
    try:
        in_itself = Iterations.__next__ is before
        assert in_itself == (sys.version_info >= (3, 12) and hasattr(loop.hooks, "entered"))
        iterator = Iterations(loop.batch)
        next(iterator)  # the first is looked at
        with pytest.raises(ZeroDivisionError) as raised:
            next(Iterations(fails=True))
        files = {entry.path.name for entry in raised.traceback}
        assert not in_itself or files == {Path(__file__).name}
        called = [event for event in _called(iterator.__next__) if "hindmost" in event]
        assert not in_itself or called == []
    finally:
        remove_all()
    assert Iterations.__next__ is before
    assert vars(before) == {}
    assert next(iterator) is loop.batch
    assert len([event for event in loop.written() if event.name == "input"]) == 2


def test_of_two_hooks_in_a_function_one_is_around_the_other(loop: Loop, tmp_path: Path, written_in: str) -> None:
    """Where a hook stands in a function already, the next is put around it; each can be removed alone."""
    other = Loop(tmp_path / "other", written_in)
    try:
        for each in (loop, other):
            each.hooks.surround(Iterations, "__next__", "fetch")
        assert next(Iterations()) == [1]
    finally:
        remove_all()
        written = [[event.name for event in each.written()] for each in (loop, other)]
        other.reader.close()
        other.writer.close()
    assert [names.count("input") for names in written] == [1, 1]
    assert next(Iterations()) == [1]


def test_what_a_hook_calls_may_be_surrounded(loop: Loop) -> None:
    """What is put around a hook's ``original`` is inside of it, and calls the function as it was."""
    hook = loop.hooks.surround(Iterations, "__next__", "fetch")
    try:
        seen: list[object] = []
        around(hook, "original", lambda *_: 0, lambda _token, result, *_: seen.append(result))
        assert [next(Iterations()), seen] == [[1], [[1]]]
    finally:
        remove_all()


def _called(function: Callable[[], object]) -> list[str]:
    """The files of functions of Python's that are called in calling it."""
    files: list[str] = []
    sys.setprofile(lambda frame, event, _: files.append(frame.f_code.co_filename) if event == "call" else None)
    try:
        function()
    finally:
        sys.setprofile(None)
    return files


class Iterations:
    """An iterator whose ``__next__`` is Python's, as a DataLoader's is."""

    def __init__(self, batch: object = None, *, fails: bool = False) -> None:
        self.batch, self.fails = batch, fails
        self.count = 0

    def __next__(self) -> object:
        self.count += 1
        self.count //= not self.fails
        return self.batch or [self.count]


def test_a_fault_of_ours_is_one_line(loop: Loop, capsys: pytest.CaptureFixture[str]) -> None:
    """A hook that fails says so once, and the loop goes on; Ctrl-C inside a hook is the loop's."""

    def fails() -> tuple[int, int]:
        raise RuntimeError("ours")

    loop.recorder.sampling.usage = fails
    assert loop.fetch() is loop.batch
    loop.compute()
    loop.train(2)
    assert capsys.readouterr().err.count("hindmost:") == 1


def test_ctrl_c_inside_a_hook_is_the_loops(loop: Loop) -> None:
    """An interruption is not swallowed, wherever it strikes, and the loop can go on after it."""

    def interrupted() -> tuple[int, int]:
        raise KeyboardInterrupt

    loop.train(1)
    usage, loop.recorder.sampling.usage = loop.recorder.sampling.usage, interrupted
    with pytest.raises(KeyboardInterrupt):
        loop.fetch()
    loop.recorder.sampling.usage = usage
    loop.train(2)
    assert len([event for event in loop.written() if event.name == "backward"]) == 3
