"""``prof.PID.csv``: one line a finished NCCL operation with its times on the GPU, as an NCCL profiler plugin writes it.

Columns, without a header: communicator, rank in it, sequence number within the function (the peer for point-to-point),
function, element count, algorithm (``P2P``), protocol, channels, host enqueue start and end, GPU start and stop, time
logged. Host times are ns of CLOCK_REALTIME; GPU times are ns of that GPU's own clock.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from hindmost_judge.model import GPU_TIME, UNMEASURED, Job, Run, Table, rows

from hindmost_collector.formats import damaged, exchanges, foreign_records
from hindmost_collector.formats.columns import concatenate, select, table
from hindmost_collector.formats.files import open_bytes
from hindmost_collector.formats.operations import operation
from hindmost_collector.formats.processes import (
    WINDOW_NS,
    communicators,
    counted,
    in_one_order,
    stride,
    thinned,
    world_ranks,
)
from hindmost_collector.joining import one_job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import IO

    from hindmost_collector.formats.files import Sample

NAME = "NCCL profiler CSV (prof.PID.csv)"

_BYTES_A_LINE, _BLOCK = 150, 4 << 20
_ASCII = bytes(range(128)) + b"?" * 128
_LINE = re.compile(rb"^[0-9a-f]{1,16},\d+,\d+,\w+,\d+,\w+,\w*,\d+(,\d+){5}\s*$")
_INTEGERS = ("rank_in", "seq", "count", "channels", "enqueue", "enqueued", "start", "stop", "logged")
_COLUMNS = ("comm", "rank_in", "seq", "op", "count", "algorithm", "protocol", "channels", *_INTEGERS[4:])
_NUMBERS = ("rank_in", "seq", "count", "enqueue", "start", "stop", "logged")
_KEPT = ("comm", "op", "algorithm", *_NUMBERS)


#: Lines at the beginning of a file of which one is an operation, though others be torn.
_LOOKED_AT = 50
#: No operation takes longer, and no run lasts longer: numbers beyond it are nonsense.
_LONGEST_NS, _FAR_NS = 24 * 3600 * 10**9, 366 * 24 * 3600 * 10**9
_MOST_RANKS = 1 << 24
_IDENTITY = "^[0-9a-fA-F]{1,16}$"
_WHOLE = r"^(\d{1,18}|[1-8]\d{18})$"


def recognises(sample: Sample) -> bool:
    """Whether one of the first lines is one of a finished operation."""
    head = sample.head.lstrip(b"\0").split(b"\0", 1)[0]  # an archive holds lines, too
    return any(_LINE.match(line) for line in head.split(b"\n")[:_LOOKED_AT])


@dataclass
class _File:
    """One process' operations in the order in which it enqueued them."""

    path: Path
    pid: int
    columns: dict[str, np.ndarray[Any, Any]]
    torn: int = 0
    nonsense: int = 0

    @property
    def rank_in(self) -> dict[int, int]:
        """Communicator to this process' rank in it."""
        ids, first = np.unique(self.columns["comm"], return_index=True)
        return dict(zip(ids.tolist(), self.columns["rank_in"][first].tolist(), strict=True))


def load(files: Sequence[Path]) -> Run:
    """Every process' operations as one run; ranks are those of the communicator that all processes are in."""
    one_job.refuse_copies(files)
    every = stride(sum(path.stat().st_size for path in files), _BYTES_A_LINE)
    read, left_out = damaged.whole(files, lambda path: _read(path, every))
    parts = sorted((part for part in read if len(part.columns["comm"])), key=lambda part: part.pid)
    if not parts:
        raise damaged.DamagedError(files[0].parent, f"no whole line in the {NAME}")
    rank_in = [part.rank_in for part in parts]
    _refuse_contradictions(parts, rank_in)
    ranks, world, notes = world_ranks(rank_in, {})
    columns = [part.columns for part in parts]
    untrue = foreign_records.found(columns)
    pieces = [_collectives(*one, believed=not untrue) for one in zip(parts, ranks, _positions(parts), strict=True)]
    met = exchanges.found(columns, ranks, alone=bool(untrue))
    if met is not None:
        pieces = [_with(*one) for one in zip(pieces, met.rows, met.tables, strict=True)]
    return Run(
        job=Job(id="", world_size=world, source=NAME),
        ranks=table("ranks", rank=ranks, world_size=world or UNMEASURED, pid=[part.pid for part in parts]),
        collectives=concatenate("collectives", pieces),
        communicators=communicators(rank_in, ranks, {}),
        notes=(*notes, *left_out, *_notes(read), *foreign_records.told(untrue), *exchanges.told(met), *thinned(every)),
    )


def _with(piece: Table, exchanged: np.ndarray[Any, Any], met: Table) -> Table:
    """One process' operations with its all-to-alls in place of the sends and receives that these are."""
    return concatenate("collectives", [select(piece, np.delete(np.arange(rows(piece)), exchanged)), met])


def _refuse_contradictions(parts: Sequence[_File], rank_in: Sequence[dict[int, int]]) -> None:
    names = [part.path.name for part in parts]
    times = [part.columns["enqueue"] for part in parts]
    where = f"{parts[0].path.parent}: {NAME}"
    one_job.refuse_rejected_calls(where, dict(zip(names, rank_in, strict=True)), dict(zip(names, times, strict=True)))


class _Ascii(io.RawIOBase):
    """A stream with a question mark for what no plugin writes: pyarrow decodes a torn row before it can be skipped."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._raw.read(size)
        return data if data.isascii() else data.translate(_ASCII)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _read(path: Path, every: int) -> _File:
    """One file: where a number is none, or too large for any, once more as text, of which those rows are left out."""
    try:
        return _parsed(path, every, pa.int64())
    except pa.ArrowInvalid:
        pass
    try:
        return _parsed(path, every, pa.string())
    except pa.ArrowInvalid as error:
        long = "straddl" in str(error)
        why = f"a line longer than {_BLOCK >> 20} MiB" if long else str(error).splitlines()[0]
        raise damaged.DamagedError(path, f"not a {NAME}: {why}") from error


def _parsed(path: Path, every: int, number: Any) -> _File:
    torn: list[str] = []

    def skip(row: Any) -> str:
        torn.append(row.text or "")
        return "skip"

    types = {"comm": pa.string(), "op": pa.dictionary(pa.int32(), pa.string()), "algorithm": pa.string()}
    convert = pa_csv.ConvertOptions(
        column_types={**types, **dict.fromkeys(_INTEGERS, number)}, include_columns=list(_KEPT)
    )
    options = pa_csv.ReadOptions(column_names=list(_COLUMNS), block_size=_BLOCK, use_threads=False)
    parse = pa_csv.ParseOptions(invalid_row_handler=skip, quote_char=False)
    with (
        _Ascii(open_bytes(path)) as stream,
        pa_csv.open_csv(stream, options, parse, convert_options=convert) as reader,
    ):
        read = [_sane_and_thin(batch, every) for batch in reader]  # one by one: a file may be larger than memory
    batches = [batch for batch, _ in read]
    columns = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    kept = np.flatnonzero(_consistent(columns))
    nonsense = sum(count for _, count in read) + len(columns["comm"]) - len(kept)
    order = kept[np.argsort(columns["enqueue"][kept], kind="stable")]
    order = order[~_repeated(columns, order)]
    pid = re.search(r"(\d+)\.csv", path.name)
    return _File(path, int(pid[1]) if pid else -1, {k: v[order] for k, v in columns.items()}, len(torn), nonsense)


def _sane(batch: Any) -> tuple[Any, int]:
    """The rows whose numbers can be what they are to be, as integers, and how many cannot."""
    count = batch.num_rows
    if pa.types.is_string(batch.schema.field("start").type):
        batch = _as_numbers(batch)
    comm = batch["comm"].dictionary_encode()
    kept = pc.take(pc.match_substring_regex(comm.dictionary, _IDENTITY), comm.indices)
    took = pc.subtract(batch["stop"], batch["start"])
    kept = pc.and_(kept, pc.and_(pc.greater_equal(took, 0), pc.less_equal(took, _LONGEST_NS)))
    kept = pc.and_(kept, pc.less(batch["rank_in"], _MOST_RANKS))
    for name in ("rank_in", "seq", "count", "enqueue"):
        kept = pc.and_(kept, pc.greater_equal(batch[name], 0))
    sane = batch.filter(kept)
    return sane, count - sane.num_rows


def _sane_and_thin(batch: Any, every: int) -> tuple[dict[str, np.ndarray[Any, Any]], int]:
    sane, nonsense = _sane(batch)
    return _thin(sane, every), nonsense


def _as_numbers(batch: Any) -> Any:
    """The rows of which every number is one."""
    names = batch.schema.names
    for name in set(names) & set(_INTEGERS):
        batch = batch.filter(pc.match_substring_regex(batch[name], _WHOLE))
    columns = [batch[name].cast(pa.int64()) if name in _INTEGERS else batch[name] for name in names]
    return pa.RecordBatch.from_arrays(columns, names)


def _consistent(c: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Which rows agree with most of the file on when it was, and on which rank of each communicator wrote it."""
    kept = np.ones(len(c["comm"]), bool)
    if not len(kept):
        return kept
    for name in ("enqueue", "start"):
        kept &= np.abs(c[name] - int(np.median(c[name]))) <= _FAR_NS
    for comm in np.unique(c["comm"]).tolist():
        mine = np.flatnonzero(c["comm"] == comm)
        ranks, counts = np.unique(c["rank_in"][mine], return_counts=True)
        kept[mine] &= c["rank_in"][mine] == ranks[np.argmax(counts)]
    return kept


def _repeated(c: dict[str, np.ndarray[Any, Any]], order: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which rows, in this order, say what the one before has said: a line may be in a file twice."""
    same = np.zeros(len(order), bool)
    if len(order):
        told = (c[name][order] for name in ("enqueue", "start", "stop", "logged", "seq", "count", "comm", "op"))
        same[1:] = np.logical_and.reduce([one[1:] == one[:-1] for one in told])
    return same


def _thin(batch: Any, every: int) -> dict[str, np.ndarray[Any, Any]]:
    if every > 1:
        batch = batch.filter(pa.array(batch["enqueue"].to_numpy() // WINDOW_NS % every == 0))
    op = batch["op"].dictionary_decode() if pa.types.is_dictionary(batch["op"].type) else batch["op"]
    columns = {
        name: batch[name].to_numpy() for name in ("rank_in", "seq", "count", "enqueue", "start", "stop", "logged")
    }
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


def _notes(read: list[_File]) -> list[str]:
    torn, nonsense = sum(part.torn for part in read), [part for part in read if part.nonsense]
    notes = [f"{torn} incomplete line{'s' * (torn > 1)} of the profiler CSVs left out."] if torn else []
    if not nonsense:
        return notes
    count = sum(part.nonsense for part in nonsense)
    where = nonsense[0].path.name if len(nonsense) == 1 else f"{len(nonsense)} files"
    lines = "1 line that cannot be true" if count == 1 else f"{count:,} lines that cannot be true"
    return [*notes, f"{where}: {lines} (a number out of all range, or another rank's) left out."]


def _positions(parts: list[_File]) -> list[np.ndarray[Any, Any]]:
    """Each row's position in its communicator, alike on all members.

    The file counts per function; the order of enqueueing, which NCCL demands to be one on all members, joins the
    functions.
    """
    positions = [_counted_p2p(part.columns) for part in parts]
    names = sorted({str(name) for part in parts for name in np.unique(part.columns["op"])})
    keys = [np.searchsorted(names, part.columns["op"]).astype(np.int64) << 40 | part.columns["seq"] for part in parts]
    for comm in {comm for part in parts for comm in part.rank_in}:
        chosen = [np.flatnonzero((part.columns["comm"] == comm) & ~part.columns["p2p"]) for part in parts]
        places = in_one_order([key[rows_] for key, rows_ in zip(keys, chosen, strict=True)])
        for place, rows_, out in zip(places, chosen, positions, strict=True):
            out[rows_] = place
    return positions


def _counted_p2p(columns: Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Point-to-point operations numbered per communicator, direction and peer; 0 for the others."""
    seq = np.zeros(len(columns["comm"]), dtype=np.int64)
    p2p = np.flatnonzero(columns["p2p"])
    seq[p2p] = counted([columns[name][p2p] for name in ("comm", "op", "seq")])
    return seq


def _ahead(c: dict[str, np.ndarray[Any, Any]]) -> int:
    """Ns by which the GPU's clock is ahead of the host's: what the host logged soonest had just ended. 0: unknown."""
    known = len(c["logged"]) > 0 and bool((c["logged"] >= c["enqueue"]).all())
    return int((c["stop"] - c["logged"]).max()) if known else 0


def _collectives(part: _File, rank: int, position: np.ndarray[Any, Any], *, believed: bool) -> Table:
    """One process' operations; where their times are not ``believed`` it is known when the host enqueued them."""
    c = part.columns
    return table(
        "collectives",
        rank=np.full(len(position), rank),
        comm=c["comm"],
        seq=position,
        op=c["op"],
        start_ns=c["start"] - _ahead(c) if believed else c["enqueue"],
        duration_ns=c["stop"] - c["start"] if believed else UNMEASURED,
        bytes=c["count"],
        flags=GPU_TIME if believed else 0,
        peer=np.where(c["p2p"], c["seq"], -1),
        enqueue_ns=c["enqueue"],
        elements=c["count"],
    )
