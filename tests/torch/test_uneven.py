"""A whole job under ``hindmost run`` whose batches differ in size from rank to rank.

Its verdict, uneven work, is shown by a recording of it (tests/scenarios).
"""

import random
import sys
import textwrap
from pathlib import Path

import pytest
from hindmost_collector.recordings.load import load

from tests.cluster.jobs import observe

pytestmark = pytest.mark.torch

#: Each rank's sequences are of random length; what a step computes grows with them.
JOB = """
    import random, torch, torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, Dataset
    class Texts(Dataset):
        def __init__(self, rank):
            draw = random.Random(rank)
            self.rows = [torch.randint(0, 100, (draw.choice([32, 256, 512, 1024]),)) for _ in range(64)]
        def __len__(self):
            return len(self.rows)
        def __getitem__(self, index):
            return {"input_ids": self.rows[index]}
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    width = 160
    model = nn.Sequential(nn.Embedding(100, width), nn.Linear(width, 8 * width), nn.ReLU(), nn.Linear(8 * width, 100))
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in DataLoader(Texts(dist.get_rank()), batch_size=1):
        tokens = batch["input_ids"]
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.barrier()  # twice: docs/how-to/troubleshoot.md
    dist.destroy_process_group()
"""


def test_steps_of_uneven_length_carry_their_tokens(tmp_path: Path) -> None:
    """Each step of each rank is recorded with the tokens that it had."""
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(JOB))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run = observe(tmp_path / "run", *torchrun, str(script), OMP_NUM_THREADS="1")
    assert run.returncode == 0, run.stderr
    assert run.report["job"]["steps"] == 64
    steps = load(run.out).steps
    for rank in (0, 1):
        draw = random.Random(rank)  # noqa: S311 - as the job does
        tokens = [draw.choice([32, 256, 512, 1024]) for _ in range(64)]
        assert steps["work"][steps["rank"] == rank].tolist() == tokens
