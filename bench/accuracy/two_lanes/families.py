"""Which jobs are simulated: a regime and a seed give one job, always the same. Every fourth of a regime is clean."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from two_lanes.job import SYNCHRONISES, Fault, Job, Noise

SIZES = (2, 3, 4, 8, 8, 16, 16, 32, 64)
CALM = Noise()
#: Steps that vary more, rarely by far; and hosts that drift slowly.
HEAVY = Noise(each=(0.12, 0.015), tail=0.02)
DRIFTING = Noise(drift=(0.012, 0.006), memory=0.97)
#: A fault's size as a share of the clean step.
LEAST, MOST = 0.06, 0.4


def _share(random: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(random.uniform(np.log(low), np.log(high))))


def _job(random: np.random.Generator, seed: int, sizes: tuple[int, ...] = SIZES) -> Job:
    """Size, length, noise and form of a recording."""
    noise = (CALM, CALM, HEAVY, DRIFTING)[int(random.integers(4))]
    return Job(
        seed,
        ranks=int(random.choice(sizes)),
        steps=int(random.integers(140, 241)),
        blocks=int(random.integers(3, 6)),
        launches=int(random.choice([200, 600, 1500])),
        written=str(random.choice(["traces", "run"])),
        noise=noise,
    )


def _faulty(
    random: np.random.Generator,
    job: Job,
    lane: str,
    phases: tuple[str, ...] = ("forward", "backward"),
    least: float = LEAST,
) -> Job:
    """With one fault, in every eighth job two on two ranks; in every fourth none."""
    if job.seed % 4 == 0:
        return job
    pace = max(job.host, job.gpu, job.load / max(job.workers, 1))
    count = 2 if job.seed % 8 == 5 and job.ranks >= 4 else 1
    ranks = random.choice(job.ranks, count, replace=False).tolist()
    onset = int(random.integers(30, job.steps // 2)) if random.random() < 0.5 else 0
    size = _share(random, least, MOST) * pace * (max(job.workers, 1) if lane == "input" else 1)
    phase = str(random.choice(phases))
    faults = [Fault(lane, phase, (rank,), size * (1.0 if at == 0 else 0.8), onset) for at, rank in enumerate(ranks)]
    return replace(job, faults=tuple(faults))


def _host_bound(random: np.random.Generator, seed: int, synchronises: str) -> Job:
    host = _share(random, 15, 60)
    job = replace(_job(random, seed), host=host, gpu=host * float(random.uniform(0.3, 0.7)), synchronises=synchronises)
    return _faulty(random, replace(job, transfer=0.04 * host), "host")


def _input_bound(random: np.random.Generator, seed: int, synchronises: str) -> Job:
    load = _share(random, 25, 80)
    rest = load * float(random.uniform(0.1, 0.3))
    job = replace(_job(random, seed), load=load, host=rest, gpu=1.5 * rest, transfer=0.05 * load)
    job = replace(job, synchronises=synchronises)
    lane, phases = ("input", ("input",)) if random.random() < 0.6 else ("host", ("forward", "other"))
    return _faulty(random, job, lane, phases)


def _gpu_bound(random: np.random.Generator, seed: int, sizes: tuple[int, ...] = SIZES) -> Job:
    gpu = _share(random, 30, 200)
    job = replace(_job(random, seed, sizes), gpu=gpu, host=gpu * float(random.uniform(0.15, 0.5)), transfer=0.08 * gpu)
    return replace(job, synchronises=str(random.choice(SYNCHRONISES)))


def _gpu(random: np.random.Generator, seed: int) -> Job:
    return _faulty(random, _gpu_bound(random, seed), "gpu")


def _workers(random: np.random.Generator, seed: int) -> Job:
    """Loaders that are slower than the GPU: their queues are empty."""
    job, count = _gpu_bound(random, seed), int(random.choice([2, 4]))
    job = replace(job, workers=count, load=count * job.gpu * float(random.uniform(1.2, 1.8)))
    return _faulty(random, job, "input", ("input",))


def _accumulating(random: np.random.Generator, seed: int) -> Job:
    job = replace(_gpu_bound(random, seed), micro_batches=int(random.choice([2, 4])))
    lane = str(random.choice(["gpu", "host"]))
    if lane == "host":
        job = replace(job, host=job.gpu * 1.5)
    return _faulty(random, job, lane)


def _evaluating(random: np.random.Generator, seed: int) -> Job:
    job = replace(_gpu_bound(random, seed), evaluate_every=int(random.choice([25, 50])), evaluate=5)
    return _faulty(random, job, "gpu")


def _pausing(random: np.random.Generator, seed: int) -> Job:
    job = replace(
        _gpu_bound(random, seed), pause_every=int(random.choice([30, 60])), pause=float(random.uniform(500, 4000))
    )
    return _faulty(random, job, "gpu")


def _sharded(random: np.random.Generator, seed: int) -> Job:
    """In every other job parameters are gathered ahead, two layers at most, as PyTorch does."""
    job = replace(_gpu_bound(random, seed), shape="fsdp", gathers=2 * (seed % 2))
    return _faulty(random, job, "gpu")


def _grouped(random: np.random.Generator, seed: int, shape: str) -> Job:
    job = _gpu_bound(random, seed, (8, 8, 16, 32))
    job = replace(job, shape=shape, groups=int(random.choice([2, 4])))
    if shape == "moe":  # how many tokens an expert gets differs from step to step, and nothing counts it
        job = replace(job, noise=replace(job.noise, each=(job.noise.each[0], 0.06)))
    return _faulty(random, job, "gpu")


def _pipeline(random: np.random.Generator, seed: int, chunks: int) -> Job:
    stages = int(random.choice([2, 4]))
    job = replace(_gpu_bound(random, seed), shape="pipeline", groups=stages, ranks=stages * int(random.choice([2, 4])))
    job = replace(job, chunks=chunks, micro_batches=2 * stages, steps=100, host=0.2 * job.gpu)
    return _faulty(random, job, "gpu", least=0.1)


def _uneven(random: np.random.Generator, seed: int) -> Job:
    job = replace(_gpu_bound(random, seed), uneven=float(random.uniform(0.05, 0.2)), written="run")
    return _faulty(random, job, "gpu", least=0.1)


def _unequal(random: np.random.Generator, seed: int) -> Job:
    """Rank 0 has more work in every step, on purpose, and its samples say so."""
    job = replace(_gpu_bound(random, seed), unequal=float(random.uniform(0.1, 0.3)), written="run")
    return replace(job, seed=seed)


def _crowded(random: np.random.Generator, seed: int) -> Job:
    """Ranks share CPUs: their hosts take turns."""
    job = replace(_host_bound(random, seed, "step"), faults=(), crowd=float(random.uniform(0.1, 0.5)))
    return _faulty(random, job, "host", least=0.15)


def _two_jobs(random: np.random.Generator, seed: int) -> Job:
    """Another job on some nodes."""
    job = replace(_host_bound(random, seed, "step"), faults=(), neighbour=float(random.uniform(0.1, 0.5)))
    return _faulty(random, job, "host", least=0.15)


def _stalling(random: np.random.Generator, seed: int) -> Job:
    """One rank stops for a quarter of a second now and then."""
    job = _gpu_bound(random, seed)
    if seed % 4 == 0:
        return job
    every = int(random.integers(18, 36))
    rank, ms = int(random.integers(job.ranks)), float(random.uniform(2.0, 5.0)) * job.gpu
    return replace(job, faults=(Fault("host", "other", (rank,), ms, int(random.integers(1, every)), None, every),))


def _hidden(random: np.random.Generator, seed: int) -> Job:
    """A slow host or a slow loader behind a GPU that has work: it costs nothing."""
    job = replace(_gpu_bound(random, seed), synchronises="never", launches=200)
    rank = int(random.integers(job.ranks))
    if random.random() < 0.5:
        return replace(job, faults=(Fault("host", "forward", (rank,), 0.3 * job.gpu),))
    return replace(job, workers=4, load=job.gpu, faults=(Fault("input", "input", (rank,), job.gpu),))


def _mpi(random: np.random.Generator, seed: int) -> Job:
    """Blocking collectives of hosts, steps of a millisecond and more."""
    host = _share(random, 1, 50)
    job = replace(_job(random, seed), shape="mpi", host=host, transfer=0.03 * host, written="run", synchronises="never")
    return _faulty(random, replace(job, blocks=int(random.integers(1, 4))), "host", ("forward",))


FAMILIES: dict[str, Callable[[np.random.Generator, int], Job]] = {
    **{f"host-bound, {when}": partial(_host_bound, synchronises=when) for when in SYNCHRONISES},
    **{f"input-bound, {when}": partial(_input_bound, synchronises=when) for when in SYNCHRONISES[:3]},
    "input-bound, workers": _workers,
    "hidden": _hidden,
    "GPU-bound": _gpu,
    "accumulation": _accumulating,
    "evaluation": _evaluating,
    "pauses": _pausing,
    "sharded": _sharded,
    "tensor parallel": partial(_grouped, shape="tensor"),
    "experts": partial(_grouped, shape="moe"),
    "pipeline": partial(_pipeline, chunks=1),
    "interleaved pipeline": partial(_pipeline, chunks=2),
    "uneven work": _uneven,
    "unequal on purpose": _unequal,
    "shared CPUs": _crowded,
    "two jobs on a node": _two_jobs,
    "rare long stalls": _stalling,
    "MPI": _mpi,
}
#: Runs of each where all are run.
SHARES = dict.fromkeys(FAMILIES, 40)


def job(family: str, seed: int) -> Job:
    return FAMILIES[family](np.random.default_rng([seed, 0x4C4E]), seed)
