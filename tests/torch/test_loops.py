"""Loops that people write themselves, and batches that a thread fetches ahead: whose step is whose."""

import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hindmost import ring

from tests.torch.conftest import Trace, run
from tests.torch.loops import LOOPS, alone

Train = Callable[..., dict[int, Any]]  # conftest.py: rank -> Trace

pytestmark = pytest.mark.torch


def test_accumulation_evaluation_and_checkpoints_are_separate(train: Train, tmp_path: Path) -> None:
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
    (trace,) = train(textwrap.dedent(script), ranks=1, ends=-9).values()
    assert trace.count(ring.STEP) == {"train": 8 + 4}
    assert trace.count(ring.PHASE)["optimizer"] == 8 + 5
    assert [(event.kind, event.seq) for event in trace.open] == [(ring.STEP, 12)]
    assert not trace.closed


#: Another thread takes the loader's batches: ``batch``, until there is none.
FETCHED = """
    import queue, threading
    ready = queue.Queue(2)
    def fetch():
        for batch in loader:
            ready.put(batch)
        ready.put(None)
    threading.Thread(target=fetch).start()
    while (batch := ready.get()) is not None:
"""
DISTRIBUTED = """
    if "RANK" in __import__("os").environ:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
"""
TRAINS = """
        x, y = batch
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_batches_may_be_fetched_ahead_by_a_thread(train: Train, ranks: int) -> None:
    """The steps are those of the thread that trains, and none of the other's fetches is inside them."""
    traces = train(textwrap.dedent(LOOPS + DISTRIBUTED + FETCHED + TRAINS), ranks=ranks)
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
        FETCHED
        + """
        import hindmost
        with hindmost.step(), torch.no_grad():
            with hindmost.phase("forward"):
                model(batch[0])
    """,
    )
    assert trace.count(ring.STEP) == {"train": 8}
    assert trace.count(ring.PHASE)["forward"] == 8


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


SCRIPT = (
    LOOPS
    + """
    import torch._dynamo
    from torch._dynamo.utils import counters
    compiled = torch.compile(model, backend="aot_eager")
    for x, y in loader:
        criterion(compiled(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not counters["graph_break"], counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1, counters["stats"]
    with torch.no_grad():
        for x, y in held_out:
            model(x)
    torch._dynamo.reset()
    counters.clear()
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
    """
)


@pytest.fixture(scope="module", params=[True, False], ids=["c", "python"])
def trace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """What one rank recorded of eight steps of a compiled model, two batches of evaluation, and eight of the function.

    As plain Python: torch's compiler is imported after the probe.
    """
    folder = tmp_path_factory.mktemp("compiled")
    return run(folder, textwrap.dedent(SCRIPT), ranks=1, by="python", native=request.param)[0]


def steps(trace: Trace) -> tuple[list[ring.Event], list[ring.Event]]:
    """Those before the evaluation, and those after it."""
    between = trace.of(ring.STEP, "eval")[0].start_ns
    trained = trace.of(ring.STEP, "train")
    return [e for e in trained if e.start_ns < between], [e for e in trained if e.start_ns > between]


def phases(trace: Trace, inside: list[ring.Event]) -> Counter[str]:
    """How many phases of a name are in these steps."""
    begin, end = inside[0].start_ns, inside[-1].start_ns + inside[-1].duration_ns
    return Counter(e.name for e in trace.events if e.kind == ring.PHASE and begin <= e.start_ns < end)


def test_compiled_models_train_alike(trace: Trace) -> None:
    """A compiled model's steps are recognised, and hooks break neither its graph nor the compiler's."""
    modelled, _ = steps(trace)
    seen = phases(trace, modelled)
    assert {seen[name] for name in ("input", "forward", "backward", "optimizer")} == {8}
    assert [event.value for event in modelled] == [8] * 8


def test_a_compiled_function_may_call_backward(trace: Trace) -> None:
    """The hooked function breaks the graph once, as torch's own does, and computes the same."""
    _, called = steps(trace)
    assert len(called) == 8
    assert phases(trace, called)["backward"] == 8
