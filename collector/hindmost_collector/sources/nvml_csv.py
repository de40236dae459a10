"""``nvml.csv``: one line a GPU and sample: time, GPU index, utilisation, power, clocks, temperature and more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from hindmost.errors import UsageError

from hindmost_collector.model import Job, Run
from hindmost_collector.sources.columns import concatenate, table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hindmost_collector.sources.files import Sample

NAME = "GPU samples (nvml.csv)"

#: Column of the file to metric and the factor to its base unit.
_METRICS = {
    "util": ("hindmost_gpu_utilization_ratio", 0.01),
    "mem_util": ("hindmost_gpu_memory_utilization_ratio", 0.01),
    "power_mw": ("hindmost_gpu_power_watts", 0.001),
    "sm_mhz": ("hindmost_gpu_sm_clock_hertz", 1e6),
    "mem_mhz": ("hindmost_gpu_memory_clock_hertz", 1e6),
    "temp": ("hindmost_gpu_temperature_celsius", 1.0),
    "reasons": ("hindmost_gpu_clocks_event_reasons", 1.0),
}
MAX_SAMPLES = 400_000


def recognises(sample: Sample) -> bool:
    """Whether the header names a time, a GPU and at least one known column."""
    columns = sample.first_line().decode(errors="replace").split(",")
    return columns[:2] == ["t_ns", "gpu"] and any(name in _METRICS for name in columns)


def load(files: Sequence[Path]) -> Run:
    """Every GPU's samples as metrics, labelled by the GPU's index: the file knows no other identity."""
    read = [_read(path, MAX_SAMPLES // len(files)) for path in files]
    return Run(job=Job(id="", source=NAME), metrics=concatenate("metrics", [part for parts in read for part in parts]))


def gpu(index: int) -> str:
    """What stands for a GPU's UUID where only its index is known."""
    return f"gpu{index}"


def _read(path: Path, budget: int) -> list[dict[str, np.ndarray[Any, Any]]]:
    try:
        samples = pa_csv.read_csv(path, parse_options=pa_csv.ParseOptions(invalid_row_handler=lambda _: "skip"))
        columns = {name: samples[name].to_numpy() for name in samples.column_names}
        every = -(-len(columns["t_ns"]) // budget)
        kept = np.arange(len(columns["t_ns"])) // (np.unique(columns["gpu"]).size or 1) % max(1, every) == 0
        indices = columns["gpu"][kept].astype(np.int64)
        time = columns["t_ns"][kept].astype(np.int64)
        numbers = {name: columns[name][kept].astype(np.float64) for name in _METRICS if name in columns}
    except (pa.ArrowInvalid, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: not {NAME}: {str(error).splitlines()[0]}") from error
    names = {index: f'{{"gpu_uuid": "{gpu(index)}"}}' for index in np.unique(indices).tolist()}
    labels = np.array([names[index] for index in indices.tolist()])
    return [
        table("metrics", node="", name=_METRICS[name][0], labels=labels, time_ns=time, value=value * _METRICS[name][1])
        for name, value in numbers.items()
    ]
