"""Parquet of the what-if study of stragglers (OSDI'25): one row an operation of each pipeline worker and step.

Columns ``dp_rank, stage, rank, step, optype, start_ts, duration, seq_id, mc, mb_id``, times in s from the begin of
the step; ``meta-NAME.yaml`` next to ``trace-NAME.parquet`` has the parallel sizes. One worker stands for its
tensor-parallel group: its ``rank`` is that of the group's first member.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from hindmost.errors import UsageError
from hindmost_judge.model import UNMEASURED, Job, Run, Table
from hindmost_judge.types import Array

from hindmost_collector.recordings.tables import table
from hindmost_collector.recordings.trace_files import Sample

NAME = "Parquet of the OSDI'25 straggler study"
PRECEDENCE = 40

_COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id")
#: The operations that are a worker's own work.
WORK = ("forward-compute", "backward-compute")
#: Operations kept: about 170 bytes each in memory. A trace that has more is read up to there, by whole steps.
MAX_OPERATIONS = 3_000_000
MAX_META_BYTES = 64 * 1024
_SIZE = re.compile(r"^(\w+_size): *(\d{1,7})\s*$", re.MULTILINE)


def recognises(sample: Sample) -> bool:
    """Whether it is Parquet with the study's columns."""
    if not sample.head.startswith(b"PAR1"):
        return False
    try:
        return set(_COLUMNS) <= set(pq.read_schema(sample.path).names)
    except (pa.ArrowException, OSError, UnicodeDecodeError):  # of a damaged name
        return False


def load(files: Sequence[Path]) -> Run:
    """One trace as a graph of operations. Steps lie end to end on a clock that starts at 0."""
    if len(files) > 1:
        names = ", ".join(path.name for path in files[:3])
        raise UsageError(f"{files[0].parent}: several traces of different jobs ({names}); name one of them")
    path = files[0]
    sizes = _sizes(path)
    try:
        c, left_out = _read(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UsageError(f"{path}: not a {NAME}: {str(error).splitlines()[0]}") from error
    if not len(c["step"]):
        raise UsageError(f"{path}: holds no operation")
    if not np.isin(c["optype"], WORK).any():
        raise UsageError(f"{path}: none of its operations is one of {' and '.join(WORK)}: it shows no rank's work")
    start = _on_one_clock(c)
    workers = np.unique(c["rank"])
    tensor_parallel = sizes.get("tp_size", 1)
    world = sizes.get("world_size", len(workers))
    notes = [f"{path.name} has no host, GPU or network data: causes come from the kind of operation only."]
    if tensor_parallel > 1:
        notes.append(f"Each worker stands for a tensor-parallel group of {tensor_parallel} ranks, named by its first.")
    if left_out:
        notes.append(f"Only the first {MAX_OPERATIONS:,} operations were read.")
    return Run(
        job=Job(id=sizes_name(path), world_size=world, source=NAME),
        ranks=table("ranks", rank=workers, world_size=world),
        operations=_operations(c, start),
        notes=tuple(notes),
    )


def sizes_name(path: Path) -> str:
    """``trace-AR.parquet`` is the job ``AR``."""
    return path.stem.removeprefix("trace-")


def _sizes(path: Path) -> dict[str, int]:
    """The parallel sizes of ``meta-NAME.yaml``; nothing where there is none."""
    meta = path.with_name(f"meta-{sizes_name(path)}.yaml")
    if not meta.is_file():
        return {}
    with meta.open(errors="replace") as stream:
        return {name: int(value) for name, value in _SIZE.findall(stream.read(MAX_META_BYTES))}


def _read(path: Path) -> tuple[dict[str, Array], bool]:
    tables: list[dict[str, Array]] = []
    count = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(1 << 17, columns=list(_COLUMNS)):
            tables.append(_columns(batch))
            count += batch.num_rows
            if count > MAX_OPERATIONS:
                break
        left_out = count < file.metadata.num_rows
    return {name: np.concatenate([part[name] for part in tables]) for name in _COLUMNS}, left_out


def _columns(batch: Any) -> dict[str, Array]:
    coded = batch["optype"].cast(pa.string()).dictionary_encode()
    op = np.array([name or "" for name in coded.dictionary.to_pylist()] or [""], dtype="U32")
    columns: dict[str, Array] = {"optype": op[pc.fill_null(coded.indices, 0).to_numpy()]}
    for name in ("start_ts", "duration"):
        columns[name] = pc.fill_null(batch[name].cast(pa.float64()), np.nan).to_numpy()
    for name in set(_COLUMNS) - columns.keys():
        columns[name] = pc.fill_null(batch[name].cast(pa.int64()), UNMEASURED).to_numpy()
    return columns


def _on_one_clock(c: dict[str, Array]) -> Array:
    """Start of each operation, s: the file counts each step from its own begin; here one follows the other."""
    numbers, which = np.unique(c["step"], return_inverse=True)
    end = np.zeros(len(numbers))
    np.maximum.at(end, which, np.nan_to_num(c["start_ts"] + c["duration"]))
    return c["start_ts"] + (np.cumsum(end) - end)[which]


def _nanoseconds(seconds: Array) -> Array:
    whole: Array = np.where(np.isfinite(seconds), np.rint(np.nan_to_num(seconds) * 1e9), UNMEASURED)
    return whole


def _operations(c: dict[str, Array], start: Array) -> Table:
    return table(
        "operations",
        rank=c["rank"],
        step=c["step"],
        op=c["optype"],
        start_ns=_nanoseconds(start),
        duration_ns=_nanoseconds(c["duration"]),
        seq=c["seq_id"],
        micro_batch=c["mb_id"],
        chunk=c["mc"],
        stage=c["stage"],
        dp=c["dp_rank"],
        tp=0,
    )
