"""Loops whose model, or whose step, torch.compile has compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hindmost import ring

from tests.torch.loops import alone

if TYPE_CHECKING:
    from collections.abc import Callable

    Train = Callable[..., dict[int, Any]]  # conftest.py: rank -> Trace

pytestmark = pytest.mark.torch


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
