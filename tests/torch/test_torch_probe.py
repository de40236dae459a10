"""The torch probe in real jobs on CPU: torchrun and mpirun with gloo, everything seen through the rings."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hindmost import ring
from hindmost_agent.fold import Fold, is_amount

if TYPE_CHECKING:
    from collections.abc import Callable

    Train = Callable[..., dict[int, Any]]  # conftest.py: rank -> Trace

pytestmark = pytest.mark.torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_torch_ddp.py"


@pytest.mark.parametrize("by", ["torchrun", "mpirun", "srun"])
def test_ddp_on_gloo_shows_steps_phases_and_who_waits(train: Train, by: str) -> None:
    """Every step has its phases; the rank whose input is slow waits for input, and its peer waits for it."""
    traces = train(EXAMPLE, "--steps", "20", "--slow-rank", "1", "--slow-what", "input", "--slow-ms", "20", by=by)
    assert sorted(traces) == [0, 1]
    for rank in (0, 1):
        assert traces[rank].count(ring.STEP) == {"train": 20}
        seen = traces[rank].count(ring.PHASE)
        assert {seen[name] for name in ("input", "forward", "backward", "optimizer", "sync")} == {20}
        assert seen["cpu"] >= 2
        assert traces[rank].count(ring.COLLECTIVE)["ddp_sync"] == 20
        assert {event.value for event in traces[rank].events if event.kind == ring.STEP} == {16}
    assert traces[1].total_ms(ring.PHASE, "input") > traces[0].total_ms(ring.PHASE, "input") + 17 * 15
    waits = [traces[rank].total_ms(ring.COLLECTIVE, "ddp_sync") for rank in (0, 1)]
    assert waits[0] > waits[1] + 17 * 15
    syncs = [
        [(event.comm_id, event.seq, event.value) for event in traces[rank].of(ring.COLLECTIVE, "ddp_sync")]
        for rank in (0, 1)
    ]
    assert syncs[0] == syncs[1], "both ranks name the communicator and its operations alike"
    assert [seq for _, seq, _ in syncs[0]] == list(range(20))
    assert syncs[0][0][0] != 0
    assert syncs[0][0][2] > 1000, "the bytes of all gradients"


@pytest.mark.parametrize("native", [True, False], ids=["c", "python"])
def test_waiting_in_backward_is_no_part_of_it(train: Train, native: bool) -> None:
    """What DDP waits for within backward is the phase sync, and not backward's, too: phases fit into their step."""
    options = ("--steps", "12", "--slow-rank", "1", "--slow-what", "input", "--slow-ms", "20")
    waits, fold = train(EXAMPLE, *options, native=native)[0], Fold()
    fold.feed(waits.events)
    rows = fold.take().steps[3:]
    assert len(rows) == 9
    for row in rows:
        assert sum(ns for name, ns in row.phases.items() if not is_amount(name)) <= row.duration_ns
        assert row.phases["sync"] > row.phases["backward"]


LOOPS = """
    import sys, torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    data = TensorDataset(torch.rand(64, 8), torch.randint(0, 2, (64,)))
    loader = DataLoader(data, batch_size=8)
    held_out = DataLoader(TensorDataset(*data[:16]), batch_size=8)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters())
"""


def alone(train: Train, body: str, *, native: bool = True) -> Any:
    """The trace of one rank, under plain Python, whose loop this is."""
    (trace,) = train(textwrap.dedent(LOOPS + body), ranks=1, by="python", native=native).values()
    return trace


def test_accumulation_evaluation_and_checkpoints_are_told_apart(train: Train, tmp_path: Path) -> None:
    """Four batches a step are one step of their samples; evaluation has steps of its own; a save is a checkpoint."""
    trace = alone(
        train,
        f"""
    for epoch in range(2):
        for index, (x, y) in enumerate(loader):
            criterion(model(x), y).backward()
            if index % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
        with torch.no_grad():
            for x, y in held_out:
                model(x)
        torch.save(model.state_dict(), {str(tmp_path / "model.pt")!r})
    """,
    )
    assert trace.count(ring.STEP) == {"train": 4, "eval": 4}
    assert {event.value for event in trace.of(ring.STEP, "train")} == {32}
    seen = trace.count(ring.PHASE)
    assert (seen["backward"], seen["optimizer"], seen["checkpoint"]) == (16, 4, 2)
    assert seen["forward"] == 16 + 4
    assert seen["input"] == 16 + 4
    assert (tmp_path / "model.pt").exists()


def test_a_rank_that_is_killed_leaves_all_its_steps(train: Train) -> None:
    """What the loop did up to SIGKILL is in the ring: the last step lacks only its end."""
    script = (
        LOOPS
        + """
    import os, signal
    for x, y in loader:
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    for index, (x, y) in enumerate(loader):
        criterion(model(x), y).backward()
        optimizer.step()
        if index == 4:
            os.kill(os.getpid(), signal.SIGKILL)
    """
    )
    (trace,) = train(textwrap.dedent(script), ranks=1, by="python", ends=-9).values()
    assert trace.count(ring.STEP) == {"train": 8 + 4}
    assert trace.count(ring.PHASE)["optimizer"] == 8 + 5
    assert [(event.kind, event.seq) for event in trace.open] == [(ring.STEP, 12)]
    assert not trace.closed


@pytest.mark.parametrize("native", [True, False], ids=["c", "python"])
def test_compiled_models_train_alike(train: Train, native: bool) -> None:
    """A compiled model's steps are recognised, and hooks break neither its graph nor the compiler's."""
    trace = alone(
        train,
        """
    import torch._dynamo
    compiled = torch.compile(model, backend="aot_eager")
    for x, y in loader:
        criterion(compiled(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    counters = torch._dynamo.utils.counters
    assert not counters["graph_break"], counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1, counters["stats"]
    """,
        native=native,
    )
    assert trace.count(ring.STEP) == {"train": 8}
    assert {trace.count(ring.PHASE)[name] for name in ("input", "forward", "backward", "optimizer")} == {8}
    assert {event.value for event in trace.of(ring.STEP, "train")} == {8}


AHEAD = """
    import queue, threading
    if "RANK" in __import__("os").environ:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    ready = queue.Queue(2)
    def fetch():
        for batch in loader:
            ready.put(batch)
        ready.put(None)
    threading.Thread(target=fetch).start()
    while (batch := ready.get()) is not None:
        x, y = batch
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(("by", "ranks"), [("python", 1), ("torchrun", 2)])
def test_batches_may_be_fetched_ahead_by_a_thread(train: Train, by: str, ranks: int) -> None:
    """The steps are those of the thread that trains, and none of the other's fetches is inside them."""
    traces = train(textwrap.dedent(LOOPS + AHEAD), ranks=ranks, by=by)
    assert sorted(traces) == list(range(ranks))
    for trace in traces.values():
        assert trace.count(ring.STEP) == {"train": 8}
        seen = trace.count(ring.PHASE)
        assert (seen["backward"], seen["optimizer"]) == (8, 8)
        begin = trace.of(ring.STEP, "train")[0].start_ns
        assert not [event for event in trace.of(ring.PHASE, "input") if event.start_ns >= begin]
        assert trace.count(ring.COLLECTIVE).get("ddp_sync", 0) == (8 if ranks > 1 else 0)


def test_marks_and_a_thread_that_fetches_ahead(train: Train) -> None:
    """A loop without backward, whose batches another thread fetches, has the steps that it marks."""
    trace = alone(
        train,
        """
    import hindmost, queue, threading
    ready = queue.Queue(2)
    def fetch():
        for batch in loader:
            ready.put(batch)
        ready.put(None)
    threading.Thread(target=fetch).start()
    while (batch := ready.get()) is not None:
        with hindmost.step(), torch.no_grad():
            with hindmost.phase("forward"):
                model(batch[0])
    """,
    )
    assert trace.count(ring.STEP) == {"train": 8}
    assert trace.count(ring.PHASE)["forward"] == 8


@pytest.mark.parametrize("native", [True, False], ids=["c", "python"])
def test_a_compiled_function_may_call_backward(train: Train, native: bool) -> None:
    """The hooked function breaks the graph once, as torch's own does, and computes the same."""
    trace = alone(
        train,
        """
    from torch._dynamo.utils import counters
    def compiled(x, y):
        loss = criterion(model(x), y)
        torch.autograd.backward(loss)
        return loss * 2
    compiled = torch.compile(compiled, backend="eager")
    for x, y in loader:
        assert compiled(x, y) > 0
        optimizer.step()
        optimizer.zero_grad()
    assert sum(counters["graph_break"].values()) == 1, counters["graph_break"]
    """,
        native=native,
    )
    assert trace.count(ring.STEP) == {"train": 8}
    assert trace.count(ring.PHASE)["backward"] == 8


def test_several_optimizers_amp_and_closures(train: Train) -> None:
    """A step with two optimizers, one behind an AMP scaler and one with a closure, is one step."""
    trace = alone(
        train,
        """
    second = torch.optim.LBFGS(model.parameters(), max_iter=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for x, y in loader:
        with torch.autocast("cpu"):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        def closure():
            second.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            return loss
        second.step(closure)
    """,
    )
    assert trace.count(ring.STEP) == {"train": 8}
    seen = trace.count(ring.PHASE)
    assert (seen["input"], seen["optimizer"]) == (8, 16)
    assert seen["backward"] >= 2 * 8
    assert seen["forward"] >= 2 * 8


def test_no_sync_backwards_wait_for_nobody(train: Train, tmp_path: Path) -> None:
    """Only the last backward of a step under no_sync waits; garbage, evaluation and checkpoints are told apart."""
    script = (
        LOOPS
        + f"""
    import contextlib, gc, torch.distributed as dist
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
    for index, (x, y) in enumerate(loader):
        last = index % 2 == 1
        with contextlib.nullcontext() if last else model.no_sync():
            criterion(model(x), y).backward()
        if last:
            gc.collect()
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        for x, y in held_out:
            model(x)
    torch.save(model.state_dict(), {str(tmp_path)!r} + f"/{{dist.get_rank()}}.pt")
    dist.barrier()
    dist.barrier()  # twice: docs/troubleshooting.md
    dist.destroy_process_group()
    """
    )
    traces = train(textwrap.dedent(script))
    for rank in (0, 1):
        assert traces[rank].count(ring.STEP) == {"train": 4, "eval": 2}
        assert traces[rank].count(ring.COLLECTIVE)["ddp_sync"] == 4
        assert traces[rank].count(ring.PHASE)["checkpoint"] == 1
        assert traces[rank].count(ring.PHASE)["gc"] >= 4


def test_a_model_that_is_gone_is_not_held(train: Train) -> None:
    """Nothing of a DDP model outlives it: no parameter, and so no gradient; nor does the probe keep a note of it."""
    trace = alone(
        train,
        """
    import gc, weakref, torch.distributed as dist
    from hindmost.probes.guard import undo
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    kept = []
    for _ in range(3):
        model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2))
        parameters = [weakref.ref(parameter) for parameter in model.parameters()]
        for x, y in held_out:
            criterion(model(x), y).backward()
        del model
        gc.collect()
        assert [one for one in parameters if one() is not None] == []
        kept.append(len(undo))
    assert kept[0] == kept[2], kept
    """,
    )
    assert trace.count(ring.COLLECTIVE)["ddp_sync"] == 6


@pytest.mark.parametrize("native", [True, False], ids=["c", "python"])
def test_models_of_one_group_wait_once_a_backward(train: Train, native: bool) -> None:
    """Two DDP models trained in turns, as a GAN's: each backward is a synchronisation with one number on both ranks."""
    script = (
        LOOPS
        + """
    import time, torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    wrap = nn.parallel.DistributedDataParallel
    judge = wrap(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)))
    maker = wrap(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8)))
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (judge, maker)]
    for x, y in DataLoader(data, batch_size=4):
        if rank:
            time.sleep(0.02)
        optimizers[0].zero_grad()
        (judge(maker(x).detach()).mean() - judge(x).mean()).backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        (-judge(maker(x)).mean()).backward()
        optimizers[1].step()
    dist.barrier()
    dist.barrier()  # twice: docs/troubleshooting.md
    dist.destroy_process_group()
    """
    )
    traces = train(textwrap.dedent(script), native=native)
    for rank in (0, 1):
        syncs = traces[rank].of(ring.COLLECTIVE, "ddp_sync")
        assert [event.seq for event in syncs] == list(range(32))
        assert len({event.comm_id for event in syncs}) == 1
        assert traces[rank].count(ring.PHASE)["sync"] == 32
    first = {rank: traces[rank].of(ring.COLLECTIVE, "ddp_sync")[4::2] for rank in (0, 1)}
    late = [second.duration_ns < first.duration_ns for first, second in zip(first[0], first[1], strict=True)]
    assert sum(late) >= 12, "the rank that sleeps is waited for in the first backward of a step"


def test_a_branch_that_one_rank_leaves_out_shifts_no_number(train: Train) -> None:
    """A rank whose last parameter is unused for a backward still numbers the next one as its peers do."""
    script = (
        LOOPS
        + """
    import torch.distributed as dist
    dist.init_process_group("gloo")
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.seldom, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        def forward(self, x, both):
            return self.last(self.first(self.seldom(x) if both else x))
    model = nn.parallel.DistributedDataParallel(Branches(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for index, (x, y) in enumerate(loader):
        criterion(model(x, not (dist.get_rank() and index == 3)), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.barrier()  # twice: docs/troubleshooting.md
    dist.destroy_process_group()
    """
    )
    traces = train(textwrap.dedent(script))
    assert [event.seq for event in traces[0].of(ring.COLLECTIVE, "ddp_sync")] == list(range(8))
    assert [event.seq for event in traces[1].of(ring.COLLECTIVE, "ddp_sync")] == [0, 1, 2, 4, 5, 6, 7]


def test_collectives_called_by_hand_are_seen(train: Train, tmp_path: Path) -> None:
    """A loop that averages its gradients itself shows each call, alike on both ranks; nested calls are one."""
    script = (
        LOOPS
        + f"""
    import time, torch.distributed as dist, torch.distributed.checkpoint as checkpoint
    dist.init_process_group("gloo")
    for x, y in loader:
        time.sleep(0.02 * dist.get_rank())
        criterion(model(x), y).backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(flat)
        optimizer.step()
        optimizer.zero_grad()
    work = dist.all_reduce(flat, async_op=True)
    work.wait()
    gathered = [None, None]
    dist.all_gather_object(gathered, dist.get_rank())
    if dist.get_rank():
        dist.send(flat, 0)
    else:
        dist.recv(flat, src=1)
    checkpoint.save({{"model": model.state_dict()}}, checkpoint_id={str(tmp_path / "saved")!r})
    dist.barrier()
    dist.barrier()  # twice: docs/troubleshooting.md
    dist.destroy_process_group()
    """
    )
    traces = train(textwrap.dedent(script))
    for rank in (0, 1):
        started = next(one for one in traces[rank].of(ring.COLLECTIVE, "all_reduce") if one.flags == 2)
        (waited,) = traces[rank].of(ring.P2P, "wait")
        assert (waited.comm_id, waited.seq) == (started.comm_id, started.seq)
    seen = [[event[:3] + event[5:] for event in traces[r].events if event.kind == ring.COLLECTIVE] for r in (0, 1)]
    assert seen[0] == seen[1]
    assert traces[0].count(ring.COLLECTIVE)["all_reduce"] == 9
    assert traces[0].of(ring.COLLECTIVE, "all_reduce")[0].value == 4 * (8 * 8 + 8 + 8 * 2 + 2)
    assert [event.flags for event in traces[0].of(ring.COLLECTIVE, "all_reduce")][7:] == [0, 2]
    assert traces[0].count(ring.P2P) == {"recv": 1, "wait": 1}
    assert traces[1].count(ring.P2P) == {"send": 1, "wait": 1}
    assert traces[0].count(ring.PHASE)["checkpoint"] >= 1
    waits = [traces[rank].total_ms(ring.COLLECTIVE, "all_reduce") for rank in (0, 1)]
    assert waits[0] > waits[1] + 5 * 10
    assert traces[0].open == []
