"""The Horovod probe where no Horovod is needed: an elastic rank that moves, calls made of calls, and cycles."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hindmost import bootstrap, ring, stepping
from hindmost.identity import Identity
from hindmost.probes import guard, horovod_cycles
from hindmost.probes import horovod as probe
from hindmost.recorder import Recorder


class FakeHorovod(SimpleNamespace):
    """As much of horovod.torch as the probe touches; ``place`` is what init() finds."""

    def __init__(self) -> None:
        optimizer = type("_DistributedOptimizer", (), {"synchronize": lambda self: None})
        super().__init__(place=(0, 2), optimizer=SimpleNamespace(_DistributedOptimizer=optimizer))
        self.init = lambda: None
        self.elastic = SimpleNamespace(init=lambda: None)
        self.rank, self.size = (lambda: self.place[0]), (lambda: self.place[1])
        self.local_rank, self.is_initialized = self.rank, lambda: True
        self.allreduce = lambda value, process_set=None: value
        self.allreduce_async, self.synchronize = (lambda value: ("handle", value)), (lambda handle: handle[1])
        self.allgather = lambda value: [self.allreduce(value)]


@pytest.fixture
def horovod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Horovod, hooked, in a process that is rank 0 of 2."""
    monkeypatch.setenv("HINDMOST_ATTACHED", "")
    identity = Identity("job", 0, 2, 0, "node", "python", "train.py")
    writer = bootstrap.make_ring(tmp_path, identity)
    assert writer is not None
    recorder = Recorder(writer)
    recorder.change_rank = bootstrap.move
    stepping.attach(recorder)
    module = FakeHorovod()
    probe.install(module, recorder)  # type: ignore[arg-type]
    yield module
    bootstrap.stop()
    guard.remove_all()


@dataclass(eq=False)
class Tensor:
    """So many numbers of so many bytes."""

    count: int
    each: int

    def numel(self) -> int:
        return self.count

    def element_size(self) -> int:
        return self.each

    def is_floating_point(self) -> bool:
        return True


def sizes(directory: Path) -> list[tuple[str, int]]:
    (path,) = directory.glob("0.py.*.ring")
    reader = ring.Reader(path)
    found = [(event.name, event.value) for event in reader.poll() if event.kind == ring.COLLECTIVE]
    reader.close()
    return found


def test_a_call_has_the_bytes_of_what_it_was_given(horovod: Any, tmp_path: Path) -> None:
    """A tensor, tensors, named ones; at once or by a handle. What is no tensor has none."""
    one, two = Tensor(count=1000, each=4), Tensor(count=10, each=8)
    horovod.allreduce(one)
    horovod.allreduce([one, two])
    horovod.allreduce({"a": one, "b": two})
    horovod.allreduce([("a", two)])
    horovod.synchronize(horovod.allreduce_async(one))
    horovod.allreduce(3)
    assert [size for _, size in sizes(tmp_path)] == [4000, 4080, 4080, 80, 4000, 0]


@pytest.mark.parametrize(("compressor", "each"), [("NoneCompressor", 4), ("FP16Compressor", 2)])
def test_waiting_for_gradients_has_the_bytes_of_all(horovod: Any, tmp_path: Path, compressor: str, each: int) -> None:
    """As they are sent."""
    optimizer = horovod.optimizer._DistributedOptimizer()
    optimizer._requires_update = [Tensor(count=100, each=4), Tensor(count=5, each=4)]
    optimizer._compression = type(compressor, (), {})
    optimizer.synchronize()
    optimizer.synchronize()
    assert sizes(tmp_path) == [("all_reduce", 105 * each)] * 2


def test_a_new_optimizer_has_bytes_of_its_own(horovod: Any, tmp_path: Path) -> None:
    """Python may give it the place in memory, and so the id, of one that is gone."""
    for each in (4, 8, 2, 4):
        optimizer = horovod.optimizer._DistributedOptimizer()
        optimizer._requires_update = [Tensor(count=100, each=each)]
        optimizer.synchronize()
        del optimizer
    assert [size for _, size in sizes(tmp_path)] == [400, 800, 200, 400]


@pytest.mark.parametrize("names", [{"__hash__": None}, {"__slots__": ("_requires_update",)}])
def test_an_optimizer_that_cannot_be_remembered_has_bytes_too(names: dict[str, Any]) -> None:
    """Without a hash, or without a weak reference."""
    optimizer: Any = type("_DistributedOptimizer", (), names)()
    calls = probe.Calls(FakeHorovod(), Recorder.__new__(Recorder))
    for each in (4, 8):
        optimizer._requires_update = [Tensor(count=100, each=each)]
        assert calls._size_of(optimizer) == 100 * each


def events(directory: Path, rank: int) -> list[tuple[str, int]]:
    (path,) = directory.glob(f"{rank}.py.*.ring")
    reader = ring.Reader(path)
    found = [(event.name, event.seq) for event in reader.poll() if event.kind == ring.COLLECTIVE]
    reader.close()
    return found


def test_a_rank_that_moves_goes_on_in_another_ring(horovod: Any, tmp_path: Path) -> None:
    """When an elastic job gives this process another rank, what follows is that rank's, counted from 0."""
    horovod.init()
    horovod.allreduce(1)
    horovod.place = (1, 3)
    horovod.elastic.init()
    horovod.allreduce(1)
    assert events(tmp_path, 0) == [("all_reduce", 0)]
    assert events(tmp_path, 1) == [("all_reduce", 0)]
    (path,) = tmp_path.glob("1.py.*.ring")
    moved = ring.Reader(path)
    assert (moved.header.world_size, moved.communicators()[0].size) == (3, 3)
    moved.close()


def test_a_process_set_counts_for_itself(horovod: Any, tmp_path: Path) -> None:
    """What some ranks do among themselves does not put the others' calls out of step."""
    subset = SimpleNamespace(process_set_id=1, ranks=[0, 2])
    horovod.allreduce(1)
    assert horovod.allreduce(2, process_set=subset) == 2
    horovod.allreduce(3, process_set=SimpleNamespace(process_set_id=0, ranks=[0, 1]))
    assert events(tmp_path, 0) == [("all_reduce", 0), ("all_reduce", 0), ("all_reduce", 1)]
    (path,) = tmp_path.glob("0.py.*.ring")
    reader = ring.Reader(path)
    assert [(communicator.rank, communicator.size) for communicator in reader.communicators()] == [(0, 2), (0, 2)]
    assert len({communicator.id for communicator in reader.communicators()}) == 2
    reader.close()


def test_what_a_handle_stands_for_is_waited_for_once(horovod: Any, tmp_path: Path) -> None:
    """The wait is written when it is made, as the operation that the handle began; a handle of others is not known."""
    handle = horovod.allreduce_async(5)
    assert events(tmp_path, 0) == []
    assert horovod.synchronize(handle) == 5
    assert horovod.synchronize(handle) == 5
    assert events(tmp_path, 0) == [("all_reduce", 0)]


def test_a_call_made_of_calls_is_one(horovod: Any, tmp_path: Path) -> None:
    """Only the outermost of nested blocking calls is written, and an error leaves nothing in progress."""
    assert horovod.allgather(5) == [5]
    assert events(tmp_path, 0) == [("all_gather", 0)]
    with pytest.raises(TypeError):
        horovod.allreduce()
    (path,) = tmp_path.glob("0.py.*.ring")
    reader = ring.Reader(path)
    assert reader.open_records() == []
    reader.close()


MS = 1_000_000


def words(*began_ms: int, yielded_ms: int = 0, forgotten: int = 0) -> list[int]:
    """``struct hm_cycles`` after cycles that began at these times, and others before that are forgotten."""
    found = [0] * horovod_cycles.WORDS
    found[horovod_cycles.CYCLES] = forgotten + len(began_ms)
    found[horovod_cycles.YIELDED] = yielded_ms * MS
    for number, began in enumerate(began_ms, forgotten):
        found[horovod_cycles.BEGAN + number % horovod_cycles.KEPT] = began * MS
    return found


@pytest.mark.parametrize(
    ("yielded", "expected"),
    [
        pytest.param(118, 10 * MS, id="the cycle that ended the wait began 10 ms into it"),
        pytest.param(105, 0, id="the cycle had begun before the rank was ready"),
        pytest.param(95, 0, id="everything was done already: the thread last gave way before"),
    ],
)
def test_negotiation_ends_as_the_last_cycle_begins(yielded: int, expected: int) -> None:
    """What begins after the training thread found everything done has nothing to do with its wait."""
    cycles = horovod_cycles.Cycles(words(90, 99, 112, 121, yielded_ms=yielded))
    assert cycles.waited(102 * MS) == expected


def test_what_is_forgotten_is_not_measured() -> None:
    """Before the first cycle, and for a wait that ended before all cycles that are remembered."""
    assert horovod_cycles.Cycles(words()).waited(100 * MS) == horovod_cycles.UNMEASURED
    late = horovod_cycles.Cycles(words(*range(200, 264), forgotten=5))
    assert late.negotiation(100 * MS, 190 * MS) == horovod_cycles.UNMEASURED
    assert late.negotiation(100 * MS, 201 * MS) == 101 * MS


def test_cycles_are_counted_once_a_second() -> None:
    """Each account begins where the one before ended; the first only says where, and so does one after a new start."""
    table = words(1000, 1002)
    cycles = horovod_cycles.Cycles(table)
    assert cycles.account() is None
    table[:] = words(1500, forgotten=400)
    assert cycles.account() is None
    table[:] = words(2010, forgotten=900)
    assert cycles.account() == (1002 * MS, 1008 * MS, 899)
    assert cycles.account() is None
    table[:] = words(5000)
    assert cycles.account() is None


def test_the_time_between_two_threads_is_no_cycle() -> None:
    """An elastic job begins again with another thread: its cycles are counted from there."""
    table = words(1000)
    cycles = horovod_cycles.Cycles(table)
    cycles.account()
    table[:] = words(9000, forgotten=500)
    cycles.forget()
    assert cycles.account() is None
    table[:] = words(10_500, forgotten=1500)
    assert cycles.account() == (9000 * MS, 1500 * MS, 1000)
