"""Hosts and GPUs of all ranks: two lanes a rank, each with a clock.

A host runs its instructions in order; its GPU runs what was launched, later. They meet where the host waits for its
GPU, and where its launch queue is full. Ranks meet in collectives and messages. A stage is a generator over vectors of
its ranks; it yields where it needs what another stage has not done yet (a Kahn network: the order of evaluation
changes nothing).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from two_lanes import programs
from two_lanes.job import Array, Fault, Job
from two_lanes.noise import Draws
from two_lanes.programs import Copy, Fetch, Instruction, Join, Kernels, Meet, Receive, Send, Wait

#: A GPU takes about 1,024 launches that it has not begun; then the next launch blocks.
QUEUE = 1_000
#: From a launch to its kernel's begin, a host's part of launching a collective, and a batch's copy; ms.
LATENCY, LAUNCH, COPY = 0.008, 0.03, 0.4
#: A worker loads so many batches ahead of the loop.
PREFETCH = 2


@dataclass
class Call:
    """One operation of the ranks of a stage: when hosts enqueued it, and when it ran; ms, [n] each."""

    step: int
    kind: str
    op: str
    size: int
    ranks: Array
    enqueued: Array
    start: Array
    end: Array
    peers: Array | None = None


@dataclass
class Step:
    """One step of the ranks of a stage; ms, [n] each. ``waited``: what its host waited for its GPU, by phase."""

    step: int
    kind: str
    ranks: Array
    begin: Array
    end: Array
    fetched: Array
    issued: Array
    phases: dict[str, Array]
    gpu: dict[str, Array]
    waited: dict[str, Array]
    queued: Array


@dataclass
class History:
    calls: list[Call] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def end(self) -> float:
        """Ms from the run's begin to when the last GPU or host ended its last step."""
        ends = [*(call.end for call in self.calls), *(step.end for step in self.steps)]
        return max(float(end.max()) for end in ends)


def run(job: Job, draws: Draws, faults: Sequence[Fault]) -> History:
    machine = _Machine(job, draws, faults)
    waiting = deque(iter(stage) for stage in machine.stages)
    idle = 0
    while waiting:
        lane = waiting.popleft()
        before = machine.progress
        if next(lane, None) is not None:
            waiting.append(lane)
            idle = idle + 1 if machine.progress == before else 0
            assert idle <= len(waiting), "the stages wait for each other"
        else:
            idle = 0
    return machine.history


class _Machine:
    """What stages share: draws, faults, where ranks meet, what was sent."""

    def __init__(self, job: Job, draws: Draws, faults: Sequence[Fault]) -> None:
        self.job, self.draws, self.history, self.progress = job, draws, History(), 0
        self.groups = programs.members(job)
        self.extra: dict[tuple[str, str], Array] = defaultdict(lambda: np.zeros((job.steps, job.ranks)))  # of faults
        for fault in faults:
            self.extra[fault.lane, fault.phase][np.ix_(acting(job, fault), np.array(fault.ranks))] += fault.ms
        self.arrived: dict[tuple[str, int], Array] = {}
        self.mates: dict[tuple[str, int], tuple[Array, Array, Array]] = {}
        self.sent: dict[tuple[int, int, int, tuple[str, int, int]], Call] = {}
        each = programs.stages(job)
        self.stages = [_Stage(self, int(stage), np.flatnonzero(each == stage)) for stage in np.unique(each)]

    def meet(self, kind: str, number: int, ranks: Array, arrives: Array) -> Array | None:
        """[n] when all members of each rank's group have come; ``None`` while one of another stage has not."""
        if (kind, number) not in self.arrived:
            self.arrived[kind, number] = np.full(self.job.ranks, np.nan)
        times = self.arrived[kind, number]
        times[ranks] = arrives
        members, begins, own = self._mates(kind, int(ranks[0]), ranks)
        if np.isnan(came := times[members]).any():
            return None
        return np.asarray(np.maximum.reduceat(came, begins)[own])

    def _mates(self, kind: str, stage: int, ranks: Array) -> tuple[Array, Array, Array]:
        """Members of the groups of a stage's ranks, one group after the other; where each begins; each rank's group."""
        if (kind, stage) not in self.mates:
            groups = self.groups[kind]
            members = np.flatnonzero(np.isin(groups, groups[ranks]))
            members = members[np.argsort(groups[members], kind="stable")]
            found, begins = np.unique(groups[members], return_index=True)
            self.mates[kind, stage] = members, begins, np.searchsorted(found, groups[ranks])
        return self.mates[kind, stage]


def acting(job: Job, fault: Fault) -> Array:
    return np.arange(fault.onset, job.steps if fault.end is None else fault.end, fault.every)


class _Stage:
    """Hosts and GPUs of the ranks that run one program."""

    def __init__(self, machine: _Machine, stage: int, ranks: Array) -> None:
        self.machine, self.job, self.stage, self.ranks = machine, machine.job, stage, ranks
        self.draws = machine.draws.of(ranks)
        self.extra = {key: ms[:, ranks] for key, ms in machine.extra.items()}
        self.unharmed = np.zeros(len(ranks))
        self.host = np.zeros(len(ranks))
        self.free: dict[str, Array] = defaultdict(lambda: np.zeros(len(ranks)))
        self.amounts: dict[tuple[Kernels, tuple[float, float]], tuple[Array, Array, Array]] = {}
        self.launched = 0
        self.queue: deque[tuple[int, Array]] = deque()
        self.numbers: dict[str, int] = defaultdict(int)
        self.needed: deque[Array] = deque(maxlen=max(self.job.gathers, 1))  # when kernels have used what was gathered
        self.ready: list[Array] = []
        self.taken: list[Array] = []
        self.now: Step

    def __iter__(self) -> Iterator[bool]:
        job = self.job
        program, evaluation = programs.training(job, self.stage), programs.evaluating(job)
        for step in range(job.steps):
            if job.pause_every and step and step % job.pause_every == 0:
                self.host = self.host + job.pause
            yield from self._step(step, "train", program)
            if job.evaluate_every and (step + 1) % job.evaluate_every == 0 and job.shape != "pipeline":
                for _ in range(job.evaluate):
                    yield from self._step(step, "eval", evaluation)

    def _step(self, step: int, kind: str, program: list[Instruction]) -> Iterator[bool]:
        nothing = {name: np.zeros(len(self.ranks)) for name in ("input", "forward", "backward", "optimizer")}
        zero = np.zeros(len(self.ranks))
        self.now = Step(step, kind, self.ranks, self.host, zero, zero, zero, dict(nothing), {}, dict(nothing), zero)
        late = self.draws.late[step] + self._fault("host", "other", step)
        self.host = self.host + (late if kind == "train" else 0.0)
        began: dict[str, Array] = {}
        phase, totals = "", _totals(program)
        for instruction in program:
            if isinstance(instruction, Kernels) and instruction.phase != phase:
                self._mark_gpu(began, phase)
                phase = instruction.phase
                began[phase] = np.maximum(self.free["gpu"], self.host)
            if isinstance(instruction, Meet):
                yield from self._meet(instruction, step, phase)
            elif isinstance(instruction, Receive):
                yield from self._receive(instruction, step, phase)
            else:
                self._do(instruction, step, phase, totals)
        self._mark_gpu(began, phase)
        self.now.end = self.now.issued = self.host
        self.machine.history.steps.append(self.now)
        self.machine.progress += 1

    def _mark_gpu(self, began: dict[str, Array], phase: str) -> None:
        """Events at a phase's begin and end are the GPU's, which waits for its host where it has no work."""
        if phase in began:
            took = np.maximum(self.free["gpu"], self.host) - began.pop(phase)
            self.now.gpu[phase] = self.now.gpu.get(phase, 0.0) + took

    def _fault(self, lane: str, phase: str, step: int) -> Array:
        ms = self.extra.get((lane, phase))
        return self.unharmed if ms is None else np.asarray(ms[step])

    def _do(self, one: Instruction, step: int, phase: str, totals: dict[str, tuple[float, float]]) -> None:
        before = self.host
        if isinstance(one, Fetch):
            self.host, phase = self._fetch(step), "input"
            if not self.now.fetched.any():
                self.now.fetched = self.host
        elif isinstance(one, Kernels):
            self._launch(one, step, totals)
        elif isinstance(one, Copy):
            done = np.maximum(self.free["gpu"], self.host) + COPY + self._fault("gpu", "h2d", step)
            self.free["gpu"] = self.host = self._waits(done, "forward")
            phase = "forward"
        elif isinstance(one, Wait):
            self.host = self._waits(np.maximum.reduce(list(self.free.values())), phase)
            return  # between two phases: of none of them
        elif isinstance(one, Join):
            self.free["gpu"] = np.maximum.reduce(list(self.free.values()))
        elif isinstance(one, Send):
            self._send(one, step)
        if phase:
            self.now.phases[phase] = self.now.phases[phase] + self.host - before

    def _waits(self, until: Array, phase: str) -> Array:
        now = np.maximum(self.host, until)
        self.now.waited[phase] = self.now.waited.get(phase, 0.0) + now - self.host
        return np.asarray(now)

    def _fetch(self, step: int) -> Array:
        """When the next batch is there: loaded by the loop itself, or by workers that are ahead."""
        job, draws = self.job, self.draws
        slot = len(self.taken) % draws.host.shape[1]
        takes = job.load * draws.host[step, slot] / job.micro_batches
        takes = takes * (1 + draws.queued[step]) + self._fault("input", "input", step) / job.micro_batches
        self.taken.append(self.host)
        if not job.workers:
            return np.asarray(self.host + takes)
        batch, start = len(self.ready), np.zeros(len(self.ranks))
        if batch >= job.workers:
            start = self.ready[batch - job.workers]
        if batch >= PREFETCH * job.workers:
            start = np.maximum(start, self.taken[batch - PREFETCH * job.workers])
        self.ready.append(start + takes)
        return np.asarray(np.maximum(self.host, self.ready[batch]) + 0.05)

    def _launch(self, one: Kernels, step: int, totals: dict[str, tuple[float, float]]) -> None:
        key = (one, totals[one.phase])
        if key not in self.amounts:
            self.amounts[key] = self._amounts(*key)
        takes, queued, work = (each[step] for each in self.amounts[key])
        self.now.queued = self.now.queued + queued
        self.launched += one.launches
        while self.queue and self.queue[0][0] <= self.launched - QUEUE:
            done = self.queue.popleft()[1]
            self.host = self._waits(done, one.phase)
        begin, self.host = self.host, self.host + takes + queued
        if not one.launches:
            return
        start = np.maximum(self.free["gpu"], begin + LATENCY)
        self.free["gpu"] = np.maximum(start + work, self.host + LATENCY + work / one.launches)
        self.queue.append((self.launched, self.free["gpu"]))

    def _amounts(self, one: Kernels, whole: tuple[float, float]) -> tuple[Array, Array, Array]:
        """[S, n] ms of all steps: on the host, in which it queues for a CPU meanwhile, and on the GPU."""
        draws = self.draws
        takes, work = one.host * draws.host[:, one.slot], one.gpu * draws.gpu[:, one.slot] * draws.work
        if ("host", one.phase) in self.extra and whole[0]:
            takes = takes + one.host / whole[0] * self.extra["host", one.phase]
        if ("gpu", one.phase) in self.extra and whole[1]:
            work = work + one.gpu / whole[1] * self.extra["gpu", one.phase]
        return takes, takes * draws.queued, work

    def _send(self, one: Send, step: int) -> None:
        now = self.host
        self.host = now + LAUNCH
        ready = np.maximum(self.free["gpu"], self.host + LATENCY)
        peers = self.machine.stages[one.stage].ranks
        call = Call(step, "p2p", "send", 4 << 20, self.ranks, now, ready, ready, peers)
        self.machine.history.calls.append(call)
        self.machine.sent[self.stage, one.stage, step, one.tag] = call
        self.machine.progress += 1

    def _receive(self, one: Receive, step: int, phase: str) -> Iterator[bool]:
        now = self.host
        self.host = now + LAUNCH
        ready = np.maximum(np.maximum(self.free["receive"], self.free["gpu"]), self.host + LATENCY)
        key = (one.stage, self.stage, step, one.tag)
        while key not in self.machine.sent:
            yield True
        call = self.machine.sent.pop(key)
        done = np.maximum(ready, call.start) + 0.1 * self.draws.transfer[step, one.tag[1] % 24]
        call.end = done
        self.free["receive"] = self.free["gpu"] = done
        self.machine.history.calls.append(Call(step, "p2p", "recv", 4 << 20, self.ranks, now, ready, done, call.ranks))
        self.machine.progress += 1
        if phase:
            self.now.phases[phase] = self.now.phases[phase] + self.host - now

    def _meet(self, one: Meet, step: int, phase: str) -> Iterator[bool]:
        early = one.op == "all_gather" and self.job.gathers > 0
        if early:
            self.needed.append(self.free["gpu"])
            self.host = self._waits(self.needed[0], phase)
        now, number = self.host, self.numbers[one.kind]
        self.numbers[one.kind] += 1
        if not one.host:
            self.host = now + LAUNCH
        arrives = now
        if not one.host:
            arrives = np.maximum(self.free[one.kind], self.host + LATENCY)
            arrives = arrives if early else np.maximum(arrives, self.free["gpu"])
        while (met := self.machine.meet(one.kind, number, self.ranks, arrives)) is None:
            yield True
        slow = self._fault("link", one.kind, step)
        done = met + one.transfer * self.draws.transfer[step, number % 24] + slow
        if one.host:
            self.host = done
        else:
            self.free[one.kind] = done
            if one.inside:
                self.free["gpu"] = np.maximum(self.free["gpu"], done)
            if self.job.synchronises == "collective":
                self.host = self._waits(done, phase)
        kinds = Call(step, one.kind, one.op, one.size, self.ranks, now, arrives, done)
        self.machine.history.calls.append(kinds)
        self.machine.progress += 1
        if phase and not one.host:
            self.now.phases[phase] = self.now.phases[phase] + self.host - now


def _totals(program: list[Instruction]) -> dict[str, tuple[float, float]]:
    """Phase to its ms on the host and on the GPU in a step."""
    found: dict[str, tuple[float, float]] = {}
    for instruction in program:
        if isinstance(instruction, Kernels):
            host, gpu = found.get(instruction.phase, (0.0, 0.0))
            found[instruction.phase] = (host + instruction.host, gpu + instruction.gpu)
    return found
