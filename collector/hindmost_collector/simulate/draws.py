"""Everything random of a simulated run, drawn once: with and without its faults a run has the same noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from hindmost_collector.simulate.scenario import Scenario

Floats: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class Draws:
    """Factors around 1 of S steps, R ranks and K intervals.

    ``computing`` [S, R, K], ``host`` [S, R], ``transfer`` [S, K]; ``stall`` [S, R] in shares of the step,
    ``lengths`` [S, R] the work of each rank's batch around 1, ``chance`` [S] uniform numbers that decide on
    intermittent faults.
    """

    computing: Floats
    host: Floats
    transfer: Floats
    stall: Floats
    lengths: Floats
    chance: Floats
    clock_ns: Floats
    gpu_clock_ns: Floats
    drift: Floats
    gpu_drift: Floats


def draw(scenario: Scenario, stretches: int) -> Draws:
    """Noise of a scenario; ``stretches`` of computing a step."""
    random = np.random.default_rng([scenario.seed, 0x48494E44])
    noise, steps, ranks = scenario.noise, scenario.steps, scenario.ranks
    between = 1 + noise.between_ranks * np.clip(random.standard_normal(ranks), -2.5, 2.5)
    wander = _wandering(random, steps, ranks, noise.wandering, noise.wandering_memory)
    jitter = np.exp(noise.each_stretch * random.standard_normal((steps, ranks, stretches), dtype=np.float32))
    lengths = np.exp(scenario.varying_lengths * np.clip(random.standard_normal((steps, ranks)), -2.5, 2.5))
    stalls = random.random((steps, ranks)) < noise.stall_probability
    nodes = np.arange(ranks) // scenario.gpus_per_node
    offsets = random.standard_normal(nodes[-1] + 1) * noise.clock_offset_ms * 1e6
    return Draws(
        computing=jitter * (between * wander * lengths)[:, :, None],
        host=np.exp(noise.host * random.standard_normal((steps, ranks))),
        transfer=np.exp(noise.transfer * random.standard_normal((steps, stretches))),
        stall=stalls * random.exponential(noise.stall_size, (steps, ranks)),
        lengths=lengths,
        chance=random.random(steps),
        clock_ns=offsets[nodes],
        gpu_clock_ns=random.uniform(0.5e6, 3e6, ranks) * random.choice([-1, 1], ranks),
        drift=1 + (random.standard_normal(nodes[-1] + 1) * noise.clock_drift_ppm * 1e-6)[nodes],
        gpu_drift=1 + random.standard_normal(ranks) * noise.clock_drift_ppm * 1e-6,
    )


def _wandering(random: np.random.Generator, steps: int, ranks: int, size: float, memory: float) -> Floats:
    """[S, R] factors that forget slowly: an autoregressive walk of standard deviation ``size``."""
    out = np.empty((steps, ranks))
    state = random.standard_normal(ranks)
    for step in range(steps):
        out[step] = state
        state = memory * state + np.sqrt(1 - memory**2) * random.standard_normal(ranks)
    return 1 + size * out
