"""Random numbers of a job, drawn before it runs: with and without a fault they are the same."""

from dataclasses import dataclass

import numpy as np

from two_lanes.job import Array, Job

#: Work intervals of a step and lane that have noise of their own.
SLOTS = 24
#: Processes that share CPUs lengthen each other's work in bursts of about so many steps.
_BURST_STEPS = 6
#: Another job on a node does that for about so many.
_NEIGHBOUR_STEPS = 15
#: Index of the Pareto distribution of rare long steps: finite variance, barely.
_TAIL = 2.5


@dataclass(frozen=True)
class Draws:
    """``host`` and ``gpu`` [S, SLOTS, R]: factors of each interval. ``late`` [S, R]: ms that a host rarely loses at a
    step's begin. ``queued`` [S, R]: share by which a host's work waits for a CPU. ``work`` [S, R]: amount of work."""

    host: Array
    gpu: Array
    late: Array
    queued: Array
    work: Array
    transfer: Array

    def of(self, ranks: Array) -> "Draws":
        """Those of some ranks."""
        own = (self.host, self.gpu, self.late, self.queued, self.work)
        return Draws(*(values[..., ranks] for values in own), self.transfer)


def draw(job: Job) -> Draws:
    """The numbers of a job, by its seed."""
    random = np.random.default_rng([job.seed, 0x4C414E45])
    steps, ranks, noise = job.steps, job.ranks, job.noise
    host, gpu = (_factors(random, job, lane) for lane in (0, 1))
    step = max(job.host, job.gpu, job.load / max(job.workers, 1))
    rare = random.random((steps, ranks)) < noise.tail
    late = np.where(rare, np.minimum(0.05 * step * (1 + random.pareto(_TAIL, (steps, ranks))), 3 * step), 0.0)
    queued = np.zeros((steps, ranks))
    if job.crowd:
        bursts = random.random((steps // _BURST_STEPS + 1, ranks)) < 0.5
        queued = np.repeat(bursts, _BURST_STEPS, axis=0)[:steps] * random.exponential(job.crowd, (steps, ranks))
    if job.neighbour:
        nodes = np.arange(ranks) // 8
        bursts = random.random((steps // _NEIGHBOUR_STEPS + 1, nodes[-1] + 1)) < 0.3
        bursts = np.repeat(bursts, _NEIGHBOUR_STEPS, axis=0)[:steps]
        queued = queued + bursts[:, nodes] * random.exponential(job.neighbour, (steps, ranks))
    work = 1 + job.uneven * random.uniform(-1, 1, (steps, ranks))
    work[:, 0] += job.unequal
    transfer = np.exp(0.08 * random.standard_normal((steps, SLOTS)))
    return Draws(host, gpu, late, queued, work, transfer)


def _factors(random: np.random.Generator, job: Job, lane: int) -> Array:
    noise, shape = job.noise, (job.steps, job.ranks)
    level = 1 + noise.ranks[lane] * random.standard_normal(job.ranks)
    drift = np.zeros(shape)
    push = noise.drift[lane] * np.sqrt(1 - noise.memory**2) * random.standard_normal(shape)
    drift[0] = noise.drift[lane] * random.standard_normal(job.ranks)
    for step in range(1, job.steps):
        drift[step] = noise.memory * drift[step - 1] + push[step]
    each = np.exp(noise.each[lane] * random.standard_normal((job.steps, SLOTS, job.ranks)))
    return np.asarray(np.maximum((level + drift)[:, None, :] * each, 0.05))
