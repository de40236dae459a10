"""Training jobs as they are spread over ranks: replicated, sharded, and by hand tensor-parallel pairs and pipelines.

Each has about a hundred million parameters a rank on a GPU, and a few thousand on a CPU, where it is only tried. A job
knows nothing of hindmost; its steps carry the profiler's annotations: one ``forward``, which begins where there is a
batch, one or several ``backward``, and one ``optimizer``.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """A model in training: ``step`` is the whole of one."""

    def __init__(self, model: nn.Module, groups: dict[str, Any], synchronise: Callable[[], None] | None = None) -> None:
        self.model = model
        #: Those that it communicates in, by a word for each.
        self.groups = groups
        #: Whether it sends and receives.
        self.has_messages = False
        self._synchronise = synchronise
        self._optimizer = torch.optim.AdamW(model.parameters(), fused=CUDA)
        self.feed(8)

    def feed(self, size: int) -> None:
        """Train with batches of so many sequences from now on."""
        self.size = size
        self._batches = iter(DataLoader(Batches(size), batch_size=None, sampler=range(1 << 30)))

    def step(self) -> None:
        batch = next(self._batches)
        with record_function("forward"):
            loss = self.model(batch.to(device(), non_blocking=True)).square().mean()
        with record_function("backward"):
            loss.backward()
        with record_function("optimizer"):
            if self._synchronise:
                self._synchronise()
            self._optimizer.step()
        self._optimizer.zero_grad()


def device() -> torch.device:
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if CUDA else torch.device("cpu")


def settle() -> None:
    """Until the GPU has done all."""
    if CUDA:
        torch.cuda.synchronize()


def timed(job: Job, steps: int) -> float:
    """ms a step, the GPU's work included."""
    for _ in range(3):
        job.step()
    settle()
    start = time.perf_counter()
    for _ in range(steps):
        job.step()
    settle()
    return (time.perf_counter() - start) * 1e3 / steps


def fit(job: Job, target_ms: float, timed: Callable[[Job, int], float] = timed) -> float:
    """Have a step take about so long, on a GPU; ms that it takes. ``timed`` must tell all ranks of a job the same."""
    took = timed(job, 5)
    if CUDA:
        job.feed(max(1, round(job.size * target_ms / took)))
    return timed(job, 10)


def transformer() -> Any:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, max(1, WIDTH // 64), 4 * WIDTH, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).to(device())


def ddp() -> Job:
    """Replicated: all-reduces of buckets, which backward overlaps and waits for."""
    return Job(DistributedDataParallel(transformer()), {"all": dist.group.WORLD})


def fsdp() -> Job:
    """Sharded (FSDP2): all-gathers before each layer, forward and backward, and reduce-scatters after it."""
    mesh = init_device_mesh(device().type, (dist.get_world_size(),))
    model = transformer()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return Job(model, {"all": mesh.get_group()})


def tp_dp() -> Job:
    """Pairs of tensor-parallel ranks, replicated where there are several: layers and gradients reduced by hand."""
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([one, one + 1]) for one in range(0, world, 2)]
    groups = {"tensor": pairs[rank // 2]}
    if world > 2:
        groups["data"] = [dist.new_group(list(range(one, world, 2))) for one in range(2)][rank % 2]
    torch.manual_seed(rank)
    blocks = [HalfBlock(groups["tensor"]) for _ in range(LAYERS)]
    model = nn.Sequential(*blocks).to(device())

    def synchronise() -> None:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=groups["data"])

    return Job(model, groups, synchronise if "data" in groups else None)


class HalfBlock(nn.Module):
    """A rank's half of a block: its columns of the first matrix, its rows of the second, and a sum over the pair."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self._group = group
        self.up = nn.Linear(WIDTH, 8 * WIDTH, bias=False)
        self.down = nn.Linear(8 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = self.down(nn.functional.gelu(self.up(Copied.apply(x, self._group))))
        total: torch.Tensor = Summed.apply(half, self._group)
        return x + total


class Copied(torch.autograd.Function):
    """The same for all of a group, whose gradients are summed."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        context.group = group
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradients[0].contiguous()
        dist.all_reduce(total, group=context.group)
        return total, None


class Summed(torch.autograd.Function):
    """The sum over a group, whose gradient is everybody's."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


class Pipeline(Job):
    """A stage of two, whose steps are of several micro-batches: one forward ahead, then one back for each (1F1B).

    The first and the last message of a step are alone in their kernel; between them each kernel sends one and receives
    another.
    """

    MICRO_BATCHES = 4

    def __init__(self, model: nn.Module, peer: int, groups: dict[str, Any]) -> None:
        super().__init__(model, groups)
        self.has_messages = True
        self._peer, self._is_first = peer, dist.get_rank() < peer

    def feed(self, size: int) -> None:
        super().feed(max(1, round(size / self.MICRO_BATCHES)) * self.MICRO_BATCHES)

    def step(self) -> None:
        batch = next(self._batches)
        with record_function("forward"):
            micro = batch.to(device(), non_blocking=True).chunk(self.MICRO_BATCHES)
            given = self._forward(micro[0]) if self._is_first else None
            taken = self._exchange(given, None if self._is_first else micro[0])
        for following in (*micro[1:], None):
            if self._is_first:
                ahead, given = given, None if following is None else self._forward(following)
                self._backward(ahead, self._exchange(given, micro[0]))
            else:
                out = self._forward(taken)
                self._backward(out.square().mean())
                taken = self._exchange(taken.grad, following)
        with record_function("optimizer"):
            for group in self.groups.values():
                for parameter in self.model.parameters():
                    dist.all_reduce(parameter.grad, group=group)
            self._optimizer.step()
        self._optimizer.zero_grad()

    def _forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(x)
        return out

    def _backward(self, out: torch.Tensor, gradient: torch.Tensor | None = None) -> None:
        with record_function("backward"):
            out.backward(gradient)

    def _exchange(self, given: torch.Tensor | None, like: torch.Tensor | None) -> Any:
        """Send something, or nothing; receive what is like something, or nothing."""
        taken = None if like is None else torch.empty_like(like)
        messages = [dist.P2POp(dist.isend, given.detach(), self._peer)] if given is not None else []
        if taken is not None:
            messages.append(dist.P2POp(dist.irecv, taken, self._peer))
        for request in dist.batch_isend_irecv(messages) if messages else ():
            request.wait()
        return None if taken is None else taken.requires_grad_()


def pp_dp() -> Job:
    """Pipelines of two stages, replicated where there are several: activations and gradients sent by hand."""
    rank, world = dist.get_rank(), dist.get_world_size()
    groups = {"data": [dist.new_group(list(range(one, world, 2))) for one in range(2)][rank % 2]} if world > 2 else {}
    return Pipeline(transformer(), rank ^ 1, groups)


JOBS = {job.__name__: job for job in (ddp, fsdp, tp_dp, pp_dp)}
