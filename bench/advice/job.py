"""A job of PyTorch on CPUs whose size, reads and gradients are given: what ``bench/advice`` makes slow."""

from __future__ import annotations

import argparse
import mmap
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Files(torch.utils.data.Dataset[torch.Tensor]):
    """Batches of ``size`` bytes of a file, past the page cache; ready ones where there is no file."""

    def __init__(self, path: str, size: int, width: int, rows: int) -> None:
        self.path, self.size = path, size
        self.buffer = mmap.mmap(-1, size)  # of whole pages, as O_DIRECT wants
        self.ready = torch.rand(rows, width)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.path:
            file = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
            os.preadv(file, [self.buffer], index * self.size % os.fstat(file).st_size)
            os.close(file)
        return self.ready


def main() -> None:
    """Train for some seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--file", default="")
    parser.add_argument("--bytes", type=int, default=1 << 20)
    args = parser.parse_args()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    model: nn.Module = nn.Sequential(*(nn.Linear(args.width, args.width) for _ in range(args.layers)))
    model = DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    loader = torch.utils.data.DataLoader(Files(args.file, args.bytes, args.width, args.rows), batch_size=None)
    end = torch.tensor(time.monotonic() + args.seconds, dtype=torch.float64)
    if world > 1:
        dist.broadcast(end, 0)
    for step, batch in enumerate(loader):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 19:  # all ranks end in the same step
            over = torch.tensor(float(time.monotonic() > end))
            if world > 1:
                dist.broadcast(over, 0)
            if over:
                break
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
