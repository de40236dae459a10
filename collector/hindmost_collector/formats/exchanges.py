"""Arrival times in all-to-alls, which NCCL runs and logs as sends to and receives from all ranks at once.

Their kernel begins when a rank arrives and waits until all have. But NCCL logs the end of a part that does not wait,
so no duration shows the waiting. The arrival times do, on the hosts' clocks, to which those of their GPUs are known:
no rank leaves before the last has arrived. Clocks that are off by 20 us, at each of many exchanges in a step, would
make a rank late by a per cent of it. So a rank counts as on time at the place of the step where it is least late.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from hindmost_judge.model import GPU_TIME

from hindmost_collector.formats.columns import table
from hindmost_collector.formats.processes import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hindmost_judge.model import Table

    Ints = np.ndarray[Any, np.dtype[np.int64]]
    Columns = Mapping[str, np.ndarray[Any, Any]]

NAME = "all_to_all"
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


@dataclass(frozen=True)
class Exchanges:
    """For each process the ``rows`` of its file that are exchanges, and the table of these."""

    rows: tuple[Ints, ...]
    tables: tuple[Table, ...]


def found(files: Sequence[Columns], ranks: Sequence[int], *, alone: bool) -> Exchanges | None:
    """The exchanges of all processes in one communicator; ``None`` where there are none, or they do not match.

    ``alone``: also ``None`` with other communicators. If a job's other times are not to be believed, ranks may wait
    there unnoticed, and would seem late for their next exchange.
    """
    comms = {int(comm) for columns in files for comm in np.unique(columns["comm"][columns["p2p"]])}
    if len(comms) != 1 or len(files) < _FEWEST:
        return None
    comm = comms.pop()
    if alone and any((columns["comm"] != comm).any() for columns in files):
        return None
    calls = [_calls(columns, comm, len(files)) for columns in files]
    known = [one for one in calls if one is not None]
    together = _together(known) if len(known) == len(files) else None
    if together is None or len(together[0].came) < _ENOUGH:
        return None
    return _met(comm, together, ranks)


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
    held, call = p2p[whole], nth[whole]
    order = np.argsort(call, kind="stable")
    held, first = held[order], np.searchsorted(call[order], np.arange(most))
    enqueue = np.minimum.reduceat(columns["enqueue"][held], first)
    spread = np.maximum.reduceat(columns["enqueue"][held], first) - enqueue
    if np.mean(spread <= _AT_ONCE) < _MOSTLY or np.mean(columns["logged"][p2p] >= columns["enqueue"][p2p]) < _MOSTLY:
        return None
    began = np.minimum.reduceat(columns["start"][held], first)
    ahead = np.maximum.reduceat(columns["stop"][held] - columns["logged"][held], first)
    window = np.arange(0, most, _TOGETHER)
    ahead = np.maximum.reduceat(ahead, window)[np.arange(most) // _TOGETHER]
    others = np.searchsorted(mine[~columns["p2p"][mine]], held[first])
    run = np.cumsum(np.append(True, np.diff(others) > 0))
    return _Calls(
        rows=p2p,
        enqueue=enqueue,
        came=began - ahead,
        took=np.maximum.reduceat(columns["stop"][held], first) - began,
        place=np.arange(most) - np.searchsorted(run, run),
        count=np.add.reduceat(columns["count"][held], first),
    )


def _together(calls: Sequence[_Calls]) -> Sequence[_Calls] | None:
    """The exchanges that all processes have, of files that may begin apart; ``None`` where it is not sure which meet.

    A file that begins in the middle of a series of exchanges knows places from the next one on. Files that only end
    apart may be of a job that hangs.
    """
    shortest = min(len(one.came) for one in calls)
    if all((one.place[:shortest] == calls[0].place[:shortest]).all() for one in calls):
        return calls if all(len(one.came) == shortest for one in calls) else None
    first = [np.flatnonzero(one.place[1:] == 0) + 1 for one in calls]
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


def _cut(one: _Calls, held: slice) -> _Calls:
    parts = {name: getattr(one, name)[held] for name in ("enqueue", "came", "took", "place", "count")}
    return replace(one, **parts)


def _met(comm: int, calls: Sequence[_Calls], ranks: Sequence[int]) -> Exchanges | None:
    came, place = np.stack([one.came for one in calls]), calls[0].place
    often = np.flatnonzero(np.bincount(place) >= _MOSTLY * np.max(np.bincount(place)))
    if len(often) < _PLACES or np.bincount(place).max() < _ENOUGH:
        return None  # nothing else of the communicator tells at which place of a step each is
    came = came - np.median(_late(came), axis=1, keepdims=True).astype(np.int64)  # hosts' clocks may be ms apart
    for _ in range(_PASSES):
        late = _late(came)
        levels = np.stack([np.median(late[:, place == one], axis=1) for one in often], axis=1)
        came = came - np.sort(levels, axis=1)[:, 1:2].astype(np.int64)  # the least but one: no accident of one place
    left = came.max(axis=0) + np.stack([one.took for one in calls]).min(axis=0)
    tables = tuple(
        table(
            "collectives",
            rank=np.full(len(place), rank),
            comm=np.full(len(place), comm, np.uint64),
            seq=np.arange(len(place)),
            op=np.full(len(place), NAME),
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
    return Exchanges(tuple(one.rows for one in calls), tables)


def _late(came: Ints) -> np.ndarray[Any, Any]:
    return np.asarray(came - np.median(came, axis=0))


def told(exchanges: Exchanges | None) -> list[str]:
    """What the reader of the report has to know of it."""
    if exchanges is None:
        return []
    each = len(exchanges.tables[0]["rank"])
    return [f"Simultaneous sends of all ranks to each other are counted as {each:,} all-to-alls."]
