"""Loops whose model, or whose step, torch.compile has compiled."""

import textwrap
from collections import Counter

import pytest
from hindmost import ring

from tests.torch.conftest import Trace, run
from tests.torch.loops import LOOPS

pytestmark = pytest.mark.torch

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
