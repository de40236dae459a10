"""NCCL Inspector's JSON lines, terse and verbose: one object an operation and rank.

``header`` (communicator ``id``, ``rank`` in it, ``n_ranks``), ``metadata`` (host, process, time written), ``coll_perf``
(function, number within the function, bytes, duration) or ``p2p_perf``; verbose adds ``event_trace_ts`` with host times
in us. Described in the README of NCCL's ``plugins/profiler/inspector``.
"""

from __future__ import annotations

import io
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
from hindmost.errors import UsageError
from hindmost_judge.model import GPU_TIME, UNMEASURED, Job, Run, Table
from hindmost_judge.types import Array

from hindmost_collector.recordings import one_job
from hindmost_collector.recordings.rank_mapping import (
    WINDOW_NS,
    communicators,
    counted,
    positions,
    stride,
    thinned,
    world_ranks,
)
from hindmost_collector.recordings.tables import LONGEST_NS, MOST_RANKS, incomplete, operation, table
from hindmost_collector.recordings.trace_files import DamagedError, Sample, lines, read_undamaged

NAME = "NCCL Inspector JSON lines"
PRECEDENCE = 30

_BLOCK_BYTES = 8 << 20
_BYTES_A_LINE = 400
_TIMES = pa.struct(
    [
        ("coll_start_ts", pa.int64()),
        ("p2p_start_ts", pa.int64()),
        ("kernel_events", pa.list_(pa.struct([("kernel_start_ts", pa.int64())]))),
    ]
)


def _performance(kind: str) -> pa.DataType:
    names = [("sn", pa.int64()), ("msg_size_bytes", pa.int64()), ("exec_time_us", pa.float64()), ("peer", pa.int64())]
    own = [(kind, pa.string()), *((f"{kind}_{name}", dtype) for name, dtype in names)]
    return pa.struct([*own, ("event_trace_ts", _TIMES)])


_SCHEMA = pa.schema(
    [
        ("header", pa.struct([("id", pa.string()), ("rank", pa.int64()), ("n_ranks", pa.int64())])),
        ("metadata", pa.struct([("dump_timestamp_us", pa.int64()), ("hostname", pa.string()), ("pid", pa.int64())])),
        ("coll_perf", _performance("coll")),
        ("p2p_perf", _performance("p2p")),
    ]
)
_COLUMNS = tuple("process comm rank_in n_ranks number op bytes took peer written start host".split())


def recognises(sample: Sample) -> bool:
    """Whether one of the first lines has Inspector's header and an operation's performance."""
    return any("header" in one and ("coll_perf" in one or "p2p_perf" in one) for one in sample.objects())


@dataclass
class _Reading:
    """What has been read so far: columns in pieces, and the processes met."""

    every: int
    pieces: dict[str, list[Array]] = field(default_factory=lambda: defaultdict(list))
    processes: dict[tuple[str, int], int] = field(default_factory=dict)
    torn: int = 0
    nonsense: int = 0

    def process(self, node: str, pid: int) -> int:
        return self.processes.setdefault((node, pid), len(self.processes))


def load(files: Sequence[Path]) -> Run:
    """All operations of all processes; ranks are those of the communicator that all processes are in."""
    one_job.refuse_copies(files)
    reading = _Reading(stride(sum(path.stat().st_size for path in files), _BYTES_A_LINE))
    _, left_out = read_undamaged(files, lambda path: _read(path, reading))
    if not reading.processes:
        raise DamagedError(files[0].parent, f"no whole line in the {NAME}")
    c = {name: np.concatenate(reading.pieces[name]) for name in _COLUMNS}
    rank_in, sizes = _memberships(c, len(reading.processes))
    _refuse_contradictions(f"{files[0].parent}: {NAME}", c, reading, rank_in)
    ranks, world, notes = world_ranks(rank_in, sizes)
    collectives = _collectives(c, np.array(ranks))
    return Run(
        job=Job(id="", world_size=world, source=NAME, pace_ns=_pace(c)),
        ranks=table(
            "ranks",
            rank=ranks,
            world_size=world or UNMEASURED,
            node=[node for node, _ in reading.processes],
            pid=[pid for _, pid in reading.processes],
        ),
        collectives=collectives,
        communicators=communicators(rank_in, ranks, sizes),
        notes=(*notes, *left_out, *_notes(c, collectives, reading), *thinned(reading.every)),
    )


def _read(path: Path, reading: _Reading) -> None:
    for block in _blocks(path):
        _take(_parsed(block, reading), reading)


def _refuse_contradictions(where: str, c: dict[str, Array], reading: _Reading, rank_in: list[dict[int, int]]) -> None:
    names = [f"process {pid}{f' of {node}' * bool(node)}" for node, pid in reading.processes]
    times = {name: c["written"][c["process"] == one] * 1000 for one, name in enumerate(names)}
    one_job.refuse_other_jobs(where, dict(zip(names, rank_in, strict=True)), times)


def _blocks(path: Path) -> Iterator[list[bytes]]:
    block: list[bytes] = []
    size = 0
    for line in lines(path):
        block.append(line)
        size += len(line)
        if size >= _BLOCK_BYTES:
            yield block
            block, size = [], 0
    if block:
        yield block


def _parsed(block: list[bytes], reading: _Reading) -> pa.Table:
    try:
        return _arrow(b"".join(block))
    except pa.ArrowInvalid:
        whole = [line for line in block if _is_operation(line)]
        reading.torn += sum(bool(line.strip()) for line in block) - len(whole)
        return _arrow(b"".join(whole)) if whole else _SCHEMA.empty_table()


def _arrow(data: bytes) -> pa.Table:
    options = pa_json.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="ignore")
    return pa_json.read_json(io.BytesIO(data), pa_json.ReadOptions(False, 4 * _BLOCK_BYTES), options)


def _is_operation(line: bytes) -> bool:
    """Whether one line alone can be read as the schema says."""
    try:
        json.loads(line)
        _arrow(line)
    except (ValueError, RecursionError):
        return False
    return line.endswith(b"\n")


def _take(block: pa.Table, reading: _Reading) -> None:
    """Flatten one block into columns; only the windows of time that are read."""
    flat = block.flatten().flatten().flatten()
    for kind in ("coll", "p2p"):
        rows = flat.filter(pc.is_valid(flat[f"{kind}_perf.{kind}"]))
        written = _numbers(rows["metadata.dump_timestamp_us"])
        rows = rows.filter(pa.array(written * 1000 // WINDOW_NS % reading.every == 0)) if reading.every > 1 else rows
        sane = rows.filter(pa.array(_sane(rows, kind)))
        reading.nonsense += rows.num_rows - sane.num_rows
        if sane.num_rows:
            for name, values in _columns(sane, kind, reading).items():
                reading.pieces[name].append(values)


_IDENTITY = "^(0[xX])?[0-9a-fA-F]{1,16}$"


def _sane(rows: pa.Table, kind: str) -> Array:
    """Which rows' numbers can be what they are to be."""
    rank, size = _numbers(rows["header.rank"]), _numbers(rows["header.n_ranks"])
    took = np.abs(np.nan_to_num(rows[f"{kind}_perf.{kind}_exec_time_us"].to_numpy()))
    comm = pc.fill_null(rows["header.id"], "0").combine_chunks().dictionary_encode()
    known = pc.take(pc.match_substring_regex(comm.dictionary, _IDENTITY), comm.indices).to_numpy(zero_copy_only=False)
    mask = known & (rank >= 0) & (size < MOST_RANKS) & ((rank < size) | (size < 1)) & (took <= LONGEST_NS / 1000)
    return np.asarray(mask & (_numbers(rows[f"{kind}_perf.{kind}_sn"]) >= 0))


def _columns(rows: pa.Table, kind: str, reading: _Reading) -> dict[str, Array]:
    perf = f"{kind}_perf"
    times = f"{perf}.event_trace_ts"
    numbers = {
        "rank_in": "header.rank",
        "n_ranks": "header.n_ranks",
        "number": f"{perf}.{kind}_sn",
        "bytes": f"{perf}.{kind}_msg_size_bytes",
        "peer": f"{perf}.{kind}_peer",
        "written": "metadata.dump_timestamp_us",
        "host": f"{times}.{kind}_start_ts",
    }
    columns = {name: _numbers(rows[source]) for name, source in numbers.items()}
    columns["took"] = np.nan_to_num(rows[f"{perf}.{kind}_exec_time_us"].to_numpy() * 1000, nan=-1).astype(np.int64)
    columns["start"] = _first_kernel(rows[f"{times}.kernel_events"])
    columns["comm"] = _coded(rows["header.id"], lambda name: int(name, 16) % 2**64, np.uint64)
    columns["op"] = _coded(rows[f"{perf}.{kind}"], operation, "U20")
    hosts, pids = rows["metadata.hostname"].to_pylist(), _numbers(rows["metadata.pid"]).tolist()
    known = {one: reading.process(*one) for one in dict.fromkeys(zip((h or "" for h in hosts), pids, strict=True))}
    columns["process"] = np.array([known[h or "", pid] for h, pid in zip(hosts, pids, strict=True)], dtype=np.int64)
    return columns


def _numbers(column: Any) -> Array:
    filled: Array = pc.fill_null(column, -1).to_numpy()
    return filled


def _coded(column: Any, spell: Any, dtype: Any) -> Array:
    coded = pc.fill_null(column, "0").combine_chunks().dictionary_encode()
    try:
        names = np.array([spell(name) for name in coded.dictionary.to_pylist()], dtype=dtype)
    except ValueError as error:
        raise UsageError(f"not {NAME}: a communicator's id is not a hexadecimal number ({error})") from error
    spelled: Array = names[coded.indices.to_numpy()]
    return spelled


def _first_kernel(events: Any) -> Array:
    """Host us at which each operation's first kernel was seen to start; -1 in terse lines."""
    events = events.combine_chunks()
    out = np.full(len(events), -1, dtype=np.int64)
    owner = pc.list_parent_indices(events).to_numpy()
    if len(owner):
        start = _numbers(pc.struct_field(pc.list_flatten(events), "kernel_start_ts"))
        first = np.full(len(events), np.iinfo(np.int64).max)
        np.minimum.at(first, owner, start)
        out = np.where(first < np.iinfo(np.int64).max, first, -1)
    return out


def _memberships(c: dict[str, Array], processes: int) -> tuple[list[dict[int, int]], dict[int, int]]:
    rank_in: list[dict[int, int]] = [{} for _ in range(processes)]
    for comm in np.unique(c["comm"]).tolist():
        mine = c["comm"] == comm
        process, first = np.unique(c["process"][mine], return_index=True)
        for one, inside in zip(process.tolist(), c["rank_in"][mine][first].tolist(), strict=True):
            rank_in[one][comm] = inside
    comms, first = np.unique(c["comm"], return_index=True)
    return rank_in, dict(zip(comms.tolist(), c["n_ranks"][first].tolist(), strict=True))


def _collectives(c: dict[str, Array], ranks: Array) -> Table:
    """Verbose lines have a start, seen by the host; terse ones none. Either way it is a kernel that runs on the GPU."""
    rank = ranks[c["process"]]
    p2p = c["peer"] >= 0
    seq = positions(c["comm"], c["op"], c["number"], c["written"], c["process"])
    seq[p2p] = counted([rank[p2p], c["comm"][p2p], c["op"][p2p], c["peer"][p2p]])
    part = table(
        "collectives",
        rank=rank,
        comm=c["comm"],
        seq=seq,
        op=c["op"],
        start_ns=np.where(c["start"] >= 0, c["start"] * 1000, UNMEASURED),
        duration_ns=c["took"],
        bytes=c["bytes"],
        flags=GPU_TIME,
        peer=np.where(p2p, c["peer"], -1),
    )
    return {**part, "enqueue_ns": np.where(c["host"] >= 0, c["host"] * 1000, -1)}


#: Lines are written in batches where the time to one is so many times the usual.
_BATCH = 10


def _pace(c: dict[str, Array]) -> float | None:
    """ns from one collective of a process to its next, by when they were written down: coarse, and right on average."""
    mine = np.flatnonzero((c["process"] == 0) & (c["peer"] < 0) & (c["written"] >= 0))
    written = np.sort(c["written"][mine])
    covered = passed = 0
    for part in np.split(written, np.flatnonzero(np.diff(written * 1000 // WINDOW_NS)) + 1):
        first = _end_of_batch(part)
        covered += int(part[-1] - part[first]) if len(part) else 0
        passed += max(len(part) - 1 - first, 0)
    return covered * 1000 / passed if covered and passed else None


def _end_of_batch(written: Array) -> int:
    """The last of the first batch: it is of the time before it, as every batch is, and so no part of what follows."""
    gaps = np.diff(written)
    between = np.flatnonzero(gaps > _BATCH * max(float(np.median(gaps)), 1.0)) if len(gaps) else gaps
    return int(between[0]) if len(between) and between[0] < len(gaps) / 2 else 0


def _notes(c: dict[str, Array], collectives: Table, reading: _Reading) -> list[str]:
    notes = []
    if (c["start"] < 0).any():
        notes.append("Terse Inspector lines have no start times: only how long each operation took is known.")
    numbered = collectives["seq"][collectives["peer"] < 0]
    expected = int(np.ptp(numbered) + 1) * len(np.unique(collectives["rank"])) if len(numbered) else 0
    if reading.every == 1 and len(np.unique(c["comm"])) == 1 and expected > len(numbered):
        missed = expected - len(numbered)
        notes.append(f"Inspector missed {missed} of {expected} operations: it keeps only the latest.")
    if untrue := reading.nonsense:
        notes.append(f"{untrue:,} line{'s' * (untrue > 1)} of the {NAME} that cannot be true left out.")
    return [*notes, *incomplete(reading.torn, of=f" of the {NAME}")]
