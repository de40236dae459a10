"""How fine the series on ``/metrics`` are: by job, by node, by rank, by core."""

from __future__ import annotations

from collections.abc import Collection

#: Of jobs, verdicts, agents and the collector; of nodes and GPUs; of ranks and processes; of cores and threads.
JOB, NODE, RANK, CORE = range(4)
LEVELS = ("job", "node", "rank", "core")

_OF_CORES = frozenset({"cpu", "threads"})


def level_of(labels: Collection[str]) -> int:
    """The level of an agent's series, by its labels."""
    if _OF_CORES.intersection(labels):
        return CORE
    return RANK if "rank" in labels else NODE


def fitting(level: int, counts: tuple[int, ...], most: int) -> int:
    """The finest level up to ``level`` with at most so many series, where each level adds ``counts`` of its own."""
    while level > JOB and sum(counts[: level + 1]) > most:
        level -= 1
    return level
