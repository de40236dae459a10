"""A training job in which one rank goes wrong when told to: the job that ``live_faults.py`` observes.

Ranks are told by files in ``--room``: ``go`` (all are imported; join), ``strike`` (the fault begins; ``struck`` says
when), ``stop`` (the step after which to leave), ``quit`` (leave at once, whatever you are in). It imports no hindmost.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from collections.abc import Callable

CUDA = torch.cuda.is_available()
#: Tokens, width and layers: a step of 25 to 35 ms on an H200, of 20 to 40 ms on a CPU core.
SIZE = (6, 512, 2048, 12) if CUDA else (4, 32, 128, 2)
#: Steps over which the step time is measured, before which nothing strikes.
FROM, TO = 15, 30


class Batches(Dataset[torch.Tensor]):
    """Ready batches; fetching one takes ``delay`` seconds longer where a fault is injected."""

    def __init__(self) -> None:
        self.delay = 0.0
        batch = torch.rand(SIZE[:3], dtype=torch.bfloat16 if CUDA else torch.float32)
        self.batch = batch.pin_memory() if CUDA else batch

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.delay:
            time.sleep(self.delay)
        return self.batch


def settle() -> None:
    if CUDA:
        torch.cuda.synchronize()


class Products:
    """Matrix products: more work, whatever the time it takes."""

    def __init__(self, device: torch.device, side: int = 1024 if CUDA else 64) -> None:
        self.matrix = torch.rand((side, side), device=device) / side
        self.do(10)
        self.seconds = min(self.time(200) for _ in range(3))

    def time(self, count: int) -> float:
        settle()
        start = time.perf_counter()
        self.do(count)
        settle()
        return (time.perf_counter() - start) / count

    def do(self, count: int) -> None:
        for _ in range(count):
            self.matrix = (self.matrix @ self.matrix).clamp_(0, 1e-3)


def wait_for_the_lost_file() -> None:
    """Where the hanging rank is: what a verdict must quote."""
    while True:
        time.sleep(1.0)


class Fault:
    """What one rank does differently from the step after ``strike`` appears."""

    def __init__(self, args: argparse.Namespace, data: Batches, device: torch.device) -> None:
        self.kind, self.share, self.room = args.fault, args.share, args.room
        self.mine = args.rank == int(os.environ["RANK"])
        self.data, self.products, self.device = data, Products(device), device
        self.step_seconds = 0.0
        self.count = 0
        self.on = False

    def measured(self, seconds: float) -> None:
        """The step time is known: how much more is a share of it."""
        self.step_seconds = seconds
        self.count = max(1, round(self.share * seconds / self.products.seconds))

    def before(self, step: int) -> None:
        """Called before each step's batch is fetched."""
        if self.mine and not self.on and (self.room / "strike").exists():
            self.on = True
            if self.kind == "neighbour":
                return  # which says itself when it begins
            mark(self.room / "struck", {"time_ns": time.time_ns(), "step": step, "step_ms": self.step_seconds * 1e3})
            if self.kind == "input":
                self.data.delay = self.share * self.step_seconds

    def within(self) -> None:
        """Called within each step, before forward."""
        if not self.on:
            return
        if self.kind == "compute":
            self.products.do(self.count)
        elif self.kind == "hang":
            wait_for_the_lost_file()
        elif self.kind == "mismatch":
            dist.broadcast(torch.zeros(1 << 20, device=self.device), src=0)


def mark(path: Path, content: object) -> None:
    """Write a file that is whole when it is there."""
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(content))
    partial.rename(path)


def leave_when_told(room: Path) -> None:
    """A rank in a collective that never ends can only be ended from beside it."""
    while not (room / "quit").exists():
        time.sleep(0.1)
    os._exit(3)


def build(device: torch.device) -> DistributedDataParallel:
    _, _, width, layers = SIZE
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    model = model.to(device, torch.bfloat16 if CUDA else torch.float32)
    return DistributedDataParallel(model, device_ids=[device] if CUDA else None)


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Steps until told to stop."""
    torch.manual_seed(0)
    data = Batches()
    model = build(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=CUDA)
    fault = Fault(args, data, device)
    stop, told, began = args.room / "stop", 1 << 60, 0.0
    loader = iter(DataLoader(data, batch_size=None))
    with (args.room / "steps" if dist.get_rank() == 0 else Path(os.devnull)).open("a", buffering=1) as log:
        step = -1
        while step < told:
            step += 1
            if step in (FROM, TO):
                settle()
                began, took = time.perf_counter(), time.perf_counter() - began
                if step == TO:
                    fault.measured(took / (TO - FROM))
            if step > TO:
                fault.before(step)
            batch = next(loader)
            fault.within()
            model(batch.to(device, non_blocking=True)).float().pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            log.write(f"{step} {time.time_ns()}\n")
            if told == 1 << 60 and stop.exists():
                told = int(stop.read_text())
    settle()


def burn(args: argparse.Namespace) -> None:
    """Another process on the rank's GPU, busy from ``strike`` on."""
    while not (args.room / "go").exists():  # until then the GPU is another job's
        time.sleep(0.02)
    torch.cuda.set_device(args.rank)
    products = Products(torch.device("cuda", args.rank), 4096)
    while not (args.room / "strike").exists():
        time.sleep(0.02)
    mark(args.room / "struck", {"time_ns": time.time_ns()})
    while not any((args.room / end).exists() for end in ("stop", "quit")):
        products.do(20)
        settle()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--room", type=Path, required=True)
    parser.add_argument("--fault", default="")
    parser.add_argument("--share", type=float, default=0.0, help="of the step, by which the rank is slower")
    parser.add_argument("--rank", type=int, default=0, help="the rank that goes wrong")
    parser.add_argument("--burn", action="store_true", help="be the other process on the GPU of --rank")
    args = parser.parse_args()
    torch.set_num_threads(1)
    wait: Callable[[], bool] = (args.room / "go").exists
    if args.burn:
        return burn(args)
    (args.room / f"pid.{os.environ['RANK']}").write_text(str(os.getpid()))
    threading.Thread(target=leave_when_told, args=(args.room,), daemon=True).start()
    while not wait():
        time.sleep(0.02)
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if CUDA else torch.device("cpu")
    if CUDA:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if CUDA else "gloo")
    train(args, device)
    dist.barrier()
    dist.destroy_process_group()
    return None


if __name__ == "__main__":
    main()
