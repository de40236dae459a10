"""A GPU made of numbers, in place of ``torch.cuda``."""

from __future__ import annotations

from typing import Any


class FakeEvent:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.at = cuda, -1.0

    def record(self) -> None:
        self.cuda.host_ns += self.cuda.cost_ns
        self.cuda.records += 1
        self.at = self.cuda.enqueued

    def query(self) -> bool:
        self.cuda.ask()
        return self.cuda.done >= self.at

    def elapsed_time(self, end: FakeEvent) -> float:
        assert all((self.query(), end.query())), "an event was read before the GPU had passed it"
        return end.at - self.at


class FakeCuda:
    """A GPU that has been given work up to ``enqueued`` ms of its time, and has done it up to ``done``."""

    def __init__(self) -> None:
        self.enqueued = self.done = 0.0
        self.initialized, self.capturing = True, False
        self.host_ns, self.cost_ns, self.events, self.records = 0, 0, 0, 0

    def Event(self, enable_timing: bool) -> FakeEvent:  # noqa: N802 - torch's name
        assert enable_timing
        self.events += 1
        return FakeEvent(self)

    def ask(self) -> None:
        """CUDA is asked how far the GPU is, which ends the capture of a graph with an error."""
        assert not self.capturing, "the capture of a graph was spoilt"

    def current_stream(self) -> FakeStream:
        return FakeStream(self)

    def is_initialized(self) -> bool:
        return self.initialized

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def current_device(self) -> int:
        return 0

    def get_device_properties(self, device: int) -> Any:
        return type("Properties", (), {"uuid": "1b2c"})()


class FakeStream:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda

    def query(self) -> bool:
        self.cuda.ask()
        return self.cuda.done >= self.cuda.enqueued
