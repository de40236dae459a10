"""What the hooks of a torch loop record of its steps."""

from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from hindmost import ring, stepping
from hindmost.probes import torch_copies

from tests.probe.fake_cuda import FakeCuda
from tests.probe.torch_loop import Loop, steps


def test_steps_are_written_in_order_with_their_work(loop: Loop) -> None:
    """Every phase stands before its step, and has the time at which it was seen."""
    loop.recorder.due_ns = 1 << 62
    loop.train(3)
    events = loop.written()
    assert steps(events) == [(0, 40_000), (1, 40_000), (2, 40_000)]
    names = [event.name for event in events if event.name not in ("cpu", "runqueue")]
    assert names[:5] == ["input", "forward", "backward", "optimizer", "train"]
    assert {event.value for event in events if event.kind == ring.STEP} == {4}


def test_a_measured_step_has_its_cpu_time_whatever_the_loop(loop: Loop) -> None:
    """The time a step used is known for loops that fetch, that fetch nothing, and that mark their own steps."""
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
    """Receives the frame that has the batch, and when the model's work begins."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def begin(self, frame: FrameType) -> None:
        self._calls.append(frame.f_code.co_name)

    def end(self) -> None:
        self._calls.append("end")


def test_gpu_times_of_measured_steps(tmp_path: Path, written_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a measured step one event stands at each border of its phases; copies are looked for where it was fetched."""
    calls: list[str] = []
    monkeypatch.setattr(torch_copies, "install", lambda *_: Copies(calls))
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
    assert calls == [loop.fetch.__name__, "end"] * 20
    loop.reader.close()
    loop.writer.close()


def test_tokens_are_counted_where_a_batch_has_them(loop: Loop) -> None:
    """A batch's work is found wherever the loader puts it; one without a shape has none, and is no fault."""
    tokens = SimpleNamespace(shape=(4, 512))
    for batch in ({"input_ids": tokens, "labels": tokens}, (tokens, 1), [[tokens]], tokens, "no tensor", None, []):
        loop.batch = batch
        loop.train(1)
    assert [event.value for event in loop.written() if event.kind == ring.STEP] == [2048, 4, 4, 4, 0, 0, 0]


def test_batches_without_a_tensor_are_rarely_searched(loop: Loop) -> None:
    """A loop over words pays for no search of each batch, and where tensors come they are found before long."""
    looks = 0

    class Words(list[str]):
        def __getitem__(self, index: Any) -> Any:
            nonlocal looks
            looks += 1
            return super().__getitem__(index)

    loop.batch = Words("text")
    loop.train(640)
    assert looks <= 4 * (7 + 10)
    loop.batch = [SimpleNamespace(shape=(4, 2))]
    loop.train(65)
    assert [event.value for event in loop.written() if event.kind == ring.STEP][-2:] == [4, 4]


def test_an_optimizer_that_raised_does_not_end_the_recording(loop: Loop) -> None:
    """Its step has no end; the next one's is seen, in a loop that fetches nothing, too."""
    loop.compute()
    loop.functions.backward(loop)
    loop.hooks.step_begins(loop)  # raises: no end is reported
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
