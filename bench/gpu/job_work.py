"""What ``faulty_job.py`` works on: ready batches, its model's size, and more work of a known time."""

import json
import os
import random
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset

CUDA = torch.cuda.is_available()
#: Sequences, their length, width and layers: enough for an H200 that a slow host does not set the pace, whose launches
#: took up to 45 ms a step; of 20 to 40 ms on a CPU core.
SIZE = (12, 512, 2048, 12) if CUDA else (4, 32, 128, 2)


class Batches(Dataset[torch.Tensor]):
    """Ready batches; fetching one takes ``delay`` seconds longer where a fault is injected."""

    def __init__(self, count: int = 1_000_000) -> None:
        self.count = count
        self.delay = 0.0
        batch = torch.rand(SIZE[:3], dtype=torch.bfloat16 if CUDA else torch.float32)
        self.choice = [batch.pin_memory() if CUDA else batch]
        self.random = random.Random(int(os.environ["RANK"]))  # noqa: S311, the same in every run

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.delay:
            time.sleep(self.delay)
        return self.random.choice(self.choice)


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


def mark(path: Path, content: object) -> None:
    """Write a file that is whole when it is there."""
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(content))
    partial.rename(path)
