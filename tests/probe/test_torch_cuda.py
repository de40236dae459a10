"""GPU phases from CUDA events that are read late, and how long a copy kept its rank: with a GPU made of numbers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hindmost import ring
from hindmost.identity import Identity
from hindmost.probes.torch_cuda import OUTSTANDING, Call, GpuPhases, copied_ms
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
    phases = [(one.name, round(one.duration_ns / 1e6, 3)) for one in device.reader.poll()]
    assert [ms for name, ms in phases if name == "h2d"] == [2.0, 0.66]
    assert {ms for name, ms in phases if name == "gpu_forward"} == {3.0}


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


LAUNCH, WAKE, SETTLE = 0.04, 0.01, 0.02  # ms until a copy is launched, until a blocked host goes on, until it records


def timed_copy(copy: float, *, blocks: bool, queued: float = 0.0, slow: float = 0.0) -> tuple[float, Call]:
    """ms between the events, and the call, of a copy that takes so long; ``slow``: ms the host needs to go on."""
    passed = queued  # when the GPU passes the first event
    copied = max(LAUNCH, passed) + copy
    returned = copied + WAKE if blocks else LAUNCH
    settled = returned + SETTLE + slow
    return max(copied, settled) - passed, Call(returned, queued == 0.0, copied <= returned)


@pytest.mark.parametrize("slow", [0.0, 0.4])
@pytest.mark.parametrize("copy", [0.002, 0.72, 3.0])
def test_a_blocking_copy_is_the_host_s_time_in_the_call(copy: float, slow: float) -> None:
    """All of it, and nothing of what the host does afterwards, however late it records the event."""
    between, call = timed_copy(copy, blocks=True, slow=slow)
    assert copied_ms(between, call) == pytest.approx(LAUNCH + copy + WAKE)


def test_waiting_for_earlier_work_is_no_copying() -> None:
    """A call that blocks until the GPU is through with a step's work took so long for that, not for its copy."""
    between, call = timed_copy(0.72, blocks=True, queued=25.0)
    assert call.ms > 25.7
    assert copied_ms(between, call) == pytest.approx(0.72 + WAKE + SETTLE)


@pytest.mark.parametrize("queued", [0.0, 5.0])
@pytest.mark.parametrize("copy", [0.3, 0.72, 3.0])
def test_a_copy_that_goes_on_is_the_gpu_s_time(copy: float, queued: float) -> None:
    """Launching is the host's, and an idle GPU's waiting for that is no copying."""
    between, call = timed_copy(copy, blocks=False, queued=queued)
    assert copied_ms(between, call) == pytest.approx(copy)


def test_pageable_memory_is_copied_inside_the_call_mostly() -> None:
    """A copy that was not to block, from memory that makes it: the call holds the host up, and little goes on after."""
    assert copied_ms(2.95, Call(2.9, idle=True, over=False)) == pytest.approx(2.9)
