"""hindmost.step() and hindmost.phase(): what a hand-written loop may say of itself."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import hindmost
import pytest
from hindmost import ring, stepping
from hindmost.identity import Identity
from hindmost.recorder import Recorder
from hindmost.step_sampling import StepSampling

IDENTITY = Identity("job", 0, 1, 0, "node", "python", "train.py")


@pytest.fixture
def events(tmp_path: Path) -> Iterator[ring.Reader]:
    """A reader of what this process records while the test runs; the clock says 0, 1000, 2000 …"""
    writer = ring.Writer.create(tmp_path, IDENTITY, "py", 256)
    usage = itertools.count(5, 5)
    sampling = StepSampling(lambda: 0, lambda: (next(usage) * 100, next(usage) * 10))
    recorder = Recorder(writer, itertools.count(0, 1000).__next__, sampling)
    recorder.due_ns = 1 << 62  # what hooks take is not accounted for: that would ask for the time
    stepping.attach(recorder)
    reader = ring.Reader(writer.path)
    yield reader
    stepping.attach(None)
    reader.close()
    writer.close()


def summary(reader: ring.Reader) -> list[tuple[str, int, int]]:
    return [(event.name, event.start_ns, event.duration_ns) for event in reader.poll()]


def test_who_marks_steps_trains(events: ring.Reader) -> None:
    """A thread that fetched ahead was there first; the steps are those of the one that marks them, for good."""
    assert stepping.attached is not None
    fetching = threading.Thread(target=stepping.attached.training_thread)
    fetching.start()
    fetching.join()
    with hindmost.step():
        pass
    marking = threading.Thread(target=lambda: hindmost.step().__enter__())
    marking.start()
    marking.join()
    with hindmost.step():
        pass
    assert [name for name, _, _ in summary(events) if name == "train"] == ["train", "train"]


def test_start_up_is_recorded_once_a_thread_trains(events: ring.Reader) -> None:
    """A process that imports a framework, and does not train, makes no ring for it."""
    assert stepping.attached is not None
    stepping.attached.set_up("import", 3, 9)
    assert summary(events) == []
    with hindmost.step():
        pass
    stepping.attached.set_up("init", 20, 25)
    marks = [one for one in summary(events) if one[0] in ("import", "init")]
    assert marks == [("import", 3, 6), ("init", 20, 5)]


def test_versions_of_libraries_are_recorded(events: ring.Reader) -> None:
    """A library that does not say its version leaves no mark."""
    assert stepping.attached is not None
    with hindmost.step():
        pass
    stepping.attached.record_version("torch", "2.11.0+cu130")
    stepping.attached.record_version("drill", None)
    marks = [name for name, _, _ in summary(events) if name.startswith("version")]
    assert marks == ["version torch 2.11.0+cu130"]


@pytest.mark.parametrize(
    ("named", "recorded"),
    [
        (["torch", "horovod"], "horovod"),
        (["horovod", "torch"], "horovod"),
        (["torch", "drill", "mpi4py"], "drill"),
        (["a name of more than the thirty-one bytes of its field"], "a name of more than the thirty-"),
    ],
)
def test_any_framework_can_be_named(events: ring.Reader, named: list[str], recorded: str) -> None:
    """Of several the most specific is recorded; one that the recorder does not know raises nothing."""
    assert stepping.attached is not None
    for name in named:
        stepping.attached.name_framework(name)
    assert ring.Reader(events.path).header.framework == recorded


def test_without_a_ring_nothing_happens() -> None:
    """In a script that was not started by hindmost, marks do nothing and pass values through."""
    stepping.attach(None)
    with hindmost.step(), hindmost.phase("input"):
        pass
    assert list(hindmost.steps([1, 2, 3])) == [1, 2, 3]


def test_a_marked_step_reaches_back_to_the_one_before(events: ring.Reader) -> None:
    """Time between two marked steps is part of the later one; its CPU time and run-queue delay go with it."""
    with hindmost.step(work=7):
        pass
    with hindmost.step():
        pass
    assert summary(events) == [
        ("cpu", 0, 1000),
        ("runqueue", 0, 100),
        ("train", 0, 1000),
        ("cpu", 1000, 1000),
        ("runqueue", 1000, 100),
        ("train", 1000, 2000),
    ]


def test_phases_nest_and_are_written_inside_out(events: ring.Reader) -> None:
    """A nested phase is written before the one around it."""
    with hindmost.phase("forward"), hindmost.phase("h2d"):
        pass
    assert summary(events) == [("h2d", 1000, 1000), ("forward", 0, 3000)]


def test_what_is_in_progress_can_be_seen(events: ring.Reader) -> None:
    """A step and its phase stand in the open table until they end."""
    with hindmost.step("eval"), hindmost.phase("input"):
        assert [event.name for event in events.open_records()] == ["eval", "input"]
    assert events.open_records() == []


def test_steps_wraps_any_iterable(events: ring.Reader) -> None:
    """Each batch is one step with its input wait; running out of batches is no step."""
    assert list(hindmost.steps("ab")) == ["a", "b"]
    names = [name for name, *_ in summary(events)]
    assert names.count("train") == 2
    assert names.count("input") == 3


def test_an_exception_ends_the_step_and_goes_on(events: ring.Reader) -> None:
    """A step that raises is written, and the exception is the caller's."""
    with pytest.raises(ZeroDivisionError), hindmost.step():
        _ = 1 / 0
    assert [name for name, *_ in summary(events)][-1] == "train"


def test_a_bare_call_ends_a_step(events: ring.Reader) -> None:
    """Without a with statement each call but the first writes the step that reaches back to the call before."""
    for _ in range(3):
        hindmost.step(work=2)
    steps = [event for event in events.poll() if event.kind == ring.STEP]
    assert [(step.start_ns, step.duration_ns, step.value, step.seq) for step in steps] == [
        (0, 1000, 2, 0),
        (1000, 1000, 2, 1),
    ]


def test_other_threads_are_not_the_training_loop(events: ring.Reader) -> None:
    """Marks of a background thread write nothing once the training thread has marked a step."""
    with hindmost.step():
        pass

    def background() -> None:
        with hindmost.step(), hindmost.phase("checkpoint"):
            pass

    thread = threading.Thread(target=background)
    thread.start()
    thread.join()
    assert [name for name, *_ in summary(events)] == ["cpu", "runqueue", "train"]


def test_what_hooks_leave_for_later_is_written_in_order(events: ring.Reader) -> None:
    """Whatever is recorded while calls wait stands behind them, and a call that is added meanwhile behind that."""
    recorder = stepping.attached
    assert recorder is not None

    def recognised() -> None:
        recorder.write("backward", 5, 6)
        recorder.phase("gc", 7, 8)  # a collection strikes while the row is worked off

    recorder.later.append((recognised,))
    recorder.phase("checkpoint", 6, 7)
    assert events.poll() == []
    recorder.flush()
    recorder.flush()
    assert [name for name, *_ in summary(events)] == ["backward", "checkpoint", "gc"]
