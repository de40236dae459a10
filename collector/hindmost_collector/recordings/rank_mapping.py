"""Which rank each process of a recording was, what its groups are, and in which order its communicators worked."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hindmost_judge.model import Table
from hindmost_judge.types import Array

from hindmost_collector.recordings.tables import MOST_RANKS, table

#: Most operations kept of one recording: judging takes up to 600 bytes of memory for each. Beyond it, periods are left
#: out, the same ones on every rank.
MAX_OPERATIONS = 900_000
WINDOW_NS = 10_000_000_000
_NUMBER_BITS = 40
#: What is said of ranks that nothing but the processes' numbers tells.
GUESSED = "No communicator has all processes: ranks are in the order of process ids."


def stride(size: int, bytes_each: int) -> int:
    """Read the first of every so many windows of time, for a recording of ``size`` bytes to stay in memory."""
    return max(1, -(-size // (bytes_each * MAX_OPERATIONS)))


def thinned(stride: int) -> list[str]:
    """What to say of a recording that was read in part."""
    return [f"To stay in memory, {WINDOW_NS // 10**9} s in every {stride} times that were read."] if stride > 1 else []


def world_ranks(
    rank_in: Sequence[Mapping[int, int]], sizes: Mapping[int, int]
) -> tuple[list[int], int | None, list[str]]:
    """The rank of each process, how many there are in all, and a note where no communicator shows it.

    ``rank_in`` maps communicator to the process's rank in it, one map a process, in the order of process ids. The
    largest communicator with all processes is the world. The files may cover some processes only: ``sizes`` give the
    world's size where known. Without them the size is unknown, unless the numbers have no gap; a group of exactly
    one node has none, although the world goes on beyond it.
    """
    count = len(rank_in)
    found = {
        comm: [one[comm] for one in rank_in]
        for comm in sorted({comm for one in rank_in for comm in one})
        if len({one.get(comm, -1) for one in rank_in} - {-1}) == count
    }
    whole = [comm for comm, inside in found.items() if max(inside) == count - 1]
    if any(comm in sizes for comm in found):
        comm = max(found, key=lambda one: (sizes.get(one, 0), one in whole))
        return found[comm], max(sizes[comm], max(found[comm]) + 1), []
    largest = max((max(inside) for inside in found.values()), default=-1)
    beyond = [inside for inside in found.values() if max(inside) == largest >= count]
    if count > 1 or len(found) == 1:
        if len(beyond) == 1:
            return beyond[0], None, []
        if whole:
            return found[whole[0]], count, []
    return list(range(count)), count, [GUESSED]


def communicators(rank_in: Sequence[Mapping[int, int]], ranks: Sequence[int], sizes: Mapping[int, int]) -> Table:
    """The members of each communicator; its size is what ``sizes`` says, or the members seen."""
    members = [(c, rank, inside) for one, rank in zip(rank_in, ranks, strict=True) for c, inside in one.items()]
    if not members:
        return table("communicators", comm=np.empty(0, np.uint64))
    comm = np.array([member[0] for member in members], dtype=np.uint64)
    inside = np.array([member[2] for member in members])
    seen = {one: max(int(inside[comm == one].max()) + 1, int((comm == one).sum())) for one in set(comm.tolist())}
    return table(
        "communicators",
        comm=comm,
        rank=[member[1] for member in members],
        rank_in=inside,
        size=[sizes.get(one, seen[one]) for one in comm.tolist()],
        name="",
    )


def positions(comm: Array, op: Array, number: Array, time: Array, process: Array) -> Array:
    """Each operation's position in its communicator, alike on all members, from numbers that count per function.

    Rows are of all ranks together. NCCL demands one order of operations on all members, so the mean time at which an
    operation was seen puts the functions in order; within a function its numbers do. What a process' clock is ahead of
    the others' by is taken off: of some operations its lines are missing. What ran before the log begins counts, as far
    as the numbers tell.
    """
    _, code = np.unique(op, return_inverse=True)
    out = np.zeros(len(comm), dtype=np.int64)
    for one in np.unique(comm):
        rows = np.flatnonzero(comm == one)
        keys, which = np.unique(code[rows].astype(np.int64) << _NUMBER_BITS | number[rows], return_inverse=True)
        seen = _mean_time(which, time[rows] - time[rows].min(), process[rows])
        out[rows] = _order(keys, seen)[which] + _preceding(keys)
    return out


def _mean_time(which: Array, time: Array, process: Array) -> Array:
    """The mean time at which each operation was seen, by the clock of the process that saw most of them."""
    most = process == np.argmax(np.bincount(process))
    reference = np.full(int(which.max()) + 1, np.nan)
    reference[which[most]] = time[most]
    ahead = time - reference[which]
    on_one = time.astype(np.float64)
    order = np.argsort(process, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(process[order])) + 1):
        known = ahead[rows][~np.isnan(ahead[rows])]
        on_one[rows] -= np.median(known) if len(known) else 0.0
    return np.asarray(np.bincount(which, on_one) / np.bincount(which))


def _preceding(keys: Array) -> int:
    """How many operations ran in a communicator before those with these keys, sorted: function's code and number.

    Functions that had all run before are unknown.
    """
    starts = np.flatnonzero(np.diff(keys >> _NUMBER_BITS, prepend=-1))
    number = keys & ((1 << _NUMBER_BITS) - 1)
    parts = (part for part in np.split(number, starts) if len(part))
    return sum(int(part[0]) for part in parts if not _leaps(part))


def _leaps(numbers: Array) -> bool:
    """Whether numbers, in order, are no count."""
    return bool(numbers[-1] - numbers[0] > 4 * len(numbers))


def _order(keys: Array, seen: Array) -> Array:
    """The place of each key in the order of times; unrecorded numbers keep their place too."""
    starts = np.flatnonzero(np.diff(keys >> _NUMBER_BITS, prepend=-1))
    every, times = [], []
    for first, end in zip(starts, [*starts[1:], len(keys)], strict=True):
        mine, rising = keys[first:end], np.maximum.accumulate(seen[first:end])
        every.append(mine if _leaps(mine) else np.arange(mine[0], mine[-1] + 1))
        times.append(np.interp(every[-1], mine, rising))
    order = np.argsort(np.concatenate(times), kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return place[np.searchsorted(np.concatenate(every), keys)]


def counted(columns: Sequence[Array]) -> Array:
    """0, 1, 2 … for the rows that agree in all columns, in the order in which they stand."""
    group = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, code = np.unique(column, return_inverse=True)
        _, group = np.unique(group * (len(values) + 1) + code, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    out = np.empty(len(group), dtype=np.int64)
    out[order] = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    return out


#: Bytes of an element, by the names PyTorch gives its types.
ITEM_BYTES = {
    **dict.fromkeys(("Float", "Int"), 4),
    **dict.fromkeys(("Double", "Long", "ComplexFloat"), 8),
    **dict.fromkeys(("Half", "BFloat16", "Short"), 2),
    **dict.fromkeys(("Byte", "Char", "Bool", "Float8_e4m3fn", "Float8_e5m2"), 1),
}


def _numbers(ranks: Any) -> tuple[int, ...]:
    """The ranks of a list or of its text; none of what is neither."""
    if isinstance(ranks, str) and len(ranks) < 10 * MOST_RANKS:
        return tuple(int(number) for number in re.findall(r"\d{1,9}", ranks))
    if isinstance(ranks, list | tuple) and len(ranks) <= MOST_RANKS:
        return tuple(rank for rank in ranks if isinstance(rank, int) and 0 <= rank < MOST_RANKS)
    return ()


@dataclass(frozen=True)
class ProcessGroup:
    """A process group: its identity in a run, what it is called, and its ranks in order."""

    comm: int
    name: str
    ranks: tuple[int, ...] = ()

    @classmethod
    def named(cls, name: str, ranks: Any, description: str = "") -> ProcessGroup:
        """The group of that name; ``ranks`` is a list, or its text, as recordings have it."""
        listed = _numbers(ranks)
        digest = hashlib.blake2b(f"{name} {listed}".encode(), digest_size=8).digest()
        return cls(int.from_bytes(digest, "little"), description, listed)


def memberships(members: Sequence[tuple[ProcessGroup, int]]) -> Table:
    """Groups, each with a place in it, as a table of communicators."""
    return table(
        "communicators",
        comm=np.array([group.comm for group, _ in members], dtype=np.uint64),
        rank=[group.ranks[place] for group, place in members],
        rank_in=[place for _, place in members],
        size=[len(group.ranks) for group, _ in members],
        name=[group.name for group, _ in members],
    )


_SAID = re.compile(r"rank[-_.=]?(\d{1,7})(?!\d)", re.IGNORECASE)
#: What torch's ``tensorboard_trace_handler`` calls its files: host, process, time in ns. None of them is a rank.
_TENSORBOARD = re.compile(r"_\d+\.\d{13,}\.")
_TIME = re.compile(r"\.\d{10,}(?=\.)")
_LAST = re.compile(r"(?<!\d)(\d{1,7})(?:\.\w*[A-Za-z]\w*)*$")
_FOLDER = re.compile(r"^(?:worker|proc|process|gpu|r)?[-_.]?(\d{1,7})$", re.IGNORECASE)


def rank_in_name(path: Path) -> int | None:
    """The number after the word rank in the file's name or its folder's.

    Else the last one before the file's suffixes that is no time and no process, else that of a folder with a number
    as its name."""
    name, folder = path.name, path.parent.name
    found = _SAID.search(name) or _SAID.search(folder)
    if found is None and not _TENSORBOARD.search(name):
        found = _LAST.search(_TIME.sub("", name))
    found = found or _FOLDER.search(folder)
    return int(found[1]) if found is not None else None
