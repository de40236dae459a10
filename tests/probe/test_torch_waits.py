"""Waits for the GPU, seen in C functions that may wait: here, of the interpreter's own."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hindmost import ring
from hindmost.native import build
from hindmost.probes.torch_native import ANY, COPIES, OF_TENSOR
from hindmost.ring import native

pytestmark = pytest.mark.needs("cc")


class Rare:
    """What a loop asks of Python: nothing here."""

    def _nothing(self, *_: object) -> None:
        pass

    first = tick = closes = gpu = account = way = _nothing


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ring.Writer:
    monkeypatch.setenv("HINDMOST_RING_MODULE", str(build.library("ring")))
    identity = SimpleNamespace(job_id="j", rank=0, world_size=1, local_rank=0, framework="torch", command="c")
    return ring.Writer.create(tmp_path, identity, "py", capacity=256)


@pytest.fixture
def loop(writer: ring.Writer) -> Iterator[Any]:
    """A loop whose training thread is this one, which watches ``time.sleep``."""
    module: Any = native.load()
    made = module.Loop(Rare(), lambda: True)
    made.thread = threading.get_ident()
    made.waits, made.copies = writer.name("device_wait"), writer.name("device_copy")
    names = ("input", "forward", "backward", "optimizer", "train", "eval")
    made.bind(writer.native, tuple(map(writer.name, names)))
    assert made.watch(time.sleep, ANY)
    yield made
    made.unwatch()


def waits(writer: ring.Writer) -> list[tuple[str, bool]]:
    """Name, and whether it took 2 ms at least, of what was recorded."""
    return [(event.name, event.duration_ns >= 2_000_000) for event in ring.Reader(writer.path).poll()]


def test_a_wait_is_a_phase_of_its_own(loop: Any, writer: ring.Writer) -> None:
    """Each call of the function is, under whatever name it was kept before."""
    kept = time.sleep
    kept(0.002)
    [*map(time.sleep, [0.002])]
    assert waits(writer) == [("device_wait", True)] * 2


def test_a_call_that_hardly_waits_leaves_no_record(loop: Any, writer: ring.Writer) -> None:
    """Most calls find the GPU done: they would fill the ring."""
    before = time.perf_counter_ns()
    assert loop.watch(time.perf_counter_ns, ANY)
    assert time.perf_counter_ns() > before
    assert waits(writer) == []


def test_another_thread_waits_for_itself(loop: Any, writer: ring.Writer) -> None:
    """Only the thread that trains is recorded."""
    thread = threading.Thread(target=time.sleep, args=(0.002,))
    thread.start()
    thread.join()
    assert waits(writer) == []


def test_an_error_passes(loop: Any, writer: ring.Writer) -> None:
    """What the function raises is raised, and the next wait is seen."""
    with pytest.raises(ValueError, match="non-negative"):
        time.sleep(-1)
    time.sleep(0.002)
    assert waits(writer) == [("device_wait", True)]


def test_a_tensor_of_the_host_waits_for_no_gpu(loop: Any, writer: ring.Writer) -> None:
    """Of a method of tensors, only those on a GPU count: the module of ``sleep`` is on none."""
    loop.unwatch()
    assert loop.watch(time.sleep, OF_TENSOR)
    time.sleep(0.002)
    assert waits(writer) == []


@pytest.mark.parametrize(
    ("device", "to", "expected"),
    [
        ("cpu", "cpu", []),
        ("cpu", "gpu", ["device_copy"]),
        ("gpu", "cpu", ["device_wait"]),
        ("gpu", "gpu", ["device_wait"]),
    ],
)
def test_a_copy_to_a_gpu_is_no_wait(loop: Any, writer: ring.Writer, device: str, to: str, expected: list[str]) -> None:
    """What is copied from the GPU has to be computed first; a copy to it takes time of its own."""

    class Result:
        is_cuda = to == "gpu"

    class Tensor:
        is_cuda = device == "gpu"

        def __reduce__(self) -> Any:  # which object's own method, in C, calls and returns
            until = time.monotonic_ns() + 100_000
            while time.monotonic_ns() < until:
                pass
            return Result()

    assert loop.watch(object.__reduce_ex__, COPIES)
    assert isinstance(Tensor().__reduce_ex__(2), Result)
    assert [event.name for event in ring.Reader(writer.path).poll()] == expected


def test_functions_are_given_back(loop: Any, writer: ring.Writer) -> None:
    """Attach leaves a process as it found it."""
    loop.unwatch()
    time.sleep(0.002)
    assert waits(writer) == []


def test_what_is_no_function_in_c_is_left(loop: Any) -> None:
    """A build of torch may have any of them in Python."""
    assert loop.definition(waits) is None
    assert not loop.watch(waits, ANY)
    assert not loop.watch(None, ANY)
