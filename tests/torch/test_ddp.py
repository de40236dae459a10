"""What is one synchronisation of DistributedDataParallel, and what the probe keeps of a model."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hindmost import ring

from tests.torch.loops import LOOPS, alone

Train = Callable[..., dict[int, Any]]  # conftest.py: rank -> Trace

pytestmark = pytest.mark.torch


def test_no_sync_backwards_do_not_wait(train: Train, tmp_path: Path) -> None:
    """Only the last backward of a step under no_sync waits; garbage, evaluation and checkpoints are separate."""
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
    dist.barrier()  # twice: docs/how-to/troubleshoot.md
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
    dist.barrier()  # twice: docs/how-to/troubleshoot.md
    dist.destroy_process_group()
    """
    )
    traces = train(textwrap.dedent(script))
    assert [event.seq for event in traces[0].of(ring.COLLECTIVE, "ddp_sync")] == list(range(8))
    assert [event.seq for event in traces[1].of(ring.COLLECTIVE, "ddp_sync")] == [0, 1, 2, 4, 5, 6, 7]
