"""What the ranks of a job do in a step: instructions of their hosts, in order.

Ranks with the same instructions are one stage. Only pipelines have several.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from two_lanes.job import Array, Job


@dataclass(frozen=True)
class Fetch:
    """The host takes its next batch."""


@dataclass(frozen=True)
class Copy:
    """The batch is copied from pageable memory: the host waits for it, and so for all its GPU was given before."""


@dataclass(frozen=True)
class Kernels:
    """The host launches kernels in a phase: its and the GPU's ms, and how many launches."""

    phase: str
    host: float
    gpu: float
    launches: int
    slot: int


@dataclass(frozen=True)
class Meet:
    """A collective of a kind of group. Kernels after an ``inside`` one need its result. ``host``: no GPU takes part."""

    kind: str
    op: str
    transfer: float
    size: int
    inside: bool = False
    host: bool = False


@dataclass(frozen=True)
class Join:
    """Kernels after it need the results of all collectives."""


@dataclass(frozen=True)
class Wait:
    """The host waits for its GPU."""


@dataclass(frozen=True)
class Send:
    """To another stage; ``tag`` says what."""

    stage: int
    tag: tuple[str, int, int]


@dataclass(frozen=True)
class Receive:
    """From another stage."""

    stage: int
    tag: tuple[str, int, int]


Instruction: TypeAlias = "Fetch | Copy | Kernels | Meet | Join | Wait | Send | Receive"

#: Shares of forward, backward and optimizer in a step, of hosts and of GPUs.
HOST = {"forward": 0.35, "backward": 0.5, "optimizer": 0.15}
GPU = {"forward": 0.32, "backward": 0.62, "optimizer": 0.06}


def members(job: Job) -> dict[str, Array]:
    """Kind of communicator to the group of each rank."""
    ranks = np.arange(job.ranks)
    world = {"world": np.zeros(job.ranks, np.int64)}
    if job.shape in ("tensor", "moe"):
        return world | {"inner": ranks // job.groups, "data": ranks % job.groups}
    if job.shape == "pipeline":
        return world | {"data": stages(job)}
    return world


def stages(job: Job) -> Array:
    """[R] the stage of each rank: 0 but in pipelines."""
    replicas = job.ranks // job.groups
    return np.arange(job.ranks) // replicas if job.shape == "pipeline" else np.zeros(job.ranks, np.int64)


def training(job: Job, stage: int) -> list[Instruction]:
    if job.shape == "pipeline":
        return _pipeline(job, stage)
    if job.shape == "mpi":
        each = Kernels("forward", job.host / job.blocks, 0.0, 0, 0)
        found: list[Instruction] = []
        for block in range(job.blocks):
            found += [
                Kernels(each.phase, each.host, 0.0, 0, block),
                Meet("world", "all_reduce", job.transfer / job.blocks, 4096 + block, host=True),
            ]
        return found
    begin: list[Instruction] = [Fetch(), *([Copy()] if job.synchronises == "copy" else [])]
    found = []
    for batch in range(job.micro_batches):
        last = batch == job.micro_batches - 1
        found += [*begin, *_passes(job, 1 / job.micro_batches, reduces=last)]
    found += [Join(), _kernels(job, "optimizer", 1, 23)]
    return [*found, Wait()] if job.synchronises == "step" else found


def evaluating(job: Job) -> list[Instruction]:
    """One step of evaluation: forward only, and its loss is read."""
    count = job.blocks
    inside = {"fsdp": ("world", "all_gather"), "tensor": ("inner", "all_reduce"), "moe": ("inner", "all_to_all")}
    found: list[Instruction] = [Fetch()]
    for block in range(count):
        found.append(_kernels(job, "forward", 1 / count, block))
        if job.shape in inside:
            kind, op = inside[job.shape]
            found.append(Meet(kind, op, job.transfer / (3 * count), 1 << 20, inside=True))
    return [*found, Wait()]


def _passes(job: Job, share: float, *, reduces: bool) -> list[Instruction]:
    """Forward and backward; gradients are reduced while backward goes on, in the last micro-batch."""
    count, found = job.blocks, list[Instruction]()
    for block in range(count):
        found += _unit(job, "forward", share, block)
    for block in range(count):
        found += _unit(job, "backward", share, count + block)
        if reduces or job.shape == "fsdp":
            kind = "data" if job.shape in ("tensor", "moe") else "world"
            op = "reduce_scatter" if job.shape == "fsdp" else "all_reduce"
            found.append(Meet(kind, op, _gradients(job) / count, (32 << 20) + 1024 * block))
    return found


def _gradients(job: Job) -> float:
    """Ms of transfers of gradients in a step."""
    return job.transfer * {"ddp": 1.0, "fsdp": 1 / 3, "tensor": 0.4, "moe": 0.4}[job.shape]


def _unit(job: Job, phase: str, share: float, slot: int) -> list[Instruction]:
    """A block of layers: its kernels, and the collectives inside of it."""
    count, kernels = job.blocks, _kernels(job, phase, share / job.blocks, slot)
    if job.shape == "fsdp":
        return [Meet("world", "all_gather", job.transfer * share / (3 * count), 16 << 20, inside=True), kernels]
    if job.shape == "tensor":
        return [kernels, Meet("inner", "all_reduce", 0.3 * job.transfer * share / count, 8 << 20, inside=True)]
    if job.shape == "moe":  # tokens to their experts, and back
        half = Kernels(phase, kernels.host / 2, kernels.gpu / 2, max(kernels.launches // 2, 1), slot)
        meet = Meet("inner", "all_to_all", 0.15 * job.transfer * share / count, 8 << 20, inside=True)
        return [meet, half, meet, half]
    return [kernels]


def _kernels(job: Job, phase: str, share: float, slot: int) -> Kernels:
    launches = max(round(job.launches * HOST[phase] * share), 1)
    return Kernels(phase, job.host * HOST[phase] * share, job.gpu * GPU[phase] * share, launches, slot % 24)


def _pipeline(job: Job, stage: int) -> list[Instruction]:
    """One forward, one backward; with several chunks a stage, interleaved as Megatron-LM does."""
    count, chunks, batches = job.groups, job.chunks, job.micro_batches
    total, share = batches * chunks, 1 / (batches * chunks)
    warm = (count - stage - 1) * 2 + (chunks - 1) * count if chunks > 1 else count - stage - 1
    warm = min(total, warm)
    order = [("F", k) for k in range(warm)]
    for k in range(total - warm):
        order += [("F", warm + k), ("B", k)]
    order += [("B", k) for k in range(total - warm, total)]
    found: list[Instruction] = [Fetch()] if stage in (0, count - 1) else []
    for way, k in order:
        found += _chunk(job, stage, way, k, share)
    transfer = job.transfer
    found += [Meet("data", "all_reduce", 0.8 * transfer, 64 << 20), Meet("world", "all_reduce", 0.05 * transfer, 4)]
    found += [Join(), _kernels(job, "optimizer", 1, 23)]
    return [*found, Wait()] if job.synchronises == "step" else found


def _chunk(job: Job, stage: int, way: str, k: int, share: float) -> list[Instruction]:
    """The k-th forward or backward of a stage, with its receive and its send."""
    count, chunks = job.groups, job.chunks
    chunk = (k % (count * chunks)) // count if chunks > 1 else 0
    batch = (k // (count * chunks)) * count + k % count if chunks > 1 else k
    if way == "B":
        chunk = chunks - 1 - chunk
    place = chunk * count + stage  # of all chunks in the order of the model's layers
    step = 1 if way == "F" else -1
    before, after = place - step, place + step
    found: list[Instruction] = []
    if 0 <= before < count * chunks:
        found.append(Receive(before % count, (way, batch, place)))
    found.append(_kernels(job, "forward" if way == "F" else "backward", share, k))
    if 0 <= after < count * chunks:
        found.append(Send(after % count, (way, batch, after)))
    return found
