"""A training loop that is hooked as torch's are, without torch and with a controlled clock."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hindmost import ring
from hindmost.identity import Identity
from hindmost.probes.torch_cuda import GpuPhases
from hindmost.probes.torch_hooks import Hooks
from hindmost.probes.torch_native import native_hooks
from hindmost.recorder import Recorder

from tests.probe.fake_cuda import FakeCuda


class Loop:
    """A loop of 40 us a step."""

    def __init__(self, directory: Path, written_in: str, cuda: FakeCuda | None = None) -> None:
        self.now = 1_000
        self.unit = 10_000
        self.gradients = True
        self.batch: Any = [SimpleNamespace(shape=(4, 2))]
        self.error: BaseException | None = None
        self.writer = ring.Writer.create(directory, Identity("job", 0, 1, 0, "node", "torch", "train.py"), "py", 16384)
        self.recorder = Recorder(self.writer, clock=lambda: self.now)
        self.recorder.sampling.usage = lambda: (self.now // 2, -1)
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


def steps(events: list[ring.Event], kind: str = "train") -> list[tuple[int, int]]:
    """Number and ns of each step of a kind."""
    return [(event.seq, event.duration_ns) for event in events if (event.kind, event.name) == (ring.STEP, kind)]
