"""``prof.PID.csv``: one line a finished NCCL operation with its times on the GPU, as an NCCL profiler plugin writes it.

Columns, without a header: communicator, rank in it, sequence number within the function (the peer for point-to-point),
function, element count, algorithm (``P2P``), protocol, channels, host enqueue start and end, GPU start and stop, time
logged. Host times are ns of CLOCK_REALTIME; GPU times are ns of that GPU's own clock.

NCCL runs and logs an all-to-all as sends to and receives from all ranks at once. Their kernel begins when a rank
arrives and waits until all have, but NCCL logs the end of a part that does not wait, so no duration shows the waiting.
The arrival times do, on the hosts' clocks, to which those of their GPUs are known: no rank leaves before the last has
arrived. Clocks that are off by 20 us, at each of many exchanges in a step, would make a rank late by a per cent of it.
So a rank counts as on time at the place of the step where it is least late.

Foreign records are GPU times that belong to another operation, since they begin before its host launched it. NCCL gives
a profiler the times of a kernel by the number of the work on its channel. Where grouped sends and receives share
channels with other collectives, those get the times of a much earlier kernel: they seem to take longer than a step.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from hindmost_judge.model import GPU_TIME, UNMEASURED, Job, Run, Table, rows
from hindmost_judge.types import Array, Ints

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
from hindmost_collector.recordings.tables import (
    LONGEST_NS,
    MOST_RANKS,
    WHOLE,
    concatenate,
    incomplete,
    operation,
    select,
    table,
    together,
)
from hindmost_collector.recordings.trace_files import DamagedError, Sample, open_bytes, read_undamaged

Columns = Mapping[str, Array]


NAME = "NCCL profiler CSV (prof.PID.csv)"
PRECEDENCE = 10

_BYTES_A_LINE, _BLOCK = 150, 4 << 20
_ASCII = bytes(range(128)) + b"?" * 128
_LINE = re.compile(rb"^[0-9a-f]{1,16},\d+,\d+,\w+,\d+,\w+,\w*,\d+(,\d+){5}\s*$")
_INTEGERS = ("rank_in", "seq", "count", "channels", "enqueue", "enqueued", "start", "stop", "logged")
_COLUMNS = ("comm", "rank_in", "seq", "op", "count", "algorithm", "protocol", "channels", *_INTEGERS[4:])
_NUMBERS = ("rank_in", "seq", "count", "enqueue", "start", "stop", "logged")
_KEPT = ("comm", "op", "algorithm", *_NUMBERS)


#: Lines at the beginning of a file of which one is an operation, though others be torn.
_LOOKED_AT = 50
_IDENTITY = "^[0-9a-fA-F]{1,16}$"


def recognises(sample: Sample) -> bool:
    """Whether one of the first lines is one of a finished operation."""
    head = sample.head.lstrip(b"\0").split(b"\0", 1)[0]  # an archive holds lines, too
    return any(_LINE.match(line) for line in head.split(b"\n")[:_LOOKED_AT])


@dataclass
class _File:
    """One process' operations in the order in which it enqueued them."""

    path: Path
    pid: int
    columns: dict[str, Array]
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
    read, left_out = read_undamaged(files, lambda path: _read(path, every))
    parts = sorted((part for part in read if len(part.columns["comm"])), key=lambda part: part.pid)
    if not parts:
        raise DamagedError(files[0].parent, f"no whole line in the {NAME}")
    rank_in = [part.rank_in for part in parts]
    _refuse_contradictions(parts, rank_in)
    ranks, world, notes = world_ranks(rank_in, {})
    columns = [part.columns for part in parts]
    untrue = find_foreign(columns)
    pieces = [_collectives(*one, believed=not untrue) for one in zip(parts, ranks, _positions(parts), strict=True)]
    met = find_exchanges(columns, ranks, alone=bool(untrue))
    for place, (at, exchanges) in enumerate(met):  # in place of the sends and receives that these are
        others = select(pieces[place], np.delete(np.arange(rows(pieces[place])), at))
        pieces[place] = concatenate("collectives", [others, exchanges])
    each = rows(met[0][1]) if met else 0
    of_all = [f"Simultaneous sends of all ranks to each other are counted as {each:,} all-to-alls."] * bool(met)
    return Run(
        job=Job(id="", world_size=world, source=NAME),
        ranks=table("ranks", rank=ranks, world_size=world or UNMEASURED, pid=[part.pid for part in parts]),
        collectives=concatenate("collectives", pieces),
        communicators=communicators(rank_in, ranks, {}),
        notes=(*notes, *left_out, *_notes(read), *foreign_notes(untrue), *of_all, *thinned(every)),
    )


def _refuse_contradictions(parts: Sequence[_File], rank_in: Sequence[dict[int, int]]) -> None:
    names = [part.path.name for part in parts]
    times = [part.columns["enqueue"] for part in parts]
    where = f"{parts[0].path.parent}: {NAME}"
    one_job.refuse_other_jobs(where, dict(zip(names, rank_in, strict=True)), dict(zip(names, times, strict=True)))


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
        raise DamagedError(path, f"not a {NAME}: {why}") from error


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
    with _Ascii(open_bytes(path)) as stream, pa_csv.open_csv(stream, options, parse, convert_options=convert) as reader:
        sane = (_sane(batch) for batch in reader)  # one by one: a file may be larger than memory
        read = [(_thin(batch, every), left_out) for batch, left_out in sane]
    batches = [batch for batch, _ in read]
    columns = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    indices = np.flatnonzero(_consistent(columns))
    nonsense = sum(count for _, count in read) + len(columns["comm"]) - len(indices)
    order = indices[np.argsort(columns["enqueue"][indices], kind="stable")]
    order = order[~_repeated(columns, order)]
    pid = re.search(r"(\d+)\.csv", path.name)
    return _File(path, int(pid[1]) if pid else -1, {k: v[order] for k, v in columns.items()}, len(torn), nonsense)


def _sane(batch: Any) -> tuple[Any, int]:
    """The rows whose numbers can be what they are to be, as integers, and how many cannot."""
    count = batch.num_rows
    if pa.types.is_string(batch.schema.field("start").type):
        batch = _as_numbers(batch)
    comm = batch["comm"].dictionary_encode()
    mask = pc.take(pc.match_substring_regex(comm.dictionary, _IDENTITY), comm.indices)
    took = pc.subtract(batch["stop"], batch["start"])
    mask = pc.and_(mask, pc.and_(pc.greater_equal(took, 0), pc.less_equal(took, LONGEST_NS)))
    mask = pc.and_(mask, pc.less(batch["rank_in"], MOST_RANKS))
    for name in ("rank_in", "seq", "count", "enqueue"):
        mask = pc.and_(mask, pc.greater_equal(batch[name], 0))
    sane = batch.filter(mask)
    return sane, count - sane.num_rows


def _as_numbers(batch: Any) -> Any:
    """The rows of which every number is one."""
    names = batch.schema.names
    for name in set(names) & set(_INTEGERS):
        batch = batch.filter(pc.match_substring_regex(batch[name], WHOLE))
    columns = [batch[name].cast(pa.int64()) if name in _INTEGERS else batch[name] for name in names]
    return pa.RecordBatch.from_arrays(columns, names)


def _consistent(c: dict[str, Array]) -> Array:
    """Which rows agree with most of the file on when it was, and on which rank of each communicator wrote it."""
    mask = together(c["enqueue"]) & together(c["start"])
    for comm in np.unique(c["comm"]).tolist():
        mine = np.flatnonzero(c["comm"] == comm)
        ranks, counts = np.unique(c["rank_in"][mine], return_counts=True)
        mask[mine] &= c["rank_in"][mine] == ranks[np.argmax(counts)]
    return mask


def _repeated(c: dict[str, Array], order: Array) -> Array:
    """Which rows, in this order, say what the one before has said: a line may be in a file twice."""
    same = np.zeros(len(order), bool)
    if len(order):
        sorted_columns = (
            c[name][order] for name in ("enqueue", "start", "stop", "logged", "seq", "count", "comm", "op")
        )
        same[1:] = np.logical_and.reduce([column[1:] == column[:-1] for column in sorted_columns])
    return same


def _thin(batch: Any, every: int) -> dict[str, Array]:
    if every > 1:
        batch = batch.filter(pa.array(batch["enqueue"].to_numpy() // WINDOW_NS % every == 0))
    op = batch["op"].dictionary_decode() if pa.types.is_dictionary(batch["op"].type) else batch["op"]
    columns = {name: batch[name].to_numpy() for name in _NUMBERS}
    names, codes = _encoded(batch["comm"])
    identities = np.array([int(name, 16) for name in names], dtype=np.uint64)
    columns["comm"] = identities[codes] if len(identities) else np.empty(0, np.uint64)
    names, codes = _encoded(op)
    columns["op"] = np.array([operation(name) for name in names] or [""], dtype="U20")[codes]
    columns["p2p"] = pc.equal(batch["algorithm"], "P2P").to_numpy(zero_copy_only=False)
    return columns


def _encoded(column: Any) -> tuple[list[str], Array]:
    coded = column.dictionary_encode()
    return coded.dictionary.to_pylist(), coded.indices.to_numpy()


def _notes(read: list[_File]) -> list[str]:
    torn, nonsense = sum(part.torn for part in read), [part for part in read if part.nonsense]
    notes = incomplete(torn, of=" of the profiler CSVs")
    if not nonsense:
        return notes
    count = sum(part.nonsense for part in nonsense)
    where = nonsense[0].path.name if len(nonsense) == 1 else f"{len(nonsense)} files"
    lines = "1 line that cannot be true" if count == 1 else f"{count:,} lines that cannot be true"
    return [*notes, f"{where}: {lines} (a number out of all range, or another rank's) left out."]


def _positions(parts: list[_File]) -> list[Array]:
    """Each row's position in its communicator, alike on all members; of a send or a receive, with its peer."""
    lengths = [len(part.columns["comm"]) for part in parts]
    names = ("comm", "op", "p2p", "seq")
    c = {name: np.concatenate([part.columns[name] for part in parts]) for name in names}
    c["time"] = np.concatenate([_rising(part.columns["enqueue"]) for part in parts])
    c["process"], p2p = np.repeat(np.arange(len(parts)), lengths), c["p2p"]
    found = np.zeros(len(p2p), np.int64)
    found[p2p] = counted([c[name][p2p] for name in ("process", "comm", "op", "seq")])
    found[~p2p] = positions(*(c[name][~p2p] for name in ("comm", "op", "seq", "time", "process")))
    return np.split(found, np.cumsum(lengths)[:-1])


def _rising(time: Array) -> Array:
    """Sorted times, of which those that are equal become 1 ns apart: what was enqueued at once keeps its order."""
    row = np.arange(len(time))
    return np.asarray(np.maximum.accumulate(time - row) + row)


def gpu_ahead(c: dict[str, Array]) -> int:
    """Ns by which the GPU's clock is ahead of the host's: what the host logged soonest had just ended. 0: unknown."""
    known = len(c["logged"]) > 0 and bool((c["logged"] >= c["enqueue"]).all())
    return int((c["stop"] - c["logged"]).max()) if known else 0


def _collectives(part: _File, rank: int, position: Array, *, believed: bool) -> Table:
    """One process' operations; where their times are not ``believed`` it is known when the host enqueued them."""
    c = part.columns
    return table(
        "collectives",
        rank=np.full(len(position), rank),
        comm=c["comm"],
        seq=position,
        op=c["op"],
        start_ns=c["start"] - gpu_ahead(c) if believed else c["enqueue"],
        duration_ns=c["stop"] - c["start"] if believed else UNMEASURED,
        bytes=c["count"],
        flags=GPU_TIME if believed else 0,
        peer=np.where(c["p2p"], c["seq"], -1),
        enqueue_ns=c["enqueue"],
        elements=c["count"],
    )


ALL_TO_ALL = "all_to_all"
#: Sends and receives are of one call that are enqueued within so many ns, in this share of the calls.
_AT_ONCE, _MOSTLY = 1_000_000, 0.9
#: Two stages of a pipeline that send to each other do so at once, too: each to all that there are.
_FEWEST = 3
#: So many exchanges tell that a job makes them; so many places in a step, one of which is each rank's on time.
_ENOUGH, _PLACES = 20, 4
#: Ranks arrive at a meeting within this share of the time from one series of exchanges to the next.
_SURELY = 0.1
#: Rounds: the baseline of the ranks is better known once their clocks are set.
_PASSES = 2
#: GPUs' clocks drift against their hosts': by how much they are ahead is taken anew for so many exchanges.
_TOGETHER = 256


@dataclass(frozen=True)
class _Calls:
    """The exchanges of one process, in order: ``rows`` [N] are their rows in its file.

    [K] are when the first of each was enqueued and began on the GPU, on the host's clock, and its kernel's logged
    duration. ``place`` [K] is the number of each since another operation of the communicator; ``count`` [K] elements
    sent and received."""

    rows: Ints
    enqueue: Ints
    came: Ints
    took: Ints
    place: Ints
    count: Ints


def find_exchanges(files: Sequence[Columns], ranks: Sequence[int], *, alone: bool) -> list[tuple[Ints, Table]]:
    """The rows of each process's file that are exchanges in one communicator, and the table of these; empty where there
    are none, or they do not match.

    ``alone``: also empty with other communicators. If a job's other times are not to be believed, ranks may wait
    there unnoticed, and would seem late for their next exchange.
    """
    comms = {int(comm) for columns in files for comm in np.unique(columns["comm"][columns["p2p"]])}
    if len(comms) != 1 or len(files) < _FEWEST:
        return []
    comm = comms.pop()
    if alone and any((columns["comm"] != comm).any() for columns in files):
        return []
    calls = [_calls(columns, comm, len(files)) for columns in files]
    known = [call for call in calls if call is not None]
    together = _together(known) if len(known) == len(files) else None
    if together is None or len(together[0].came) < _ENOUGH:
        return []
    return _exchanges_of(comm, together, ranks)


def _calls(columns: Columns, comm: int, members: int) -> _Calls | None:
    """One process's exchanges; ``None`` where its sends and receives are none.

    A line may be lost: the peer with the most sends or receives, all of them, shows when each was.
    """
    mine = np.flatnonzero(columns["comm"] == comm)
    p2p = mine[columns["p2p"][mine]]
    kinds, kind = np.unique(columns["seq"][p2p] * 2 + (columns["op"][p2p] == "send"), return_inverse=True)
    times = np.bincount(kind)
    most = int(times.max(initial=0))
    if len(kinds) != 2 * (members - 1) or times.min() < _MOSTLY * most:
        return None
    nth = counted([kind])
    whole = times[kind] == most
    sends, call = p2p[whole], nth[whole]
    order = np.argsort(call, kind="stable")
    sends, first = sends[order], np.searchsorted(call[order], np.arange(most))
    enqueue = np.minimum.reduceat(columns["enqueue"][sends], first)
    spread = np.maximum.reduceat(columns["enqueue"][sends], first) - enqueue
    if np.mean(spread <= _AT_ONCE) < _MOSTLY or np.mean(columns["logged"][p2p] >= columns["enqueue"][p2p]) < _MOSTLY:
        return None
    began = np.minimum.reduceat(columns["start"][sends], first)
    ahead = np.maximum.reduceat(columns["stop"][sends] - columns["logged"][sends], first)
    window = np.arange(0, most, _TOGETHER)
    ahead = np.maximum.reduceat(ahead, window)[np.arange(most) // _TOGETHER]
    others = np.searchsorted(mine[~columns["p2p"][mine]], sends[first])
    run = np.cumsum(np.append(True, np.diff(others) > 0))
    return _Calls(
        rows=p2p,
        enqueue=enqueue,
        came=began - ahead,
        took=np.maximum.reduceat(columns["stop"][sends], first) - began,
        place=np.arange(most) - np.searchsorted(run, run),
        count=np.add.reduceat(columns["count"][sends], first),
    )


def _together(calls: Sequence[_Calls]) -> Sequence[_Calls] | None:
    """The exchanges that all processes have, of files that may begin apart; ``None`` where it is not sure which meet.

    A file that begins in the middle of a series of exchanges knows places from the next one on. Files that only end
    apart may be of a job that hangs.
    """
    shortest = min(len(call.came) for call in calls)
    if all((call.place[:shortest] == calls[0].place[:shortest]).all() for call in calls):
        return calls if all(len(call.came) == shortest for call in calls) else None
    first = [np.flatnonzero(call.place[1:] == 0) + 1 for call in calls]
    if min(map(len, first)) < 2:
        return None
    met = [one.came[at] for one, at in zip(calls, first, strict=True)]
    shifts = [_shift(met[0], one) for one in met]
    known = [shift for shift in shifts if shift is not None]
    if len(known) < len(calls) or not all(max(known) - one < len(at) for one, at in zip(known, first, strict=True)):
        return None
    begins = [int(at[max(known) - one]) for one, at in zip(known, first, strict=True)]
    count = min(len(one.came) - at for one, at in zip(calls, begins, strict=True))
    cut = [_cut(one, slice(at, at + count)) for one, at in zip(calls, begins, strict=True)]
    return cut if all((one.place == cut[0].place).all() for one in cut) else None


def _shift(met: Ints, other: Ints) -> int | None:
    """By how many series one file begins later than another, which ``met`` at these times; ``None``: not sure.

    Ranks that wait for each other arrive at the same time, but for a delay of one of them.
    """
    nearest = np.abs(met[:, None] - other[None, :]).argmin(axis=0)
    shift = int(np.median(nearest - np.arange(len(other))))
    at = np.arange(len(other)) + shift
    both = (at >= 0) & (at < len(met))
    if not both.any():
        return None
    apart = float(np.median(np.abs(met[at[both]] - other[both])))
    return shift if apart < _SURELY * float(np.median(np.diff(met))) else None


def _cut(one: _Calls, part: slice) -> _Calls:
    parts = {name: getattr(one, name)[part] for name in ("enqueue", "came", "took", "place", "count")}
    return replace(one, **parts)


def _exchanges_of(comm: int, calls: Sequence[_Calls], ranks: Sequence[int]) -> list[tuple[Ints, Table]]:
    came, place = np.stack([call.came for call in calls]), calls[0].place
    often = np.flatnonzero(np.bincount(place) >= _MOSTLY * np.max(np.bincount(place)))
    if len(often) < _PLACES or np.bincount(place).max() < _ENOUGH:
        return []  # nothing else of the communicator tells at which place of a step each is
    came = came - np.median(_late(came), axis=1, keepdims=True).astype(np.int64)  # hosts' clocks may be ms apart
    for _ in range(_PASSES):
        late = _late(came)
        levels = np.stack([np.median(late[:, place == one], axis=1) for one in often], axis=1)
        came = came - np.sort(levels, axis=1)[:, 1:2].astype(np.int64)  # the least but one: no accident of one place
    left = came.max(axis=0) + np.stack([call.took for call in calls]).min(axis=0)
    tables = (
        table(
            "collectives",
            rank=np.full(len(place), rank),
            comm=np.full(len(place), comm, np.uint64),
            seq=np.arange(len(place)),
            op=np.full(len(place), ALL_TO_ALL),
            start_ns=arrived,
            duration_ns=left - arrived,
            bytes=one.count,
            flags=np.full(len(place), GPU_TIME),
            peer=np.full(len(place), -1),
            enqueue_ns=one.enqueue,
            elements=one.count,
        )
        for rank, arrived, one in zip(ranks, came, calls, strict=True)
    )
    return [(call.rows, one) for call, one in zip(calls, tables, strict=True)]


def _late(came: Ints) -> Array:
    return np.asarray(came - np.median(came, axis=0))


#: An operation that began by so much before it was enqueued has another's times.
_BEFORE_NS = 1_000_000
#: If this share of the operations of a kind has another's times, none is believed: the rest may be foreign, too.
_ENOUGH_FOREIGN, _MOST = 20, 0.5


def find_foreign(files: Sequence[Columns]) -> set[str]:
    """The functions of each process's operations, in the order of enqueueing, with foreign times in most calls.

    In most of a communicator's calls, in any of the files. If there are any, no operation's times are believed: a
    rank that waits in an operation without them seems to work until the next one with.
    """
    return {op for columns in files for _, op in _kinds(columns)}


def foreign_notes(names: set[str]) -> list[str]:
    """What the reader of the report has to know of it."""
    if not names:
        return []
    why = "the profiler got the times of earlier operations"
    return [f"How long {' and '.join(sorted(names))} took is not known, nor who waited in it: {why}."]


def _kinds(columns: Columns) -> list[tuple[int, str]]:
    logged, enqueued = columns["logged"], columns["enqueue"]
    if not len(logged) or (logged < enqueued).any():
        return []
    later = _logged_later(columns)
    before = columns["stop"] - columns["start"] > logged - later - enqueued + _BEFORE_NS
    kinds, which = np.unique(_named(columns), return_inverse=True)
    counts, untrue = np.bincount(which), np.bincount(which, weights=before)
    wrong = (counts >= _ENOUGH_FOREIGN) & (untrue > _MOST * counts)
    proof = later[~wrong[which]]
    if len(proof) < _ENOUGH_FOREIGN or np.median(proof) > _BEFORE_NS:
        return []  # what is logged is not when operations ended
    return [tuple(kind) for kind in kinds[wrong].tolist()]


def _named(columns: Columns) -> Array:
    named = np.empty(len(columns["comm"]), [("comm", np.uint64), ("op", columns["op"].dtype)])
    named["comm"], named["op"] = columns["comm"], columns["op"]
    return named


def _logged_later(columns: Columns) -> Array:
    """Ns from each operation's end to when the host logged it, at least: nothing is logged before it has ended."""
    ahead = columns["stop"] - columns["logged"]
    first = np.arange(0, len(ahead), _TOGETHER)
    return np.asarray(np.maximum.reduceat(ahead, first)[np.arange(len(ahead)) // _TOGETHER] - ahead)
