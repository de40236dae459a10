"""Which jobs are simulated: a family and a seed give one scenario, always the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hindmost_collector.simulate import Fault, Noise, Scenario
from hindmost_collector.simulate.scenario import LAYOUTS, STOPS

#: Editions of held-out seeds: each is for one measurement, and a judge that was changed after it gets the next. Seeds
#: below the first edition's are for tuning.
EDITIONS = {number: (6 + number) * 1_000_000 for number in range(1, 32)}

SINGLE_CAUSES = ("compute", "gpu_throttle", "gpu_contention", "input", "cpu_contention", "h2d", "gc")
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)


def single(random: np.random.Generator, seed: int) -> Scenario:
    """One rank slow by 6 to 50 % of its own step, from the start or from some step on."""
    shape = _shape(random, SIZES)
    size = float(np.exp(random.uniform(np.log(0.06), np.log(0.5))))
    return Scenario(**shape, seed=seed, faults=(_fault(random, shape, 1, size),))


def small(random: np.random.Generator, seed: int) -> Scenario:
    """One rank slow by 2.5 to 5 % of its own step throughout 100 steps: about 2 to 4 % of the job's."""
    shape = _shape(random, SIZES) | {"steps": 100}
    fault = _fault(random, shape, 1, float(random.uniform(0.025, 0.05)))
    return Scenario(**shape, seed=seed, faults=(Fault(fault.cause, fault.ranks, fault.size),))


def sets(random: np.random.Generator, seed: int) -> Scenario:
    """Two to eight ranks slow together, by alike but not equal amounts."""
    shape = _shape(random, SIZES[1:])
    count = int(random.integers(2, min(8, shape["ranks"] // 4) + 1))
    fault = _fault(random, shape, count, float(random.uniform(0.08, 0.4)))
    each = [Fault(fault.cause, (rank,), fault.size * random.uniform(0.9, 1.1), fault.onset) for rank in fault.ranks]
    return Scenario(**shape, seed=seed, faults=tuple(each))


def clean(random: np.random.Generator, seed: int) -> Scenario:
    """Nothing wrong; in every other job sequence lengths vary, in some rank 0 writes checkpoints."""
    shape = _shape(random, SIZES) | {"steps": 200}
    lengths = float(random.uniform(0.05, 0.25)) if seed % 2 else 0.0
    every = int(random.choice([0, 0, 50]))
    return Scenario(**shape, seed=seed, varying_lengths=lengths, checkpoint_every=every)


def intermittent(random: np.random.Generator, seed: int) -> Scenario:
    """One rank stalls in 5 to 30 % of the steps, by 20 to 80 % of a step."""
    shape = _shape(random, SIZES) | {"steps": 200}
    fault = _fault(random, shape, 1, float(random.uniform(0.2, 0.8)))
    stalls = Fault(fault.cause, fault.ranks, fault.size, duty=float(random.uniform(0.05, 0.3)))
    return Scenario(**shape, seed=seed, faults=(stalls,))


def hidden(random: np.random.Generator, seed: int) -> Scenario:
    """A slow input that the host's running ahead hides: it costs nothing."""
    shape = _shape(random, SIZES) | {"run_ahead": 1}
    rank = int(random.integers(shape["ranks"]))
    return Scenario(**shape, seed=seed, faults=(Fault("input", (rank,), float(random.uniform(0.05, 0.3))),))


def link(random: np.random.Generator, seed: int) -> Scenario:
    """One data-parallel group of several has a slow link."""
    shape = _shape(random, SIZES[1:7]) | {"layout": "tp_dp", "tensor": 4}
    rank = int(random.integers(shape["ranks"]))
    return Scenario(**shape, seed=seed, faults=(Fault("network", (rank,), float(random.uniform(0.1, 0.5))),))


def large(random: np.random.Generator, seed: int) -> Scenario:
    """8,192 ranks, one of them slow by 5 to 20 %, in few and short steps: the job that a person cannot look through."""
    rank = int(random.integers(8192))
    fault = Fault(str(random.choice(SINGLE_CAUSES)), (rank,), float(random.uniform(0.07, 0.25)))
    return Scenario(8192, 40, seed, stretches=2, step_ms=200, faults=(fault,))


def pipeline(random: np.random.Generator, seed: int) -> Scenario:
    """One rank of a pipeline with replicas slow by 8 to 50 %; in every fifth job none."""
    stages = int(random.choice([2, 4, 8]))
    ranks = stages * int(random.choice([2, 4, 8, 16, 32]))
    shape = _shape(random, (ranks,)) | {"layout": "pp_dp", "pipeline": stages}
    shape["microbatches"] = int(random.choice([1, 2, 4])) * stages
    shape.pop("tensor", None)
    size = float(np.exp(random.uniform(np.log(0.08), np.log(0.5))))
    fault = _fault(random, shape, 1, size)
    return Scenario(**shape, seed=seed, faults=() if seed % 5 == 0 else (fault,))


def hard(random: np.random.Generator, seed: int) -> Scenario:
    """Few ranks, few steps, much noise, a fault about as large as the noise or none: where a name may well be wrong."""
    shape = _shape(random, (4, 8, 16, 32)) | {"steps": int(random.integers(44, 90))}
    noise = Noise(
        each_stretch=float(random.uniform(0.01, 0.08)),
        wandering=float(random.uniform(0.003, 0.04)),
        wandering_memory=float(random.choice([0.8, 0.95, 0.99])),
        stall_probability=float(random.choice([2e-4, 0.01, 0.03])),
        stall_size=float(random.uniform(0.05, 0.4)),
    )
    fault = _fault(random, shape, 1, float(random.uniform(0.01, 0.1)))
    if random.random() < 0.3:
        fault = Fault(fault.cause, fault.ranks, 4 * fault.size, duty=float(random.uniform(0.05, 0.3)))
    lengths = float(random.choice([0, 0, 0.1]))
    faults = (fault,) if random.random() < 0.6 else ()
    return Scenario(**shape, seed=seed, noise=noise, varying_lengths=lengths, faults=faults)


def network(random: np.random.Generator, seed: int) -> Scenario:
    """The network that all share becomes slow: transfers of one group, or of all, take 5 to 50 % of a step longer."""
    shape = _shape(random, SIZES[:6]) | {"layout": str(random.choice(["dp", "fsdp"])), "steps": 140}
    shape.pop("tensor", None)
    onset = int(random.integers(30, 90))
    noise = Noise(transfer=float(random.choice([0.05, 0.2])))
    fault = Fault("network", (0,), float(random.uniform(0.05, 0.5)), onset)
    return Scenario(**shape, seed=seed, noise=noise, faults=(fault,))


def uneven(random: np.random.Generator, seed: int) -> Scenario:
    """One rank slow by 8 to 40 % of its own step while sequence lengths vary, which hides most of it from the job."""
    shape = _shape(random, SIZES[:6])
    fault = _fault(random, shape, 1, float(np.exp(random.uniform(np.log(0.08), np.log(0.4)))))
    return Scenario(**shape, seed=seed, varying_lengths=float(random.uniform(0.05, 0.25)), faults=(fault,))


def temporary(random: np.random.Generator, seed: int) -> Scenario:
    """One rank slow by 10 to 50 % of its own step, for 20 to 60 steps in the middle of the run."""
    shape = _shape(random, SIZES) | {"steps": 200}
    fault = _fault(random, shape, 1, float(np.exp(random.uniform(np.log(0.1), np.log(0.5)))))
    onset = int(random.integers(30, 110))
    end = onset + int(random.integers(20, 61))
    return Scenario(**shape, seed=seed, faults=(Fault(fault.cause, fault.ranks, fault.size, onset, end),))


def stops(random: np.random.Generator, seed: int) -> Scenario:
    """One rank does not come at some step, or comes with another operation, and the job stops."""
    shape = _shape(random, SIZES[:6]) | {"layout": str(random.choice(LAYOUTS)), "steps": int(random.integers(40, 101))}
    if shape["layout"] == "pp_dp":
        shape |= {"pipeline": int(random.choice([2, 4]))}
    shape["tensor"] = int(random.choice([2, 4])) if shape["layout"] == "tp_dp" else 1
    rank, onset = int(random.integers(shape["ranks"])), int(random.integers(10, shape["steps"]))
    fault = Fault(STOPS[seed % 2], (rank,), 0.0, onset)
    return Scenario(**shape, seed=seed, faults=(fault,))


def stages(random: np.random.Generator, seed: int) -> Scenario:
    """One stage of a pipeline computes longer by 15 to 60 % on all its replicas; half of these from some step on."""
    count = int(random.choice([2, 4, 8]))
    replicas = int(random.choice([2, 4, 8, 16]))
    shape = _shape(random, (count * replicas,)) | {"layout": "pp_dp", "pipeline": count, "tensor": 1}
    shape["microbatches"] = int(random.choice([1, 2, 4])) * count
    slow = replicas * int(random.integers(count))
    onset = int(random.integers(20, shape["steps"] // 2)) if seed % 2 else 0
    size = float(np.exp(random.uniform(np.log(0.15), np.log(0.6))))
    fault = Fault("compute", tuple(range(slow, slow + replicas)), size, onset)
    return Scenario(**shape, seed=seed, faults=(fault,))


def two_causes(random: np.random.Generator, seed: int) -> Scenario:
    """Two ranks slow throughout, each for a reason of its own; the lesser by at least half as much as the other."""
    shape = _shape(random, SIZES[:6])
    ranks = random.choice(shape["ranks"], 2, replace=False).tolist()
    causes = random.choice(SINGLE_CAUSES, 2, replace=False).tolist()
    size = float(np.exp(random.uniform(np.log(0.1), np.log(0.4))))
    sizes = (size, size * float(random.uniform(0.5, 1.0)))
    faults = tuple(Fault(str(cause), (rank,), one) for cause, rank, one in zip(causes, ranks, sizes, strict=True))
    return Scenario(**shape, seed=seed, faults=faults)


def frequent(random: np.random.Generator, seed: int) -> Scenario:
    """One rank stalls in 30 to 70 % of the steps, by 20 to 60 % of a step; every other job is a pipeline."""
    shape = _shape(random, SIZES[:6]) | {"steps": 200}
    if seed % 2:
        stages = int(random.choice([2, 4]))
        shape |= {"ranks": stages * int(random.choice([2, 4, 8])), "layout": "pp_dp", "pipeline": stages, "tensor": 1}
    fault = _fault(random, shape, 1, float(random.uniform(0.2, 0.6)))
    stalls = Fault(fault.cause, fault.ranks, fault.size, duty=float(random.uniform(0.3, 0.7)))
    return Scenario(**shape, seed=seed, faults=(stalls,))


def handover(random: np.random.Generator, seed: int) -> Scenario:
    """One rank slow by 10 to 40 % of its own step, for one cause up to a step and for another from it on."""
    shape = _shape(random, SIZES[:6])
    rank, at = int(random.integers(shape["ranks"])), int(random.integers(40, shape["steps"] - 40))
    first, then = random.choice(SINGLE_CAUSES, 2, replace=False).tolist()
    size = float(np.exp(random.uniform(np.log(0.1), np.log(0.4))))
    later = size * float(random.uniform(0.7, 1.4))
    faults = (Fault(str(first), (rank,), size, 0, at), Fault(str(then), (rank,), later, at))
    return Scenario(**shape, seed=seed, faults=faults)


#: Families in the order of their seeds, and runs of each: so many that where all are right the interval's lower bound
#: is beyond the goal. ``hard`` is for calibrating confidence, and run by name only.
_RUNS: dict[Callable[[np.random.Generator, int], Scenario], int] = {
    single: 880,
    small: 220,
    sets: 140,
    clean: 200,
    intermittent: 80,
    hidden: 40,
    link: 40,
    large: 130,
    pipeline: 80,
    hard: 0,
    network: 40,
    uneven: 120,
    temporary: 60,
    stops: 40,
    stages: 40,
    two_causes: 40,
    frequent: 60,
    handover: 40,
}
FAMILIES = {family.__name__: family for family in _RUNS}
SHARES = {family.__name__: runs for family, runs in _RUNS.items()}


def scenario(family: str, seed: int) -> Scenario:
    return FAMILIES[family](np.random.default_rng([seed, 0x53554954]), seed)


def _shape(random: np.random.Generator, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Size, layout, length and pace of a job."""
    ranks = int(random.choice(sizes))
    layout = str(random.choice(["dp", "dp", "fsdp", "tp_dp"]))
    shape: dict[str, Any] = {"ranks": ranks, "layout": layout, "steps": int(random.integers(100, 161))}
    shape["step_ms"] = float(np.exp(random.uniform(np.log(20), np.log(800))))
    shape["stretches"] = int(random.integers(3, 7))
    return shape | ({"tensor": int(random.choice([2, 4]))} if layout == "tp_dp" else {})


def _fault(random: np.random.Generator, shape: dict[str, Any], count: int, size: float) -> Fault:
    ranks = tuple(sorted(random.choice(shape["ranks"], count, replace=False).tolist()))
    onset = int(random.integers(20, shape["steps"] // 2)) if random.random() < 0.4 else 0
    return Fault(str(random.choice(SINGLE_CAUSES)), ranks, size, onset)
