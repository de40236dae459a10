"""``steps.RANK.jsonl``: one JSON line a step with the host's times and CUDA-event milliseconds.

``step``, ``t_start`` (step begins), ``t_data`` (its input is there), ``t_end`` (everything issued), ns of
CLOCK_REALTIME; ``fwd_ms``, ``bwd_ms``, ``opt_ms`` on the GPU. A log may lack ``t_data`` and what was on the GPU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hindmost.errors import UsageError
from hindmost_judge.model import UNMEASURED, Job, Run, Table
from hindmost_judge.types import Array

from hindmost_collector.recordings import one_job
from hindmost_collector.recordings.tables import FAR_NS, LONGEST_NS, concatenate, incomplete, table
from hindmost_collector.recordings.trace_files import DamagedError, Sample, lines, read_undamaged

NAME = "step times (steps.RANK.jsonl)"
PRECEDENCE = 70

#: Steps kept a rank; a rank that made more is read to here and the rest is said to be left out.
MAX_STEPS = 400_000
#: With few steps, at most this share may lack a part by design: an optimizer with several gradients a step is due more
#: often.
_MISSING_SHARE = 0.1
_HOST = ("step", "t_start", "t_data", "t_end")
_NEEDED = ("step", "t_start", "t_end")
_GPU = ("fwd_ms", "bwd_ms", "opt_ms")
_RANK = re.compile(r"\.(\d+)\.jsonl(\.gz|\.xz)?$")


def recognises(sample: Sample) -> bool:
    """Whether one of the first lines is a step with its times, and the name says whose."""
    if _RANK.search(sample.path.name) is None:
        return False
    return any({*_NEEDED} <= one.keys() for one in sample.objects())


def lacks(sample: Sample) -> str | None:
    """Which times a file of that name has in no line, and what it needs; ``None`` where it is of another format."""
    seen = {key for one in sample.objects() for key in one}
    missing = [name for name in _NEEDED if name not in seen]
    if _RANK.search(sample.path.name) is None or not missing or not seen & {*_HOST, *_GPU}:
        return None
    return f"no {' and no '.join(missing)}; needs {', '.join(_NEEDED)} in each line"


def load(files: Sequence[Path]) -> Run:
    """All ranks' steps. A step lasts until the next one starts; the last one until it was issued."""
    budget = MAX_STEPS // max(1, len(files))
    parts, notes = read_undamaged(files, lambda path: _read(path, budget))
    read = {rank: columns for rank, columns, _ in parts}
    notes += [note for _, _, of_file in parts for note in of_file]
    _refuse_contradictions(f"{files[0].parent}: {NAME}", len(parts), read)
    world = len(read) if max(read) == len(read) - 1 else None  # with a gap, the number of further ranks is unknown
    return Run(
        job=Job(id="", world_size=world, source=NAME),
        ranks=table("ranks", rank=sorted(read), world_size=world or UNMEASURED),
        steps=concatenate("steps", [_steps(rank, columns) for rank, columns in sorted(read.items())]),
        intervals=concatenate("intervals", [_issuing(rank, columns) for rank, columns in sorted(read.items())]),
        notes=tuple(notes),
    )


def _refuse_contradictions(where: str, files: int, read: dict[int, dict[str, Array]]) -> None:
    if len(read) < files:
        raise UsageError(f"{where}: two files of one rank; name the folder of one job")
    named = {f"rank {rank}": columns for rank, columns in sorted(read.items())}
    one_job.refuse_twins(where, {name: columns["t_start"] for name, columns in named.items()})
    one_job.refuse_other_steps(where, {name: columns["step"] for name, columns in named.items()})


def _rank(path: Path) -> int:
    found = _RANK.search(path.name)
    if found is None:
        raise UsageError(f"{path}: whose steps are these? name the file steps.RANK.jsonl")
    return int(found[1])


def _read(path: Path, budget: int) -> tuple[int, dict[str, Array], list[str]]:
    """The rank, its steps, and what to say of lines that were left out."""
    rank, rows, torn, notes = _rank(path), list[list[float]](), 0, list[str]()
    for line in lines(path):
        if len(rows) >= budget:
            notes.append(f"{path.name}: only the first {budget:,} steps were read.")
            break
        row = _row(line)
        if row is not None:
            rows.append(row)
        else:
            torn += bool(line.strip())
    notes += incomplete(torn, f"{path.name}: ")
    if not rows:
        raise DamagedError(path, "no step in it can be read; is it whole?")
    host = np.array([row[:4] for row in rows], dtype=np.int64)
    gpu = np.array([row[4:] for row in rows], dtype=np.float64)
    indices = np.flatnonzero(_sane(host))
    if not len(indices):
        raise DamagedError(path, "no step in it can be true: each ends before it begins, or is out of all range")
    if len(indices) < len(host):
        lines_ = f"{len(host) - len(indices):,} line{'s' * (len(host) - len(indices) > 1)} that cannot be true"
        notes.append(f"{path.name}: {lines_} (a number out of all range) left out.")
    order = indices[np.argsort(host[indices, 1], kind="stable")]
    order = order[np.append(True, (np.diff(host[order], axis=0) != 0).any(axis=1))]  # a line may be there twice
    columns: dict[str, Array] = {key: host[order, i] for i, key in enumerate(_HOST)}
    gpu[~((gpu >= 0) & (gpu <= LONGEST_NS / 1e6))] = np.nan
    gpu[(gpu == 0) & ((gpu == 0).mean(axis=0) < _MISSING_SHARE)] = np.nan  # not measured, as it takes time
    return rank, columns | {key: gpu[order, i] for i, key in enumerate(_GPU)}, notes


def _row(line: bytes) -> list[float] | None:
    """The numbers of one line; ``None`` where it is torn, or one of them is none."""
    try:
        row = json.loads(line)
        data = row.get("t_data")
        data_ns = data if isinstance(data, int) else _number(data)
        known = row | {"t_data": UNMEASURED if data_ns != data_ns else data_ns}  # noqa: PLR0124 - NaN: not recorded
        host = [int(known[key]) for key in _HOST]
        gpu = [_number(row.get(key)) for key in _GPU]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, AttributeError):
        return None
    return [*host, *gpu] if all(abs(value) < 1 << 62 for value in host) else None


def _number(value: Any) -> float:
    """What a log need not have; NaN where it has none, or has what is no number."""
    try:
        return float(value)
    except (ValueError, TypeError, OverflowError):
        return float("nan")


#: Nonsense is a step's number further from the typical one than so many times what nine tenths of them are apart.
_FAR_STEPS = 10


def _sane(host: Array) -> Array:
    """Which lines have their times in order, and agree with most of the file on when it was and which steps it has."""
    step, start, _, end = host.T
    mask = (start <= end) & (end - start <= LONGEST_NS) & (step >= 0)
    if not mask.any():
        return np.asarray(mask)
    mask &= np.abs(start - int(np.median(start[mask]))) <= FAR_NS
    low, typical, high = (int(one) for one in np.quantile(step[mask], (0.05, 0.5, 0.95)))
    return np.asarray(mask & (np.abs(step - typical) <= _FAR_STEPS * max(high - low, len(step))))


def _steps(rank: int, c: dict[str, Array]) -> Table:
    start = c["t_start"]
    until = np.append(start[1:], c["t_end"][-1])
    gpu = {
        name: np.where(np.isnan(c[key]), -1, np.nan_to_num(c[key]) * 1e6)
        for name, key in zip(("gpu_forward_ns", "gpu_backward_ns", "gpu_optimizer_ns"), _GPU, strict=True)
    }
    return table(
        "steps",
        rank=np.full(len(start), rank),
        step=c["step"],
        kind="train",
        start_ns=start,
        duration_ns=until - start,
        input_ns=np.where(_in_order(c), c["t_data"] - start, UNMEASURED),
        **{name: np.rint(value) for name, value in gpu.items()},
    )


def _in_order(c: dict[str, Array]) -> Array:
    """Whether the input came within its step: otherwise its time is unknown."""
    return np.asarray((c["t_start"] <= c["t_data"]) & (c["t_data"] <= c["t_end"]))


def _issuing(rank: int, c: dict[str, Array]) -> Table:
    """How long the host took to issue the step's work once its input was there: what a host-bound run shows."""
    return table(
        "intervals",
        rank=np.full(len(c["step"]), rank),
        name="issue",
        start_ns=np.where(_in_order(c), c["t_data"], c["t_start"]),
        duration_ns=np.where(_in_order(c), c["t_end"] - c["t_data"], UNMEASURED),
        value=c["step"],
    )
