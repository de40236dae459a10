"""``prof.PID.csv``: one line a finished NCCL operation with its times on the GPU, as an NCCL profiler plugin writes it.

Columns, without a header: communicator, rank in it, sequence number within the function (the peer for point-to-point),
function, element count, algorithm (``P2P``), protocol, channels, host enqueue start and end, GPU start and stop, time
logged. Host times are ns of CLOCK_REALTIME; GPU times are ns of that GPU's own clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from hindmost.errors import UsageError

from hindmost_collector.model import GPU_TIME, Job, Run, Table
from hindmost_collector.sources.columns import concatenate, table
from hindmost_collector.sources.operations import operation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hindmost_collector.sources.files import Sample

NAME = "NCCL profiler CSV (prof.PID.csv)"

#: Operations kept of one recording: about 120 bytes each in memory. Beyond it, whole windows of time are left out, the
#: same ones on every rank.
MAX_OPERATIONS = 3_000_000
WINDOW_NS = 10_000_000_000
_BYTES_A_LINE = 150
_LINE = re.compile(rb"^[0-9a-f]{1,16},\d+,\d+,\w+,\d+,\w+,\w*,\d+(,\d+){5}\s*$")
_INTEGERS = ("rank_in", "seq", "count", "channels", "enqueue", "enqueued", "start", "stop", "logged")
_COLUMNS = ("comm", "rank_in", "seq", "op", "count", "algorithm", "protocol", "channels", *_INTEGERS[4:])
_KEPT = ("comm", "rank_in", "seq", "op", "count", "algorithm", "enqueue", "start", "stop")


def recognises(sample: Sample) -> bool:
    """Whether the first line is one of a finished operation."""
    return _LINE.match(sample.first_line()) is not None


@dataclass
class _File:
    """One process' operations in the order in which it enqueued them."""

    path: Path
    pid: int
    columns: dict[str, np.ndarray[Any, Any]]
    torn: int = 0

    @property
    def rank_in(self) -> dict[int, int]:
        """Communicator to this process' rank in it."""
        ids, first = np.unique(self.columns["comm"], return_index=True)
        return dict(zip(ids.tolist(), self.columns["rank_in"][first].tolist(), strict=True))


def load(files: Sequence[Path]) -> Run:
    """Every process' operations as one run; ranks are those of the communicator that all processes are in."""
    stride = max(1, -(-sum(path.stat().st_size for path in files) // (_BYTES_A_LINE * MAX_OPERATIONS)))
    parts = [part for part in (_read(path, stride) for path in files) if len(part.columns["comm"])]
    ranks, notes = _ranks(parts)
    notes += _notes(parts, stride)
    return Run(
        job=Job(id="", world_size=len(parts), source=NAME),
        ranks=table("ranks", rank=ranks, world_size=len(parts), pid=[part.pid for part in parts]),
        collectives=concatenate(
            "collectives",
            [_collectives(*one) for one in zip(parts, ranks, _positions(parts), strict=True)],
        ),
        communicators=_communicators(parts, ranks),
        notes=tuple(notes),
    )


def _read(path: Path, stride: int) -> _File:
    torn: list[str] = []

    def skip(row: Any) -> str:
        torn.append(row.text or "")
        return "skip"

    types = {"comm": pa.string(), "op": pa.dictionary(pa.int32(), pa.string()), "algorithm": pa.string()}
    convert = pa_csv.ConvertOptions(
        column_types={**types, **dict.fromkeys(_INTEGERS, pa.int64())}, include_columns=list(_KEPT)
    )
    options = pa_csv.ReadOptions(column_names=list(_COLUMNS), block_size=4 << 20, use_threads=False)
    try:
        with pa_csv.open_csv(
            path, options, pa_csv.ParseOptions(invalid_row_handler=skip), convert_options=convert
        ) as reader:
            batches = [_thin(batch, stride) for batch in reader]
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a {NAME}: {str(error).splitlines()[0]}") from error
    columns = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    order = np.argsort(columns["enqueue"], kind="stable")
    pid = re.search(r"(\d+)\.csv", path.name)
    return _File(path, int(pid[1]) if pid else -1, {k: v[order] for k, v in columns.items()}, len(torn))


def _thin(batch: Any, stride: int) -> dict[str, np.ndarray[Any, Any]]:
    if stride > 1:
        batch = batch.filter(pa.array(batch["enqueue"].to_numpy() // WINDOW_NS % stride == 0))
    op = batch["op"].dictionary_decode() if pa.types.is_dictionary(batch["op"].type) else batch["op"]
    columns = {name: batch[name].to_numpy() for name in ("rank_in", "seq", "count", "enqueue", "start", "stop")}
    names, codes = _encoded(batch["comm"])
    identities = np.array([int(name, 16) for name in names], dtype=np.uint64)
    columns["comm"] = identities[codes] if len(identities) else np.empty(0, np.uint64)
    names, codes = _encoded(op)
    columns["op"] = np.array([operation(name) for name in names] or [""], dtype="U20")[codes]
    columns["p2p"] = pc.equal(batch["algorithm"], "P2P").to_numpy(zero_copy_only=False)
    return columns


def _encoded(column: Any) -> tuple[list[str], np.ndarray[Any, Any]]:
    coded = column.dictionary_encode()
    return coded.dictionary.to_pylist(), coded.indices.to_numpy()


def _ranks(parts: list[_File]) -> tuple[list[int], list[str]]:
    """The rank of each process in the communicator that has them all; by process id where there is none."""
    for comm in {comm for part in parts for comm in part.rank_in}:
        inside = [part.rank_in.get(comm, -1) for part in parts]
        if sorted(inside) == list(range(len(parts))):
            return inside, []
    order = sorted(range(len(parts)), key=lambda i: parts[i].pid)
    note = "No communicator of the profiler CSVs has all processes: ranks are in the order of process ids."
    return [order.index(i) for i in range(len(parts))], [note]


def _notes(parts: list[_File], stride: int) -> list[str]:
    torn = sum(part.torn for part in parts)
    notes = ["Profiler CSVs give element counts, not bytes: sizes are taken as one byte an element."]
    if torn:
        notes.append(f"{torn} torn line{'s' * (torn > 1)} of the profiler CSVs left out.")
    if stride > 1:
        notes.append(
            f"Of the profiler CSVs {WINDOW_NS // 10**9} s in every {stride} times that were read, to stay in memory."
        )
    return notes


def _positions(parts: list[_File]) -> list[np.ndarray[Any, Any]]:
    """Each row's position in its communicator, alike on all members.

    The file counts per function; the order of enqueueing, which NCCL demands to be one on all members, joins the
    functions. The member that saw most gives the order.
    """
    positions = [_counted_p2p(part.columns) for part in parts]
    names = sorted({str(name) for part in parts for name in np.unique(part.columns["op"])})
    keys = [np.searchsorted(names, part.columns["op"]).astype(np.int64) << 40 | part.columns["seq"] for part in parts]
    for comm in {comm for part in parts for comm in part.rank_in}:
        chosen = [np.flatnonzero((part.columns["comm"] == comm) & ~part.columns["p2p"]) for part in parts]
        reference = max((key[rows_] for key, rows_ in zip(keys, chosen, strict=True)), key=len)
        order = np.argsort(reference, kind="stable")
        for key, rows_, out in zip(keys, chosen, positions, strict=True):
            out[rows_] = _found(key[rows_], reference, order)
    return positions


def _found(keys: np.ndarray[Any, Any], reference: np.ndarray[Any, Any], order: np.ndarray[Any, Any]) -> Any:
    """Where each key is in ``reference``; behind its end where it is not."""
    if len(keys) == len(reference) and np.array_equal(keys, reference):
        return np.arange(len(keys))
    place = np.searchsorted(reference, keys, sorter=order)
    found = order[np.minimum(place, len(reference) - 1)]
    return np.where(reference[found] == keys, found, len(reference) + np.arange(len(keys)))


def _counted_p2p(columns: Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Point-to-point operations numbered per communicator, direction and peer; 0 for the others."""
    seq = np.zeros(len(columns["comm"]), dtype=np.int64)
    p2p = np.flatnonzero(columns["p2p"])
    _, group = np.unique(np.rec.fromarrays([columns[name][p2p] for name in ("comm", "op", "seq")]), return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    lengths = np.diff(starts, append=len(order))
    seq[p2p[order]] = np.arange(len(order)) - np.repeat(starts, lengths)
    return seq


def _collectives(part: _File, rank: int, position: np.ndarray[Any, Any]) -> Table:
    c = part.columns
    return table(
        "collectives",
        rank=np.full(len(position), rank),
        comm=c["comm"],
        seq=position,
        op=c["op"],
        start_ns=c["start"],
        duration_ns=c["stop"] - c["start"],
        bytes=c["count"],
        flags=GPU_TIME,
        peer=np.where(c["p2p"], c["seq"], -1),
        enqueue_ns=c["enqueue"],
    )


def _communicators(parts: list[_File], ranks: list[int]) -> Table:
    """Who is in which communicator; its size is the members seen, or more where a rank in it says so."""
    members = [
        (comm, rank, inside) for part, rank in zip(parts, ranks, strict=True) for comm, inside in part.rank_in.items()
    ]
    types = (np.uint64, np.int32, np.int32)
    columns = zip(zip(*members, strict=True), types, strict=True)
    comm, rank, inside = (np.array(column, dtype=dtype) for column, dtype in columns)
    size = [max(int(inside[comm == one].max()) + 1, int((comm == one).sum())) for one in comm]
    return table("communicators", comm=comm, rank=rank, rank_in=inside, size=size, name="")
