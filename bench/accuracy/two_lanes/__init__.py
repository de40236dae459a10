"""A second simulator, which shares no code with ``hindmost_collector.simulate``: every rank has a host and a GPU.

Hosts launch into a bounded queue and may be ahead, so the regime (which lane sets the pace) comes out of the amounts of
work and is not assumed.
"""

from dataclasses import dataclass

from hindmost_judge.model import Run

from two_lanes.job import Job, Truth
from two_lanes.machine import acting, run
from two_lanes.noise import draw
from two_lanes.recording import recorded

__all__ = ["Simulated", "simulate"]


@dataclass(frozen=True)
class Simulated:
    """A recorded run, and apart from it what is true of it."""

    run: Run
    truth: Truth


def simulate(job: Job) -> Simulated:
    """Record one job. What its faults cost is what it takes longer than without them, at the same random numbers."""
    draws = draw(job)
    history = run(job, draws, job.faults)
    total = history.end
    repaired = run(job, draws, []).end if job.faults else total
    each = [repaired] * len(job.faults)
    if len(job.faults) > 1:
        each = [run(job, draws, [*job.faults[:at], *job.faults[at + 1 :]]).end for at in range(len(job.faults))]
    active = tuple(len(acting(job, fault)) for fault in job.faults)
    return Simulated(recorded(job, history, draws.work), Truth(total, repaired, tuple(each), active))
