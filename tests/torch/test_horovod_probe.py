"""The Horovod probe in real jobs: Horovod 0.28 with torch, over MPI and over gloo."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest
from hindmost import ring

if TYPE_CHECKING:
    from collections.abc import Callable

    Train = Callable[..., dict[int, Any]]  # conftest.py: rank -> Trace

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
    for epoch in range(2):
        for x, y in loader:
            if hvd.rank() == 1:
                time.sleep(0.02)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        hvd.allreduce(loss.detach(), name="loss")
"""


@pytest.mark.parametrize("by", ["mpirun", "horovodrun"])
def test_a_rank_that_computes_longer_is_waited_for(train: Train, by: str) -> None:
    """Each step has one wait for gradients, of one communicator and sequence; the slow rank's is the short one."""
    traces = train(SCRIPT, by=by)
    seen = []
    for rank in (0, 1):
        assert traces[rank].header.framework == "horovod"
        assert traces[rank].count(ring.STEP) == {"train": 20}
        phases = traces[rank].count(ring.PHASE)
        assert {phases["forward"], phases["backward"]} == {20}
        assert min(phases["input"], phases["optimizer"]) >= 20
        assert {event.value for event in traces[rank].of(ring.STEP, "train")} == {16}
        seen.append([(event.name, event.comm_id, event.seq) for event in traces[rank].events if event.kind == 3])
    assert seen[0] == seen[1]
    assert len([name for name, *_ in seen[0] if name == "all_reduce"]) >= 22
    waits = [traces[rank].total_ms(ring.PHASE, "sync") for rank in (0, 1)]
    assert waits[0] > waits[1] + 15 * 15
