"""Training loops as people write them: what their scripts begin with, and the trace of one rank that runs one."""

import textwrap
from collections.abc import Callable
from typing import Any

Train = Callable[..., dict[int, Any]]  # conftest.py: rank -> Trace

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


def alone(train: Train, body: str) -> Any:
    """The trace of one rank, under plain Python, whose loop this is."""
    (trace,) = train(textwrap.dedent(LOOPS + body), ranks=1).values()
    return trace
