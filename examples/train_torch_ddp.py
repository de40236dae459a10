#!/usr/bin/env python3
"""Train a small image classifier with PyTorch DDP, on CPUs (gloo) or GPUs (NCCL), under torchrun or mpirun.

torchrun --nproc-per-node 4 examples/train_torch_ddp.py
mpirun -np 4 python examples/train_torch_ddp.py --slow-rank 2 --slow-ms 8 --slow-what input
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FAULTS = ("input", "compute", "sleep", "checkpoint")


class Pictures(Dataset):
    """Random pictures of ten classes; reading one takes ``delay`` seconds longer where a fault is injected."""

    def __init__(self, length: int, size: int) -> None:
        self.length, self.size = length, size
        self.delay = 0.0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.delay:
            time.sleep(self.delay)
        generator = torch.Generator().manual_seed(index)
        return torch.rand(3, self.size, self.size, generator=generator), index % 10


class Arithmetic:
    """Matrix products that take so many seconds of this device: more work, not a wait until some time has passed."""

    def __init__(self, seconds: float, device: torch.device) -> None:
        self.matrix = torch.rand((2048, 2048) if device.type == "cuda" else (128, 128), device=device) / 1024
        self.products = 1
        self.do()  # warm up
        self.products = 100
        took = self.time_gpu() if device.type == "cuda" else self.time_cpu()
        self.products = max(1, round(seconds * self.products / took))

    def do(self) -> None:
        for _ in range(self.products):
            self.matrix = (self.matrix @ self.matrix).clamp_(0, 1e-3)

    def time_cpu(self) -> float:
        start = time.process_time()
        self.do()
        return time.process_time() - start

    def time_gpu(self) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        self.do()
        torch.cuda.synchronize()
        return time.perf_counter() - start


class Fault:
    """Makes one rank slow, from one step on, in one way."""

    def __init__(self, args: argparse.Namespace, rank: int, data: Pictures, device: torch.device) -> None:
        self.active = args.slow_rank == rank
        self.what, self.seconds, self.from_step = args.slow_what, args.slow_ms / 1e3, args.slow_from_step
        self.per_picture = self.seconds / args.batch_size
        self.data = data
        # Every rank calibrates, so that they start alike.
        self.extra = Arithmetic(self.seconds, device) if self.what == "compute" and args.slow_rank >= 0 else None

    def strike(self, step: int, where: str) -> None:
        """Called at each place of a step where a fault may be."""
        if not self.active or step < self.from_step:
            return
        if self.what == "input":
            self.data.delay = self.per_picture
        elif self.what == where == "compute" and self.extra is not None:
            self.extra.do()
        elif self.what == where:
            time.sleep(self.seconds)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=24)
    parser.add_argument("--width", type=int, default=16, help="channels of the first convolution")
    parser.add_argument("--workers", type=int, default=0, help="DataLoader workers of each rank")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--save-every", type=int, default=0, metavar="STEPS", help="0: no checkpoints")
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    parser.add_argument("--slow-rank", type=int, default=-1, help="the rank that gets the fault; -1: none")
    parser.add_argument("--slow-ms", type=float, default=4.0)
    parser.add_argument("--slow-what", choices=FAULTS, default="compute")
    parser.add_argument("--slow-from-step", type=int, default=0)
    return parser.parse_args()


def join_job() -> tuple[int, int]:
    """Rank and local rank, from the environment of torchrun, Open MPI or srun; joins the process group."""
    environ = os.environ
    for ours, default, *theirs in (
        ("RANK", "0", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"),
        ("WORLD_SIZE", "1", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"),
        ("LOCAL_RANK", "0", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
    ):
        environ.setdefault(ours, next((environ[name] for name in theirs if name in environ), default))
    environ.setdefault("MASTER_ADDR", "127.0.0.1")
    environ.setdefault("MASTER_PORT", "29511")
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return dist.get_rank(), int(environ["LOCAL_RANK"])


def build_model(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(2 * width * 16, 10),
    )


def train(args: argparse.Namespace, rank: int, device: torch.device) -> float:
    """The training loop; returns the last loss."""
    data = Pictures(args.steps * args.batch_size * dist.get_world_size(), args.image_size)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, args.batch_size, sampler=sampler, num_workers=args.workers, drop_last=True)
    model = DistributedDataParallel(
        build_model(args.width).to(device), device_ids=[device] if device.type == "cuda" else None
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    fault, loss = Fault(args, rank, data, device), torch.zeros(())
    for step, (pictures, labels) in enumerate(loader):
        fault.strike(step, "sleep")
        fault.strike(step, "compute")
        logits = model(pictures.to(device, non_blocking=True))
        loss = nn.functional.cross_entropy(logits, labels.to(device, non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.save_every and (step + 1) % args.save_every == 0 and rank == 0:
            fault.strike(step, "checkpoint")
            torch.save(model.module.state_dict(), args.checkpoint)
        if rank == 0 and step % 50 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)
    return loss.item()


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, local_rank = join_job()
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    started = time.perf_counter()
    loss = train(args, rank, device)
    if rank == 0:
        print(f"done: {args.steps} steps in {time.perf_counter() - started:.1f} s, loss {loss:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
