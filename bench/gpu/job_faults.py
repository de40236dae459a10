"""What a rank of ``faulty_job.py`` does differently after the request: each fault by its real cause.

A fault of some ``share`` takes that part of a step's time more, as measured before it begins. hindmost gets no
information from here, and nothing here imports it.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from job_work import CUDA, SIZE, Batches, Products, mark, settle
from storage_faults import Scratch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

#: Steps between two stalls, checkpoints and evaluations, and in which one rank has its turn of being slow.
STALLS, SAVES, EVALUATES, TURN = 7, 20, 30, 80
#: Batches of an evaluation.
EVALUATED = 8
#: What a checkpoint stores besides weights: 32 MB, the order of the samples.
ORDER = 1 << 22


@dataclass
class Job:
    """What a fault has to do with: one rank's part of the training."""

    rank: int
    ranks: int
    culprit: int
    share: float
    room: Path
    data: Batches
    model: DistributedDataParallel
    device: torch.device
    step_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """By which each step of a slow rank is longer."""
        return self.share * self.step_seconds


class Fault:
    """No fault, or one from outside the job: what all have in common, which is when it begins."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.struck: int | None = None
        self.on = False
        self.mine = job.rank == job.culprit

    def measured(self, seconds: float) -> None:
        """The step time is known, and with it how much more is a share of it."""
        self.job.step_seconds = seconds
        if self.mine:
            self.prepare()

    def before(self, step: int) -> None:
        """Called before each step's batch is fetched: the strike says from which step on, to all ranks alike."""
        strike = self.job.room / "strike"
        if self.struck is None and strike.exists():
            self.struck = int(strike.read_text()) or step
        if self.struck is not None and step >= self.struck and not self.on:
            self.on = True
            if self.mine:
                self.tell(step)
            self.begin()

    def tell(self, step: int) -> None:
        told = {"time_ns": time.time_ns(), "step": step, "step_ms": self.job.step_seconds * 1e3}
        mark(self.job.room / "struck", told)

    def late(self, _step: int) -> bool:
        """Whether it acts in this step, on this rank."""
        return self.mine and self.on

    def every(self, step: int, steps: int) -> bool:
        return self.on and self.since(step) % steps == 0

    def since(self, step: int) -> int:
        return step - (self.struck or 0)

    def prepare(self) -> None:
        """On the culprit, in the first steps: what takes long to make."""

    def begin(self) -> None:
        """On every rank, in the step in which it begins there."""

    def within(self, step: int) -> None:
        """Called within each step, before forward."""

    def after(self, step: int) -> None:
        """Called when a step's optimizer has stepped."""


class Elsewhere(Fault):
    """Another process on the GPU, which says itself when it begins."""

    def tell(self, step: int) -> None:
        pass


class Computes(Fault):
    """More GPU work (on a CPU, more of that) before forward."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.products = Products(job.device)

    @property
    def count(self) -> int:
        return max(1, round(self.job.seconds / self.products.seconds))

    def within(self, step: int) -> None:
        if self.late(step):
            self.products.do(self.count)


class Stalls(Computes):
    """Now and then."""

    def late(self, step: int) -> bool:
        return self.mine and self.every(step, STALLS)


class TakesTurns(Computes):
    """For some steps, and then the next rank for as many, and so on."""

    def late(self, step: int) -> bool:
        turn = self.since(step) // TURN % 2
        return self.on and self.job.rank == (self.job.culprit + turn) % self.job.ranks


class ComputesInBackward(Computes):
    """In backward alone, a part in each layer's."""

    def begin(self) -> None:
        layers = self.job.model.module.layers
        count = max(1, round(self.count / len(layers)))
        for layer in layers if self.mine else ():
            layer.register_full_backward_hook(lambda *_: self.products.do(count))

    def within(self, step: int) -> None:
        pass


class SlowInput(Fault):
    def begin(self) -> None:
        if self.mine:
            self.job.data.delay = self.job.seconds


def wait_for_the_lost_file() -> None:
    """Where the hanging rank is: what a verdict must quote."""
    while True:
        time.sleep(1.0)


class Hangs(Fault):
    def within(self, step: int) -> None:
        if self.late(step):
            wait_for_the_lost_file()


class Diverges(Fault):
    """A collective that no other rank enters."""

    def within(self, step: int) -> None:
        if self.late(step):
            dist.broadcast(torch.zeros(1 << 20, device=self.job.device), src=0)


def cycles(count: int) -> list[Any]:
    """Objects that only the cyclic collector can free."""
    made: list[Any] = [[] for _ in range(count)]
    for one in made:
        one.append(one)
    return made


class Collects(Fault):
    """A heap of very many objects, which the collector has to go through in each step, for cycles that it frees."""

    #: Objects to time a collection with, and the most: below a gigabyte.
    TRIED, MOST = 200_000, 8_000_000

    def prepare(self) -> None:
        """Whatever else there is stays out of collections, so that only this heap's size decides what they take."""
        gc.collect()
        gc.freeze()
        gc.disable()
        self.heap = cycles(self.TRIED)
        took = min(self.collection() for _ in range(4))
        wanted = min(round(self.TRIED * self.job.seconds / took), self.MOST)
        self.heap += cycles(max(wanted - self.TRIED, 0))
        gc.collect()
        took = min(self.collection() for _ in range(3))  # more than in proportion, where caches do not hold it
        del self.heap[int(len(self.heap) * self.job.seconds / took) :]
        gc.collect()
        gc.enable()

    def collection(self) -> float:
        """Seconds of one that finds nothing to free."""
        start = time.perf_counter()
        gc.collect()
        return time.perf_counter() - start

    def within(self, step: int) -> None:
        if self.late(step):
            cycles(1000)
            gc.collect()


class Saves(Fault):
    """One rank keeps the weights of a layer now and then, as scripts have it: a plan, and no fault."""

    def after(self, step: int) -> None:
        if self.mine and self.every(step, SAVES):
            layers = self.job.model.module.layers[:1].state_dict()
            path = Scratch.folder(self.job.room) / "checkpoint.pt"
            torch.save({"step": step, "model": layers, "order": torch.arange(ORDER)}, path)


class Evaluates(Fault):
    """All ranks do so now and then, alike: a plan, and no fault."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.held_out = DataLoader(Batches(EVALUATED), batch_size=None)

    def after(self, step: int) -> None:
        if self.every(step, EVALUATES) and self.takes_part():
            model = self.job.model.module.eval()
            with torch.no_grad():
                for batch in self.held_out:
                    model(batch.to(self.job.device)).float().mean().item()
            model.train()

    def takes_part(self) -> bool:
        return True


class EvaluatesAlone(Evaluates):
    """One rank for all of them."""

    def takes_part(self) -> bool:
        return self.mine


class CopiesPageable(Fault):
    """Batches that are not pinned, and longer than what the model is given of them: the copy of each blocks."""

    #: Times its length, to time one copy with, and at most: below a gigabyte.
    TRIED, MOST = 4, 64

    def longer(self, times: int) -> torch.Tensor:
        sequences, length, width = SIZE[:3]
        return torch.full((sequences, times * length, width), 0.5, dtype=self.job.data.choice[0].dtype)

    def prepare(self) -> None:
        tried, took = self.longer(self.TRIED), []
        for _ in range(3):
            settle()
            start = time.perf_counter()
            tried.to(self.job.device)
            settle()
            took.append(time.perf_counter() - start)
        times = round(self.TRIED * self.job.seconds / min(took))
        self.batch = self.longer(min(max(times, 2), self.MOST))

    def begin(self) -> None:
        if self.mine:
            self.job.data.choice = [self.batch]


class UnevenLengths(Fault):
    """Each rank's batches have half to all of their length, at random: no rank is at fault."""

    def begin(self) -> None:
        whole = self.job.data.choice[0]
        lengths = range(SIZE[1] // 2, SIZE[1] + 1, SIZE[1] // 8)
        parts = [whole[:, :length].contiguous() for length in lengths]
        self.job.data.choice = [part.pin_memory() if CUDA else part for part in parts]


class _UsesStorage(Fault):
    def prepare(self) -> None:
        self.scratch = Scratch(self.job.room)
        self.ready()

    def ready(self) -> None:
        """What is to be found there."""


class Reads(_UsesStorage):
    """From a file that no cache holds, before forward, for as long as the share is."""

    def ready(self) -> None:
        self.scratch.check_reads()

    def within(self, step: int) -> None:
        if self.late(step):
            self.scratch.read(self.job.seconds)


class Writes(_UsesStorage):
    """To a file, and until it is on the disk, after the optimizer: a log that is kept whatever comes."""

    def ready(self) -> None:
        self.scratch.check_writes()

    def after(self, step: int) -> None:
        if self.late(step):
            self.scratch.write(self.job.seconds)


class LacksMemory(_UsesStorage):
    """Data mapped into memory, of which the limit that ``fault_run.py`` puts on the rank leaves room for a part."""

    def within(self, step: int) -> None:
        if self.late(step):
            self.scratch.touch(self.job.seconds)


FAULTS: dict[str, Callable[[Job], Fault]] = {
    "": Fault,
    "neighbour": Elsewhere,
    "starve": Fault,
    "compute": Computes,
    "stalls": Stalls,
    "turns": TakesTurns,
    "backward": ComputesInBackward,
    "input": SlowInput,
    "hang": Hangs,
    "mismatch": Diverges,
    "gc": Collects,
    "saves": Saves,
    "evaluates": Evaluates,
    "evaluates-alone": EvaluatesAlone,
    "pageable": CopiesPageable,
    "lengths": UnevenLengths,
    "reads": Reads,
    "writes": Writes,
    "memory": LacksMemory,
}
