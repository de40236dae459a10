"""What a node of 8 GPUs has to say: the real agent's samplers, their periods and how many series each has there."""

from typing import NamedTuple

from hindmost_agent.sampler import Metric, Series, counter, gauge, series

GPUS = RANKS = 8


class Source(NamedTuple):
    """One sampler: seconds between readings, and series (for each GPU or rank, where it reads those)."""

    name: str
    period: int
    series: int
    of: str = "node"


#: About 340 samples a second together. As the agent has them (tests/agent/typical_nodes.py and the periods of its
#: samplers), without what it reads of each core of a large host.
SOURCES = (
    Source("cpu", 1, 16),
    Source("memory", 1, 15),
    Source("nvidia", 1, 15, "gpu"),
    Source("process", 1, 12, "process"),
    Source("disk", 2, 8),
    Source("network", 2, 8),
    Source("pressure", 2, 3),
    Source("nvidia_gpm", 5, 11, "gpu"),
    Source("nvidia_state", 5, 6, "gpu"),
    Source("infiniband", 5, 80),
    Source("agent", 5, 78),
    Source("cgroup", 5, 12),
    Source("process_children", 5, 6, "process"),
    Source("process_status", 5, 4, "process"),
    Source("runqueue", 5, 3),
    Source("vmstat", 5, 8),
    Source("lustre", 10, 5),
    Source("nfs", 10, 9),
    Source("numa", 10, 14),
    Source("nvidia_processes", 10, 2, "gpu"),
    Source("hwmon", 15, 1),
    Source("network_link", 15, 4),
    Source("process_threads", 15, 3, "process"),
    Source("tcp", 15, 11),
    Source("cpu_frequency", 30, 96),
    Source("filesystem", 30, 4),
    Source("hugepages", 30, 8),
    Source("nvidia_health", 30, 10, "gpu"),
    Source("nvidia_links", 30, 8, "gpu"),
    Source("nvidia_counters", 60, 8, "gpu"),
)
_EACH = {"node": 1, "gpu": GPUS, "process": RANKS}
_LABELS = {"node": ("device",), "gpu": ("gpu_uuid",), "process": ("job", "rank")}


def width(source: Source) -> int:
    """How many values one reading of a source has."""
    return source.series * _EACH[source.of]


def layout(source: Source, node: int) -> tuple[Series, ...]:
    """The series of a source on one node: GPUs and ranks have names of their own, so no two nodes' are alike."""
    metrics = [_metric(source, place) for place in range(source.series)]
    if source.of == "gpu":
        return tuple(
            series(metric, f"GPU-{node:08x}-5f67-4b5e-9d0a-{gpu:012x}") for metric in metrics for gpu in range(GPUS)
        )
    if source.of == "process":
        ranks = range(node * RANKS, (node + 1) * RANKS)
        return tuple(series(metric, "bench", str(rank)) for metric in metrics for rank in ranks)
    return tuple(series(one, f"device{place % 4}") for place, one in enumerate(metrics))


def _metric(source: Source, place: int) -> Metric:
    """Every other one counts up, as about half of the real ones do."""
    name = f"hindmost_{source.of}_{source.name}_measured_{place:02}"
    text = f"What {source.name} reads at place {place}."
    if place % 2:
        return counter(f"{name}_total", text, *_LABELS[source.of])
    return gauge(name, text, *_LABELS[source.of])
