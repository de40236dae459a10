"""PyTorch Flight Recorder dumps, one a rank: the last collectives it enqueued and how far each came.

A dump is a pickle of plain dicts, lists, strings and numbers, or the same as JSON. A pickle is a program: it is looked
through first, and refused if it holds any instruction but those that build such values.

Process groups are written differently by formats 1.1 to 2.10. Format 1 numbers groups within the process: two ranks'
group 1 need not be the same one. Since format 2 they have names, alike on all members. Gloo's groups are all described
under an empty name.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import pickletools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hindmost.errors import UsageError
from hindmost_judge.model import NONBLOCKING, RUNNING, UNMEASURED, Job, Run, Table
from hindmost_judge.types import Array

from hindmost_collector.recordings import one_job
from hindmost_collector.recordings.rank_mapping import ITEM_BYTES, ProcessGroup, memberships, rank_in_name
from hindmost_collector.recordings.tables import concatenate, operation, table
from hindmost_collector.recordings.trace_files import DamagedError, Sample, open_bytes, read_undamaged

#: Operations that a group's status stands for where a dump has no others: a rank runs no further ahead of its GPU.
_MOST_OPEN = 1000
#: Characters of a name.
_LONGEST = 4096


def group_name(entry: dict[str, Any]) -> str:
    """What the group of an operation is called in its dump: its name, or its number where it has none."""
    group = entry.get("process_group")
    if isinstance(group, list | tuple) and group:
        return text(group[0])
    return text(entry.get("pg_name", entry.get("pg_id", "")))


def text(value: Any) -> str:
    """Text, or a number as text. Nothing of what is neither: lists that hold themselves have a text without an end."""
    return str(value)[:_LONGEST] if isinstance(value, str | int) else ""


def groups_of_dump(content: dict[str, Any], entries: list[dict[str, Any]], rank: int) -> dict[str, ProcessGroup]:
    config = content.get("pg_config")
    config = config if isinstance(config, dict) else {}
    known = {text(name): one for name, one in config.items() if isinstance(one, dict)}
    found = {n: ProcessGroup.named(n, one.get("ranks"), text(one.get("desc"))) for n, one in known.items()}
    found |= _of_numbers({text(name): one for name, one in config.items() if isinstance(one, list)})
    used = dict.fromkeys(group_name(entry) for entry in entries)
    nameless = found.get("")
    if nameless is not None and len(used) == 1 and rank in nameless.ranks:
        (name,) = used
        del found[""]
        found[name] = ProcessGroup.named(name, nameless.ranks, nameless.name)
    if not config and entries and not any("process_group" in entry for entry in entries):
        # format 1.1 has no members: the first group is the job's; others' numbers mean nothing to other ranks
        found = {name: ProcessGroup.named(f"{name} of rank {rank}", ()) for name in used if name != "0"}
    return found


def _of_numbers(config: dict[str, list[Any]]) -> dict[str, ProcessGroup]:
    """Groups known by numbers of the process: named by their members, and which of several with the same it is."""
    times: Counter[tuple[int, ...]] = Counter()
    found = {}
    for number, ranks in config.items():
        members = ProcessGroup.named("", ranks).ranks
        found[number] = ProcessGroup.named(f"group {times[members]}", members)
        times[members] += 1
    return found


def completed(content: dict[str, Any]) -> dict[str, int]:
    """Group, by its number in the process, to the last collective that it completed, counted from 1."""
    return {name: last for name, (_, last) in _status(content).items()}


def entries_of_status(content: dict[str, Any]) -> list[dict[str, Any]] | None:
    """What a dump without operations tells of them, where it knows one group: those enqueued and not completed."""
    status, config = _status(content), content.get("pg_config")
    if len(status) != 1 or not isinstance(config, dict) or len(config) != 1:
        return None
    ((number, (enqueued, last)),) = status.items()
    group = {"pg_id": number, "process_group": [next(iter(config)), ""], "profiling_name": "collective"}
    open_ones = range(max(last, 0) + 1, min(enqueued, max(last, 0) + _MOST_OPEN) + 1)
    done = [{**group, "collective_seq_id": last, "state": "completed"}] if last > 0 else []
    return done + [{**group, "collective_seq_id": seq, "state": "scheduled"} for seq in open_ones]


def _status(content: dict[str, Any]) -> dict[str, tuple[int, int]]:
    status = content.get("pg_status")
    found = {}
    for name, one in status.items() if isinstance(status, dict) else ():
        if isinstance(one, dict):
            found[text(name)] = (_count(one, "last_enqueued_collective"), _count(one, "last_completed_collective"))
    return found


def _count(status: dict[str, Any], key: str) -> int:
    """A number; as JSON writes it, in quotes. -1: unknown."""
    number = text(status.get(key))
    return int(number) if number.isdecimal() and len(number) < 16 else -1


NAME = "PyTorch Flight Recorder dumps"
PRECEDENCE = 60

#: A dump is a ring of 2,000 to 20,000 entries of about 200 bytes to 2 KiB.
MAX_DUMP_BYTES = 64 * 1024 * 1024
#: … of which the newest are read; a pickle may claim any number of one.
MAX_ENTRIES = 100_000
#: Most stack lines of a call that are read, and longest time (ms) of an operation.
_FRAMES, _LONGEST_MS = 64, 30 * 24 * 3600e3
_MOST_DIMENSIONS = 64  # of a tensor, in torch
#: Values in a dump: one of 20,000 entries has up to 3 million. Each may take 100 bytes of memory.
MOST_VALUES = 6_000_000
_UNFINISHED = ("scheduled", "started")
_TOGETHER = ":coalesced"
_P2P = re.compile(r"^\w+:(send|recv)\b")
#: A file changed this soon after the newest entry may be of a running job: it was written then, and looking up the
#: lines of all calls took a rank 8 s on a busy machine. A later change may be a copy or a stopped job, which look
#: alike. File systems and archives round down to whole seconds.
_AT_ONCE_NS, _ROUNDED_NS = 30 * 10**9, 2 * 10**9
#: An operation open for its own time-out had stopped: torch writes dumps then. With a shorter time-out that may be the
#: time of the writing.
_LEAST_TIMEOUT_MS = 10_000
_USUAL_NAMES = ("nccl_trace_rank_", "comm_lib_trace_rank_")
#: The instructions that build plain values. Anything that names, calls or restores an object is not among them.
_PLAIN = frozenset(
    name
    for names in (
        ("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE"),
        ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        ("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES"),
        ("STRING", "BINSTRING", "SHORT_BINSTRING", "EMPTY_LIST", "APPEND", "APPENDS", "LIST"),
        ("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
        ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET"),
    )
    for name in names
)
#: Those of them with an argument of a fixed size, 99 of 100 in a dump: pickletools takes 50 times as long for each.
_FIXED = re.compile(rb"[]01()Ntu}lades\x85-\x89\x94]|[hqK].|M..|[jJ].{4}|\x8a\x08.{8}|G.{8}", re.DOTALL)
_FIXED_RUN = re.compile(rb"(?:%b){1,5000}" % _FIXED.pattern, re.DOTALL)


class _Operation(NamedTuple):
    """What a dump tells of one operation in its ``entry``: ns and bytes, -1 for unknown."""

    entry: dict[str, Any]
    comm: int
    seq: int
    name: str
    p2p: bool
    unfinished: bool
    created: int
    took: int
    bytes: int

    @property
    def place(self) -> tuple[int, int]:
        """What it shares with the same operation of other ranks."""
        return self.comm, self.seq


@dataclass(frozen=True)
class _Dump:
    path: Path
    rank: int
    operations: list[_Operation]
    groups: dict[str, ProcessGroup]

    @property
    def left(self) -> list[_Operation]:
        """Those that had not ended."""
        return [one for one in self.operations if one.unfinished]

    @property
    def changed_ns(self) -> int:
        return self.path.stat().st_mtime_ns

    @property
    def created(self) -> Array:
        """When its operations were enqueued."""
        return np.array([one.created for one in self.operations], np.int64)


def recognises(sample: Sample) -> bool:
    """Whether a pickle or a JSON object begins with a Flight Recorder's words; a pickle of its name is looked into."""
    words = any(word in sample.head for word in (b"collective_seq_id", b"pg_config", b"time_discovered_started_ns"))
    if sample.path.name.startswith(_USUAL_NAMES) and sample.head[:1] == b"\x80":
        return True  # whatever else it holds: refused by name rather than left out
    return words and sample.head.lstrip()[:1] in (b"\x80", b"{") and b'"traceEvents"' not in sample.head


def load(files: Sequence[Path]) -> Run:
    """What every rank had enqueued, and what of it had not finished when the dumps were written."""
    dumps, torn = read_undamaged(files, _dump)
    dumps.sort(key=lambda dump: dump.rank)
    if len({dump.rank for dump in dumps}) < len(dumps):
        raise UsageError(f"{files[0].parent}: two {NAME} of one rank; name the folder of one job")
    created = {f"rank {one.rank}": at for one in dumps if ((at := one.created) >= 0).any()}
    one_job.refuse_twins(f"{files[0].parent}: {NAME}", created)
    usual = one_job.most_at_one_time(created)
    close = [dump for dump in dumps if f"rank {dump.rank}" in usual]  # another host's clock may be far off
    seen = max((_latest(dump) for dump in close), default=-1)
    members = [rank for dump in dumps for group in dump.groups.values() for rank in group.ranks]
    size = max([*members, *(dump.rank for dump in dumps)]) + 1
    written = _written(close, seen)
    unfinished = [_in_flight(dump, written) for dump in dumps]
    return Run(
        job=Job(id="", world_size=size, source=NAME),
        ranks=table("ranks", rank=[dump.rank for dump in dumps], world_size=size, framework="torch"),
        collectives=concatenate("collectives", [_collectives(dump) for dump in dumps]),
        communicators=_communicators(dumps),
        rank_states=table("rank_states", rank=[dump.rank for dump in dumps], time_ns=written, life=RUNNING),
        in_flight=_with_distinct_operations(concatenate("in_flight", unfinished), dumps),
        stacks=_stacks(dumps, seen) if any(len(part["rank"]) for part in unfinished) else table("stacks", rank=[]),
        notes=tuple(torn),
    )


def _dump(path: Path) -> _Dump:
    rank = rank_in_name(path)
    if rank is None:
        raise UsageError(f"{path}: whose dump is this? name the file nccl_trace_rank_RANK")
    content = _content(path)
    content = content if isinstance(content, dict) else {}
    entries = content.get("entries", entries_of_status(content))
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise DamagedError(path, f"not one of the {NAME}: it has no list of entries")
    entries = entries[-MAX_ENTRIES:]
    groups, last = groups_of_dump(content, entries, rank), completed(content)
    together = _ended_together(entries)
    return _Dump(path, rank, [_operation(entry, groups, last, together) for entry in entries], groups)


def _operation(
    entry: dict[str, Any],
    groups: dict[str, ProcessGroup],
    completed: dict[str, int],
    ended_together: frozenset[tuple[str, int, int]],
) -> _Operation:
    """``completed`` is the last collective of each group, by its number in the process, counted from 1."""
    called, name = _called(entry), group_name(entry)
    p2p = bool(entry.get("is_p2p", _P2P.search(called)))  # the first formats say so in its name only
    # counted from 0 as NCCL does; the recorder counts from 1, and before format 2 both kinds by one number
    number = "seq_id" if "seq_id" in entry else "p2p_seq_id" if p2p else "collective_seq_id"
    seq = _number(entry, number) - 1
    unfinished = entry.get("state") in _UNFINISHED and _together(entry) not in ended_together
    if unfinished and entry.get("retired"):
        # gloo is not polled for progress: its operations stay scheduled until retired. NCCL's watchdog retires
        # operations that ended, and those that it aborted: the group's last completed one shows which
        last = completed.get(text(entry.get("pg_id")), -1)
        unfinished = not called.startswith("gloo:") if last < 0 or p2p else seq >= last
    took = entry.get("duration_ms")
    return _Operation(
        entry,
        comm=(groups.get(name) or ProcessGroup.named(name, ())).comm,
        seq=seq,
        name=operation(called),
        p2p=p2p,
        unfinished=unfinished,
        created=_number(entry, "time_created_ns"),
        took=round(took * 1e6) if isinstance(took, int | float) and 0 <= took < _LONGEST_MS else UNMEASURED,
        bytes=_bytes(entry),
    )


def _called(entry: dict[str, Any]) -> str:
    return text(entry.get("profiling_name"))[:64]


def _ended_together(entries: list[dict[str, Any]]) -> frozenset[tuple[str, int, int]]:
    """What was begun together, and has ended: the recorder notes that of all of it in one entry."""
    over = (one for one in entries if one.get("state") == "completed" and _called(one).endswith(_TOGETHER))
    return frozenset(key for key in map(_together, over) if max(key[1:]) >= 0)


def _together(entry: dict[str, Any]) -> tuple[str, int, int]:
    """What all that was begun together has in common."""
    return (text(entry.get("pg_id")), _number(entry, "p2p_seq_id"), _number(entry, "collective_seq_id"))


class HostileError(pickle.UnpicklingError):
    """A pickle that could do more than build plain values, or claims more than it holds."""


def _content(path: Path) -> Any:
    if path.stat().st_size > MAX_DUMP_BYTES:
        raise UsageError(f"{path}: larger than any Flight Recorder dump ({MAX_DUMP_BYTES >> 20} MiB); not read")
    with open_bytes(path) as stream:
        data = stream.read(MAX_DUMP_BYTES + 1)
    if len(data) > MAX_DUMP_BYTES:
        raise UsageError(
            f"{path}: inflates to more than any Flight Recorder dump ({MAX_DUMP_BYTES >> 20} MiB); not read"
        )
    if data.count(b"{") + data.count(b"[") > MOST_VALUES and data.lstrip()[:1] == b"{":
        raise UsageError(f"{path}: hostile, not read: more than {MOST_VALUES:,} values")
    try:
        return json.loads(data) if data.lstrip()[:1] == b"{" else plain_pickle(data)
    except (HostileError, RecursionError) as error:
        raise UsageError(f"{path}: hostile, not read: {str(error).splitlines()[0]}") from error
    except (ValueError, pickle.UnpicklingError, EOFError, IndexError, KeyError, TypeError) as error:
        raise DamagedError(path, f"damaged, not read: {str(error).splitlines()[0]}") from error


def plain_pickle(data: bytes) -> Any:
    """Unpickle plain values only. Raises :class:`HostileError` on anything that could do more than that."""
    stream, at, count = io.BytesIO(data), 0, 0
    while at < len(data):
        run = _FIXED_RUN.match(data, at)
        if run is not None:
            at = run.end()
            count += len(_FIXED.findall(run[0])) if len(data) > MOST_VALUES else 0
        else:
            stream.seek(at)
            instruction, argument, _ = next(pickletools.genops(stream))
            if instruction.name not in _PLAIN:
                raise HostileError(f"pickle instruction {instruction.name} at byte {at}, not of plain values")
            if instruction.name.endswith("PUT") and isinstance(argument, int) and argument > len(data):
                raise HostileError(f"memo index {argument} at byte {at}")
            at, count = stream.tell(), count + 1
            if instruction.name == "STOP":
                break
        if count > MOST_VALUES:
            raise HostileError(f"more than {MOST_VALUES:,} values")
    return pickle.loads(data)  # noqa: S301 - looked through above: nothing in it can name or call anything


def _number(entry: dict[str, Any], key: str) -> int:
    value = entry.get(key)
    return value if isinstance(value, int) and abs(value) < 1 << 62 else -1


def _bytes(entry: dict[str, Any]) -> int:
    sizes, kinds = entry.get("input_sizes"), entry.get("input_dtypes")
    if not isinstance(sizes, list) or not isinstance(kinds, list) or len(sizes) != len(kinds):
        return -1
    known = [_tensor_bytes(size, ITEM_BYTES.get(text(kind))) for size, kind in zip(sizes, kinds, strict=True)]
    return sum(known) if min(known, default=-1) >= 0 and sum(known) < 1 << 62 else -1


def _tensor_bytes(size: Any, item: int | None) -> int:
    """Bytes of a tensor of this shape; -1 for what is no shape, or of an unknown type."""
    plain = isinstance(size, list | tuple) and len(size) <= _MOST_DIMENSIONS and item is not None
    known = plain and all(isinstance(one, int) and 0 <= one < 1 << 48 for one in size)
    return math.prod(size) * item if known and item is not None else -1


def _latest(dump: _Dump) -> int:
    keys = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")
    return max((_number(one.entry, key) for one in dump.operations for key in keys), default=-1)


def _written(dumps: list[_Dump], seen: int) -> int:
    """When the dumps were written, at the least, if that was soon after the newest entry; unmeasured else."""
    changed = max((dump.changed_ns for dump in dumps), default=UNMEASURED)
    if not -_ROUNDED_NS <= changed - seen < _AT_ONCE_NS:
        return UNMEASURED
    return max([seen, *(at for dump in dumps if (at := _timed_out(dump)) != UNMEASURED)])


def _timed_out(dump: _Dump) -> int:
    """When an operation's time-out had passed in which it had not ended, by when its dump was written."""
    until = dump.changed_ns + (10**9 if dump.changed_ns % 10**9 == 0 else 0)  # an archive may keep whole seconds only
    left = [(one.created, _number(one.entry, "timeout_ms")) for one in dump.left]
    due = [at + limit * 10**6 for at, limit in left if at >= 0 and _LEAST_TIMEOUT_MS <= limit < _LONGEST_MS]
    return max((at for at in due if at <= until), default=UNMEASURED)


def _collectives(dump: _Dump) -> Table:
    found = dump.operations
    return table(
        "collectives",
        rank=np.full(len(found), dump.rank),
        comm=np.array([one.comm for one in found], dtype=np.uint64),
        seq=[one.seq for one in found],
        op=[one.name for one in found],
        start_ns=dump.created,
        duration_ns=[one.took for one in found],
        bytes=[one.bytes for one in found],
        flags=[NONBLOCKING if one.took == UNMEASURED else 0 for one in found],
        enqueue_ns=dump.created,
    )


def _communicators(dumps: list[_Dump]) -> Table:
    """Every group that a dump names, with its members that left none, too: for those the others may wait."""
    groups = {group.comm: group for dump in dumps for group in dump.groups.values() if dump.rank in group.ranks}
    return memberships([(group, place) for group in groups.values() for place in range(len(group.ranks))])


def _in_flight(dump: _Dump, written: int) -> Table:
    left, times = dump.left, Counter(one.place for one in dump.operations)
    return table(
        "in_flight",
        rank=[dump.rank] * len(left),
        kind=["p2p" if one.p2p else "collective" for one in left],
        name=[one.name for one in left],
        comm=np.array([one.comm for one in left], dtype=np.uint64),
        seq=[one.seq for one in left],
        start_ns=[one.created for one in left],
        observed_ns=written,
        changed_ns=np.full(len(left), dump.changed_ns if written != UNMEASURED else UNMEASURED),
        bytes=[one.bytes if times[one.place] == 1 else UNMEASURED for one in left],
        given=[_size_text(one) for one in left],
    )


#: Operations that all members must call with the same size, as torch calls them. In others, as in an all-gather into a
#: list, each member may have a part of its own size.
_ALIKE = re.compile(r"(\w+:)?(all_?reduce(_coalesced)?|reduce|broadcast|_?all_?gather_base|_?reduce_scatter_base)")


def _size_text(one: _Operation) -> str:
    """What a rank called an operation with, where the other members must call theirs with as much."""
    kinds = one.entry.get("input_dtypes")
    if one.bytes < 0 or not kinds or not _ALIKE.fullmatch(_called(one.entry)):
        return ""
    kind = text(kinds[0])
    return f"{one.bytes // ITEM_BYTES[kind]:,} elements of {kind}" if len(kinds) == 1 else f"{one.bytes:,} bytes"


def _with_distinct_operations(in_flight: Table, dumps: list[_Dump]) -> Table:
    """Open operations, those called with their sizes of which the members of a group gave different ones.

    Operations that were begun together may have one number: which of a rank's is which of another's is not known then.
    Where a member has left one, as a broadcast's root does, those that are still inside do not show what most gave.
    """
    size, size_texts = in_flight.pop("bytes", np.empty(0, np.int64)), in_flight.pop("given", np.empty(0, np.str_))
    name = in_flight["name"].astype(object)
    sizes: dict[tuple[int, int, str], set[int]] = {}
    keys = list(zip(in_flight["comm"].tolist(), in_flight["seq"].tolist(), name.tolist(), strict=True))
    for key, one in zip(keys, np.where(size_texts != "", size, UNMEASURED).tolist(), strict=True):
        sizes.setdefault(key, set()).add(one)
    unlike = {key for key, found in sizes.items() if len(found) > 1 and min(found) >= 0}
    if unlike:  # those that some member has left
        unlike -= {(*one.place, one.name) for dump in dumps for one in dump.operations if not one.unfinished}
    for row, key in enumerate(keys):
        if key in unlike:
            name[row] = f"{key[2]} ({size_texts[row]})"
    return {**in_flight, "name": name.astype(np.str_)}


def _stacks(dumps: list[_Dump], seen: int) -> Table:
    """Where each rank's first unfinished operation was called from; its last one where none is unfinished."""
    texts = {dump.rank: _call((dump.left or dump.operations[-1:])[0]) for dump in dumps if dump.operations}
    known = {rank: call for rank, call in texts.items() if call}
    return table("stacks", rank=list(known), time_ns=seen, text=list(known.values()))


def _call(one: _Operation) -> str:
    frames = one.entry.get("frames")
    known = [frame for frame in frames[:_FRAMES] if isinstance(frame, dict)] if isinstance(frames, list) else []
    if not known:
        return ""
    state = "unfinished" if one.unfinished else "completed"
    called = [
        f"    {text(frame.get('name'))} ({text(frame.get('filename'))}:{text(frame.get('line'))})" for frame in known
    ]
    return "\n".join([f"{state} {one.name} #{one.seq} was called from", *called])
