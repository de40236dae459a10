"""A DDP model in training, of which ``guest_parts.py`` times steps: about a hundred million parameters on a GPU.

On a CPU it has a few thousand, and is only tried. It knows nothing of hindmost.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

CUDA = torch.cuda.is_available()
#: Width, layers and tokens of a sequence.
WIDTH, LAYERS, LENGTH = (2048, 3, 512) if CUDA else (32, 2, 8)


class Batches(Dataset[torch.Tensor]):
    """The same batch again and again, ready in pinned memory: making one is not what is measured."""

    def __init__(self, size: int) -> None:
        batch = torch.rand(size, LENGTH, WIDTH)
        self.batch = batch.pin_memory() if CUDA else batch

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.batch


class Job:
    """One process of the job, in its process group: ``step`` is the whole of a step."""

    def __init__(self) -> None:
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if CUDA else torch.device("cpu")
        torch.set_float32_matmul_precision("high")
        if CUDA:
            torch.cuda.set_device(self.device)
            dist.init_process_group("nccl", device_id=self.device)
        else:
            torch.set_num_threads(1)
            dist.init_process_group("gloo")
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(WIDTH, max(1, WIDTH // 64), 4 * WIDTH, batch_first=True, dropout=0.0)
        model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).to(self.device)
        self._model = DistributedDataParallel(model)
        self._optimizer = torch.optim.AdamW(model.parameters(), fused=CUDA)
        self.feed(8)

    def feed(self, size: int) -> None:
        """Train with batches of so many sequences from now on."""
        self.size = size
        self._batches = iter(DataLoader(Batches(size), batch_size=None, sampler=range(1 << 30)))

    def step(self) -> None:
        self._model(next(self._batches).to(self.device, non_blocking=True)).square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def settle(self) -> None:
        """Until the GPU has done all."""
        if CUDA:
            torch.cuda.synchronize()

    def mark(self) -> Any:
        """A moment in the stream of work, from which ``elapsed_time`` tells ms to another."""
        if not CUDA:
            return HostMark()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def timed(self, steps: int) -> float:
        """ms a step, the GPU's work included, of the slowest rank."""
        for _ in range(3):
            self.step()
        self.settle()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.settle()
        took = torch.tensor([(time.perf_counter() - start) * 1e3 / steps], device=self.device)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        return float(took)

    def fit(self, target_ms: float) -> float:
        """Have a step take about so long, on a GPU; ms that it takes."""
        took = self.timed(5)
        if CUDA:
            self.feed(max(1, round(self.size * target_ms / took)))
        return self.timed(10)


class HostMark:
    """Stands in for a CUDA event where there is no GPU."""

    def __init__(self) -> None:
        self.ns = time.perf_counter_ns()

    def elapsed_time(self, other: HostMark) -> float:
        return (other.ns - self.ns) / 1e6
