"""Plain DDP whose hosts set the pace: a GPT in eager mode at a small batch, or a conv net fed by hand.

``--model gpt`` is launch-bound: hundreds of small kernels a step. ``--model conv`` is input-bound: a ``DataLoader``
without workers prepares 64 images, and its batch norm has DDP broadcast buffers in each forward. With ``--sync step``
the loop reads the loss in every step; the conv net then also copies its batch from pageable memory, as most scripts do.
With ``--sync none`` no host waits for its GPU.

A fault is more host work: rank ``--slow-rank`` spins some ms a step, from ``--from-step`` on; the conv net's in
its data set, the GPT's before forward. Ranks join when a file ``go`` in ``--room`` says how many, and write there what
their hosts did. It imports no hindmost.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CUDA = torch.cuda.is_available()
WORDS = 512
#: Columns of the log: ns of CLOCK_MONOTONIC at which each ended, and the ns that the fault took.
COLUMNS = ("began", "fetched", "copied", "forward", "backward", "optimizer", "read", "spun")


class Size(NamedTuple):
    """How large the models and their batches are."""

    layers: int
    width: int
    length: int
    sequences: int
    images: int
    pixels: int
    channels: int


SIZE = Size(12, 768, 256, 2, 64, 96, 64) if CUDA else Size(2, 64, 32, 2, 16, 24, 8)


class Fault:
    """Host work that a healthy rank does not have."""

    def __init__(self, delay_ms: float) -> None:
        self.delay_ns = int(delay_ms * 1e6)
        self.on = False
        self.spun = 0

    def spin(self, parts: int = 1) -> None:
        """One of so many equal parts of a step's delay."""
        if not (self.on and self.delay_ns):
            return
        start = now = time.monotonic_ns()
        end = start + self.delay_ns // parts
        while now < end:
            now = time.monotonic_ns()
        self.spun += now - start


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Images that are cropped, turned and scaled one by one."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.raw = torch.randint(0, 256, (256, SIZE.pixels + 8, SIZE.pixels + 8, 3), dtype=torch.uint8)

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.fault.spin(SIZE.images)
        top, left, turned = (int(number) for number in torch.randint(0, 8, (3,)))
        image = self.raw[index % 256, top : top + SIZE.pixels, left : left + SIZE.pixels].permute(2, 0, 1)
        image = (image.float() / 255 - 0.45) / 0.22
        return (image.flip(2) if turned % 2 else image).contiguous(), index % 10


class Texts(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Sequences of random words."""

    def __init__(self) -> None:
        self.words = torch.randint(0, WORDS, (64, SIZE.length + 1))

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        words = self.words[index % 64]
        return words[:-1], words[1:]


class Block(nn.Module):
    """Attention and an MLP, each op a launch of its own."""

    def __init__(self) -> None:
        super().__init__()
        width = SIZE.width
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.keys, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = (part.view(batch, length, -1, 32).transpose(1, 2) for part in self.keys(self.before(x)).chunk(3, -1))
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.between(x))


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, SIZE.width), nn.Embedding(SIZE.length, SIZE.width)
        self.blocks = nn.Sequential(*(Block() for _ in range(SIZE.layers)))
        self.head = nn.Sequential(nn.LayerNorm(SIZE.width), nn.Linear(SIZE.width, WORDS))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        places = torch.arange(words.shape[1], device=words.device)
        return self.head(self.blocks(self.words(words) + self.places(places))).flatten(0, 1)


def conv_net() -> nn.Module:
    """Six layers of convolution, batch norm and ReLU."""
    layers: list[nn.Module] = []
    before = 3
    for number in range(6):
        channels = SIZE.channels << number // 2
        convolution = nn.Conv2d(before, channels, 3, stride=1 + number % 2, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def train(args: argparse.Namespace, delay_ms: float, device: torch.device) -> list[list[int]]:
    """The log, a row a step."""
    torch.manual_seed(dist.get_rank())
    gpt, synced = args.model == "gpt", args.sync == "step"
    fault = Fault(delay_ms if dist.get_rank() == args.slow_rank else 0.0)
    data = Texts() if gpt else Images(fault)
    loader = DataLoader(data, batch_size=SIZE.sequences if gpt else SIZE.images, sampler=DistributedSampler(data))
    pinned = CUDA and (gpt or not synced)
    model = DistributedDataParallel((Gpt() if gpt else conv_net()).to(device), device_ids=[device] if CUDA else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    log: list[list[int]] = []
    batches = iter(loader)
    now = time.monotonic_ns
    for step in range(args.steps):
        began = now()
        fault.on, fault.spun = step >= args.from_step, 0
        inputs, labels = next(batches)
        fetched = now()
        if pinned:
            inputs, labels = inputs.pin_memory(), labels.pin_memory()
        inputs, labels = (one.to(device, non_blocking=pinned) for one in (inputs, labels))
        copied = now()
        if gpt:
            fault.spin()
        with torch.autocast(device.type, torch.bfloat16, enabled=CUDA and gpt):
            loss = functional.cross_entropy(model(inputs), labels.flatten())
        forward = now()
        loss.backward()
        backward = now()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        optimized = now()
        if synced:
            loss.item()
        log.append([began, fetched, copied, forward, backward, optimized, now(), fault.spun])
    return log


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=("gpt", "conv"), default="gpt")
    parser.add_argument("--sync", choices=("none", "step"), default="none")
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--from-step", type=int, default=0)
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--room", type=Path, required=True, help="a folder, for what each rank's host did")
    args = parser.parse_args()
    torch.set_num_threads(1)
    while not (args.room / "go").exists():
        time.sleep(0.01)
    delay_ms = float((args.room / "go").read_text())
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # it waited on few
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if CUDA else torch.device("cpu")
    if CUDA:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if CUDA else "gloo")
    log = train(args, delay_ms, device)
    if CUDA:
        torch.cuda.synchronize()
    (args.room / f"rank{dist.get_rank()}.json").write_text(json.dumps({"columns": COLUMNS, "rows": log}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
