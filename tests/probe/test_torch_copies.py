"""Which calls between a fetch and the model are taken for copies of the batch, where sys.monitoring tells of calls."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hindmost.probes import guard, torch_copies
from hindmost.recorder import Recorder

pytestmark = pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="needs Python 3.12: sys.monitoring is new there")


class Tensor(bytearray):
    """Stands for a tensor: its methods are C's, as a tensor's are. ``extend`` is taken for ``to``."""

    is_cuda = False


class OnGpu(Tensor):
    is_cuda = True


class Module:
    def __call__(self, x: Tensor) -> None:
        x.extend(b"the model's own")


TORCH: Any = SimpleNamespace(
    Tensor=SimpleNamespace(to=bytearray.extend, cuda=bytearray.append), nn=SimpleNamespace(Module=Module)
)


class Gpu:
    """Keeps all calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def copy_begins(self) -> None:
        self.calls.append("begins")

    def copy_ends(self, host_ns: int) -> None:
        assert 0 < host_ns < 1e9
        self.calls.append("ends")


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch, written_in: str) -> Iterator[Any]:
    ring: Any = SimpleNamespace(name=lambda text: 0)
    monkeypatch.setattr(guard, "undo", [])
    monkeypatch.setattr(torch_copies, "undo", guard.undo)
    made = torch_copies.install(TORCH, Recorder(ring), Gpu())  # type: ignore[arg-type]
    assert made is not None
    yield made
    guard.remove_all()


def move(x: Tensor) -> Tensor:
    x.extend(b"a")
    return x


def test_copies_of_the_loop_and_its_functions_are_seen(copies: Any) -> None:
    """A copy in the loop itself and one in a function it calls count; what the model does is the model's."""
    x = Tensor()
    copies.begin(sys._getframe())
    x.extend(b"a")
    move(x)
    Module()(x)
    x.extend(b"later")
    assert copies.gpu.calls == ["begins", "ends", "begins", "ends"]


def test_what_is_on_the_gpu_is_not_copied_to_it(copies: Any) -> None:
    """A conversion on the GPU is computing."""
    copies.begin(sys._getframe())
    OnGpu().extend(b"a")
    assert copies.gpu.calls == []


def test_a_copy_that_fails_ends(copies: Any) -> None:
    """The loop's exception is its own; the copy has ended all the same."""
    copies.begin(sys._getframe())
    with pytest.raises(TypeError):
        Tensor().extend(1)  # type: ignore[arg-type]
    assert copies.gpu.calls == ["begins", "ends"]


def test_nothing_is_watched_after_backward_began(copies: Any) -> None:
    """Once the window is over no code is instrumented any more."""
    copies.begin(sys._getframe())
    copies.end()
    Tensor().extend(b"a")
    assert copies.gpu.calls == []
    monitoring = sys.monitoring  # type: ignore[attr-defined]
    assert monitoring.get_local_events(copies.tool, move.__code__) == 0


def test_once_the_copying_thread_is_known_no_other_is_watched(copies: Any) -> None:
    """Long functions take long to instrument: only those that copy are, until none does or it is time to look."""
    for look in range(1, 2 * torch_copies.AGAIN + 1):
        copies.begin(sys._getframe())
        move(Tensor())
        assert (sys._getframe().f_code in copies.watched) is (look <= torch_copies.LEARNING or look % 16 == 0)
        assert move.__code__ in copies.watched
    assert copies.gpu.calls == ["begins", "ends"] * 2 * torch_copies.AGAIN
    copies.begin(sys._getframe())  # there is no copy
    copies.begin(sys._getframe())
    assert sys._getframe().f_code in copies.watched


def test_a_loop_that_copies_nothing_is_rarely_watched(copies: Any) -> None:
    """A batch that is made on the GPU costs no watching, but for a check now and then."""
    watched = 0
    for _ in range(10 * torch_copies.AGAIN):
        copies.begin(sys._getframe())
        watched += bool(copies.watched)
    assert watched == torch_copies.LEARNING + 10


def test_what_watching_takes_is_accounted_for(copies: Any) -> None:
    """Watched calls run outside the hooks; their time is the hooks' all the same, and decides how often to measure."""
    recorder = copies.recorder
    copies.begin(sys._getframe())
    before = recorder.own_ns, recorder.sampling.spent_ns
    move(Tensor())
    copies.account()
    after = recorder.own_ns, recorder.sampling.spent_ns
    assert after[0] - before[0] == after[1] - before[1] > 0


def test_where_no_tool_is_free_nothing_is_watched(copies: Any) -> None:
    """The ids of debuggers and profilers are left to them."""
    other = torch_copies.install(TORCH, copies.recorder, Gpu())  # type: ignore[arg-type]
    assert other is not None
    assert torch_copies.install(TORCH, copies.recorder, Gpu()) is None  # type: ignore[arg-type]
