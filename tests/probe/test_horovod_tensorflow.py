"""The probe of Horovod's front end for TensorFlow where there is neither: a step's wait, made of what the shim saw."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hindmost import bootstrap, ring, stepping
from hindmost.identity import Identity
from hindmost.probes import guard, horovod, horovod_cycles, keras
from hindmost.recorder import Recorder


class Front(SimpleNamespace):
    """As much of horovod.tensorflow as the probe touches, on rank 0 of 2; ``words`` are the shim's."""

    def __init__(self) -> None:
        super().__init__(words=[0] * horovod_cycles.WORDS, eager=True, now=1000)
        self.tf = SimpleNamespace(executing_eagerly=lambda: self.eager)
        self.rank, self.size, self.is_initialized = (lambda: 0), (lambda: 2), (lambda: True)
        self.broadcast = lambda value, root: self.hands_over(1) or value

    def hands_over(self, tensors: int) -> None:
        """TensorFlow hands tensors over 10 ns later, a cycle begins after 20, and they are back 5 after that."""
        words, now = self.words, self.now
        words[horovod_cycles.HANDED] += tensors
        words[horovod_cycles.HANDED_NS], words[horovod_cycles.REDUCED_NS] = now + 10, now + 35
        words[horovod_cycles.BEGAN + words[horovod_cycles.CYCLES] % horovod_cycles.KEPT] = now + 30
        words[horovod_cycles.CYCLES] += 1
        self.now = now + 50


@pytest.fixture
def front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Horovod's front end, hooked."""
    monkeypatch.setenv("HINDMOST_ATTACHED", "")
    module = Front()
    monkeypatch.setattr(horovod_cycles, "watch", lambda _: horovod_cycles.Cycles(module.words))
    writer = bootstrap.make_ring(tmp_path, Identity("job", 0, 2, 0, "node", "python", "train.py"))
    assert writer is not None
    module.recorder = Recorder(writer, clock=lambda: module.now)
    stepping.attach(module.recorder)
    assert module.recorder.training_thread()
    horovod.install_tensorflow(module, module.recorder)  # type: ignore[arg-type]
    yield module
    bootstrap.stop()
    guard.remove_all()


def events(directory: Path) -> list[tuple[str, int, int]]:
    (path,) = directory.glob("*.ring")
    reader = ring.Reader(path)
    kinds = (ring.COLLECTIVE, ring.PHASE, ring.STEP)
    found = [(event.name, event.start_ns, event.duration_ns) for event in reader.poll() if event.kind in kinds]
    reader.close()
    return [event for event in found if event[0] not in ("cpu", "runqueue")]


def test_a_step_waits_from_its_last_tensor_until_all_are_back(front: Any, tmp_path: Path) -> None:
    """Of the wait, what precedes the cycle is negotiation; a step that hands nothing over has none."""
    front.hands_over(7)
    front.recorder.step(1000, 1050)
    front.recorder.step(1050, 1060, "eval")
    front.recorder.flush()
    assert events(tmp_path) == [
        ("all_reduce", 1010, 25),
        ("negotiation", 1010, 20),
        ("sync", 1010, 25),
        ("train", 1000, 50),
        ("eval", 1050, 10),
    ]


def test_calls_by_hand_are_no_steps_wait(front: Any, tmp_path: Path) -> None:
    """A broadcast between two steps is one of its own; what is traced into a function has not been called yet."""
    assert front.broadcast(5, 0) == 5
    front.recorder.step(1000, 1060)
    front.eager = False
    front.broadcast(5, 0)
    front.recorder.flush()
    assert [name for name, *_ in events(tmp_path)] == ["broadcast", "negotiation", "train"]


def test_fetching_is_measured_where_something_was_fetched() -> None:
    """Several batches of one observation add up; none is no measurement."""
    words = [0] * horovod_cycles.WORDS
    fetches = keras.Fetches(words)
    fetches.begin()
    assert fetches.taken() is None
    words[horovod_cycles.FETCHED], words[horovod_cycles.FETCHING_US], words[horovod_cycles.SAMPLES] = 2, 30, 12
    assert fetches.taken() == (30_000, 12)
    fetches.begin()
    assert fetches.taken() is None
