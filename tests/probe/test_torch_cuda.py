"""GPU phases from CUDA events that are read late: with a GPU made of numbers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hindmost import ring
from hindmost.identity import Identity
from hindmost.probes.torch_cuda import OUTSTANDING, GpuPhases
from hindmost.recorder import Recorder

from tests.probe.fake_cuda import FakeCuda


class Device:
    """One rank on the fake GPU; ``train`` enqueues 3 ms of forward, 5 of backward and 1 of optimizer."""

    def __init__(self, directory: Path) -> None:
        identity = Identity("job", 0, 1, 0, "node", "torch", "train.py")
        self.writer = ring.Writer.create(directory, identity, "py", 1024)
        self.cuda = FakeCuda()
        self.recorder = Recorder(self.writer, clock=lambda: self.cuda.host_ns)
        self.gpu = GpuPhases(self.cuda, self.recorder)
        self.reader = ring.Reader(self.writer.path)

    def train(self, micro_batches: int = 1, host_ns: int = 30_000_000, fetches: bool = True) -> None:
        start, measuring = self.cuda.host_ns, self.recorder.sampling.measuring
        self.cuda.host_ns += host_ns
        for _ in range(micro_batches):
            if measuring and fetches:
                self.gpu.fetches()
                self.gpu.ready()
            self.cuda.enqueued += 3
            if measuring:
                self.gpu.backward_begins()
            self.cuda.enqueued += 5
            if measuring:
                self.gpu.backward_ends()
        self.cuda.enqueued += 1
        if measuring:
            self.gpu.optimizer_ends()
        self.recorder.step(start, self.cuda.host_ns)
        self.recorder.flush()

    def measured(self) -> list[tuple[int, str, float]]:
        """Step, phase and ms of each measure written since the last call."""
        events = [event for event in self.reader.poll() if event.name.startswith("gpu_")]
        return [(event.seq, event.name, event.duration_ns / 1e6) for event in events]


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    made = Device(tmp_path)
    yield made
    made.reader.close()
    made.writer.close()


def test_phases_are_written_when_the_gpu_has_passed_them(device: Device) -> None:
    """Nothing is read early; once the GPU is there, each step has its three phases under its own number."""
    for _ in range(3):
        device.train()
    assert device.measured() == []
    device.cuda.done = 18.0
    device.train()
    assert device.measured() == [(1, "gpu_forward", 3.0), (1, "gpu_backward", 5.0), (1, "gpu_optimizer", 1.0)]


def test_micro_batches_add_up(device: Device) -> None:
    """With accumulated gradients a step's forward is the sum over its micro-batches."""
    for _ in range(2):
        device.train(micro_batches=4)
    device.cuda.done = device.cuda.enqueued
    device.gpu.read()
    assert device.measured() == [(1, "gpu_forward", 12.0), (1, "gpu_backward", 20.0), (1, "gpu_optimizer", 1.0)]


def test_a_gpu_far_behind_bounds_what_is_kept(device: Device) -> None:
    """Beyond the bound the oldest steps go unmeasured; memory does not grow."""
    for _ in range(OUTSTANDING + 10):
        device.train()
    device.cuda.done = device.cuda.enqueued
    device.gpu.read()
    steps = sorted({step for step, _, _ in device.measured()})
    assert steps == list(range(10, OUTSTANDING + 10))


@pytest.mark.parametrize("state", [{"initialized": False}, {"capturing": True}], ids=str)
def test_no_events_without_cuda_or_inside_a_graph_capture(device: Device, state: dict[str, bool]) -> None:
    """Before CUDA is in use, and while a graph is captured, nothing is recorded."""
    vars(device.cuda).update(state)
    for _ in range(2):
        device.train()
    device.cuda.done = device.cuda.enqueued
    device.gpu.read()
    assert device.measured() == []


def test_a_graph_s_capture_is_not_spoilt(device: Device) -> None:
    """While a step is captured CUDA is not asked how far it is, neither for steps before it nor about its copies."""
    for _ in range(3):
        device.train()
    device.cuda.done = device.cuda.enqueued
    device.gpu.ready()
    device.cuda.capturing = True
    device.gpu.copy_begins()
    device.gpu.copy_ends(40_000)
    device.train()
    device.cuda.capturing = False
    device.train()
    assert {step for step, _, _ in device.measured()} == {1, 2}


def test_copies_are_separate_from_forward(device: Device) -> None:
    """A blocking copy counts with the host's time in the call, one that goes on with the GPU's; neither is forward."""
    for blocks in (True, False):
        device.train()
        device.gpu.fetches()
        device.gpu.ready()
        device.cuda.done = device.cuda.enqueued
        device.gpu.copy_begins()
        device.cuda.enqueued += 2 if blocks else 0.7
        device.cuda.done = device.cuda.enqueued if blocks else device.cuda.done
        device.gpu.copy_ends(2_000_000 if blocks else 40_000)
        device.cuda.enqueued += 3
        device.gpu.backward_begins()
        device.recorder.step(device.cuda.host_ns, device.cuda.host_ns + 1)
        device.cuda.done = device.cuda.enqueued
    device.gpu.read()
    device.recorder.flush()
    told = [(one.name, round(one.duration_ns / 1e6, 3)) for one in device.reader.poll()]
    assert [ms for name, ms in told if name == "h2d"] == [2.0, 0.66]
    assert {ms for name, ms in told if name == "gpu_forward"} == {3.0}


def test_the_ring_says_which_gpu(device: Device) -> None:
    """The rank's GPU is named as NVML names it."""
    device.train()
    device.train()
    assert device.reader.gpu_uuid == "GPU-1b2c"


def test_evaluation_is_not_counted_into_the_next_step(device: Device) -> None:
    """Events of an eval step are dropped with it."""
    device.train()
    device.gpu.ready()
    device.cuda.enqueued += 100
    device.gpu.backward_begins()
    device.recorder.step(0, 1, "eval")
    device.recorder.flush()
    device.train()
    device.cuda.done = device.cuda.enqueued
    device.gpu.read()
    assert device.measured() == [(1, "gpu_forward", 3.0), (1, "gpu_backward", 5.0), (1, "gpu_optimizer", 1.0)]


def test_what_events_cost_is_reported(device: Device) -> None:
    """Recording is part of what a measured step costs: where events are dear, few steps have them."""
    device.cuda.cost_ns = 50_000
    for _ in range(512):
        device.train()
        device.cuda.done = device.cuda.enqueued
    steps = [step for step, name, _ in device.measured() if name == "gpu_backward" and step > 64]
    assert steps == list(range(96, 511, 32))


def test_events_are_used_again(device: Device) -> None:
    """A loop without input, whose steps share an event at their border, makes events only at first, and reads right."""
    for _ in range(100):
        device.train(fetches=False)
        device.cuda.done = device.cuda.enqueued
    assert device.cuda.events < 20
    assert {(name, ms) for _, name, ms in device.measured()} == {
        ("gpu_forward", 3.0),
        ("gpu_backward", 5.0),
        ("gpu_optimizer", 1.0),
    }
