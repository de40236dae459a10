"""``nvml.csv``: one line a GPU and sample: time, GPU index, utilisation, power, clocks, temperature and more."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from hindmost_judge.model import Job, Run, Table

from hindmost_collector.recordings.tables import WHOLE, concatenate, incomplete, table, together
from hindmost_collector.recordings.trace_files import DamagedError, Sample, open_bytes, read_undamaged, sample

NAME = "GPU samples (nvml.csv)"
PRECEDENCE = 80

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
    read, notes = read_undamaged(files, lambda path: _read(path, MAX_SAMPLES // len(files)))
    metrics = concatenate("metrics", [part for parts, _ in read for part in parts])
    return Run(
        job=Job(id="", source=NAME), metrics=metrics, notes=(*notes, *(note for _, of_file in read for note in of_file))
    )


def gpu(index: int) -> str:
    """What stands for a GPU's UUID where only its index is known."""
    return f"gpu{index}"


def labels_of(index: int) -> str:
    """What its samples are labelled with."""
    return f'{{"gpu_uuid": "{gpu(index)}"}}'


#: A value that is neither a time nor an index: one that is none is left out alone.
_NUMBER = r"^-?\d{1,18}(\.\d*)?([eE][+-]?\d{1,2})?$"
_MOST_GPUS = 1 << 16


def _read(path: Path, budget: int) -> tuple[list[Table], list[str]]:
    torn: list[str] = []

    def skip(row: Any) -> str:
        torn.append(row.text or "")
        return "skip"

    try:
        columns = sample(path).first_line().decode(errors="replace").split(",")
        text = pa_csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string()))
        with open_bytes(path) as stream:
            samples = pa_csv.read_csv(stream, None, pa_csv.ParseOptions(invalid_row_handler=skip), text)
    except (pa.ArrowInvalid, ValueError, KeyError, TypeError) as error:
        raise DamagedError(path, f"not {NAME}: {str(error).splitlines()[0]}") from error
    count, samples = len(samples), _sane(samples)
    lost = count - len(samples) + len(torn)
    if not len(samples):
        raise DamagedError(path, f"not {NAME}: no whole line")
    return _tables(samples, budget), incomplete(lost, f"{path.name}: ")


def _sane(samples: Any) -> Any:
    """The rows whose time and GPU can be what they are to be: no run lasts for a year."""
    whole = [pc.match_substring_regex(samples[name], WHOLE) for name in ("t_ns", "gpu")]
    samples = samples.filter(pc.and_(*whole))
    gpus, times = (samples[name].cast(pa.int64()).to_numpy() for name in ("gpu", "t_ns"))
    return samples.filter(pa.array((gpus < _MOST_GPUS) & together(times)))


def _tables(samples: Any, budget: int) -> list[Table]:
    time, indices = (samples[name].cast(pa.int64()).to_numpy() for name in ("t_ns", "gpu"))
    every = -(-len(time) // budget)
    mask = np.arange(len(time)) // (np.unique(indices).size or 1) % max(1, every) == 0
    names = {index: labels_of(index) for index in np.unique(indices).tolist()}
    labels = np.array([names[index] for index in indices.tolist()])
    found = []
    for name, (metric, unit) in _METRICS.items():
        if name in samples.column_names:
            text = samples[name]
            known = pc.match_substring_regex(text, _NUMBER)
            value = pc.if_else(known, text, None).cast(pa.float64()).to_numpy()
            measured = mask & ~np.isnan(value)
            parts = {"labels": labels[measured], "time_ns": time[measured], "value": value[measured] * unit}
            found.append(table("metrics", node="", name=np.full(int(measured.sum()), metric), **parts))
    return found
