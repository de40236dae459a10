"""Ranks that a script starts itself, as scripts or by torch.multiprocessing: they name themselves."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hindmost import ring

Train = Callable[..., dict[int, Any]]  # conftest.py: rank -> Trace

pytestmark = pytest.mark.torch

#: A free port, and four steps of DDP as one of two ranks.
TRAINS = """
import atexit, os, socket, subprocess, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
def trains(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.rand(32, 8), torch.randint(0, 2, (32,)))
    for x, y in DataLoader(data, batch_size=8):
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model  # whose end races with gloo's threads, as the interpreter's does: docs/how-to/troubleshoot.md
"""


def test_scripts_that_a_script_starts_name_themselves(train: Train) -> None:
    """Ranks that are children of rank 0 and get their place as an argument are seen when they join the group."""
    script = """
rank = int(sys.argv[1]) if len(sys.argv) > 1 else 0
if rank == 0:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    other = subprocess.Popen([sys.executable, __file__, "1"])
model = trains(rank)
dist.barrier()
dist.barrier()  # twice: docs/how-to/troubleshoot.md
dist.destroy_process_group()
sys.exit(other.wait() if rank == 0 else 0)
"""
    traces = train(TRAINS + script, by="python")
    assert sorted(traces) == [0, 1]
    for trace in traces.values():
        assert trace.closed
        assert trace.count(ring.STEP) == {"train": 4}
        assert trace.count(ring.COLLECTIVE)["ddp_sync"] == 4


def test_ranks_that_a_script_starts_itself_name_themselves(train: Train) -> None:
    """Processes of torch.multiprocessing become ranks when they join a process group; their parent is none."""
    script = """
def work(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    model = trains(rank)
    # Ends as Python does, but for the interpreter's own end, in which torch aborts now and then, and for that of the
    # model, in which it hangs.
    atexit._run_exitfuncs()
    os._exit(0)
if __name__ == "__main__":
    mp.spawn(work, args=(free_port(),), nprocs=2)
"""
    traces = train(TRAINS + script, by="python")
    assert sorted(traces) == [0, 1]
    for trace in traces.values():
        assert (trace.header.world_size, trace.closed) == (2, True)
        assert trace.count(ring.STEP) == {"train": 4}
        assert trace.count(ring.COLLECTIVE)["ddp_sync"] == 4


def test_the_one_process_of_accelerate_launch_is_a_rank(tmp_path: Path) -> None:
    """``accelerate launch`` of one process sets no rank: the script that it starts is rank 0 of 1, and it is none."""
    pytest.importorskip("accelerate")
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "from accelerate import Accelerator\n"
        "from torch.utils.data import DataLoader, TensorDataset\n"
        "accelerator = Accelerator(cpu=True)\n"
        "model = torch.nn.Linear(8, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "loader = DataLoader(TensorDataset(torch.rand(320, 8)), batch_size=8)\n"
        "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
        "for (x,) in loader:\n"
        "    accelerator.backward(model(x).square().mean())\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    run = [sys.executable, "-m", "hindmost", "run", "--no-live", "--out", str(tmp_path / "run"), "--"]
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", str(script)]
    done = subprocess.run([*run, *launch], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert [one["rank"] for one in report["ranks"]] == [0]
    assert report["job"]["steps"] >= 38
