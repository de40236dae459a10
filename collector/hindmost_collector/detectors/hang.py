"""Operations that do not end: who did not come, and who came with something else.

Every communicator has a frontier: the lowest sequence number that some member has entered and not left. Members that
have not entered it are missing; a missing member that itself waits in another communicator is a victim, so the search
goes on there. Different operations at one sequence number are a divergence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.model import Run, rows

if TYPE_CHECKING:
    from hindmost_collector.settings import Settings

_COLLECTIVE = {"collective", "p2p"}


@dataclass(frozen=True)
class Hang:
    """A stop: ``kind`` is hang or desync. ``doing`` is what each culprit was inside, where known."""

    kind: str
    ranks: tuple[int, ...]
    victims: tuple[int, ...]
    comm: int
    seq: int
    op: str
    waited_ns: int
    doing: dict[int, str]


@dataclass(frozen=True)
class _Open:
    rank: int
    name: str
    seq: int
    waited: int


def find(run: Run, step_ns: float, settings: Settings) -> Hang | None:
    """The run's hang or divergence, ``None`` if every open operation is young. ``step_ns`` is the p99 step time."""
    limit = max(settings.hang_seconds * 1e9, settings.hang_steps * (0.0 if np.isnan(step_ns) else step_ns))
    waiting = _open_operations(run)
    stuck = {comm: held for comm, held in waiting.items() if max(one.waited for one in held) >= limit}
    if not stuck:
        return None
    divergence = _divergence(stuck)
    if divergence is not None:
        return divergence
    blocked = {one.rank for held in waiting.values() for one in held}
    missing = {comm: _missing(run, comm, held) for comm, held in stuck.items()}
    culprits = sorted({rank for ranks in missing.values() for rank in ranks if rank not in blocked})
    comm = next((comm for comm in stuck if set(missing[comm]) & set(culprits)), next(iter(stuck)))
    held = stuck[comm]
    return Hang(
        kind="hang",
        ranks=tuple(culprits),
        victims=tuple(sorted(blocked - set(culprits))),
        comm=comm,
        seq=min(one.seq for one in held),
        op=held[0].name,
        waited_ns=max(one.waited for one in held),
        doing=_doing(run, culprits),
    )


def _open_operations(run: Run) -> dict[int, list[_Open]]:
    """Communicator to its lowest unfinished operations."""
    table = run.in_flight
    found: dict[int, list[_Open]] = {}
    for i in range(rows(table)):
        if str(table["kind"][i]) not in _COLLECTIVE:
            continue
        one = _Open(
            int(table["rank"][i]),
            str(table["name"][i]),
            int(table["seq"][i]),
            int(table["observed_ns"][i] - table["start_ns"][i]),
        )
        found.setdefault(int(table["comm"][i]), []).append(one)
    return {comm: _frontier(held) for comm, held in found.items()}


def _frontier(held: list[_Open]) -> list[_Open]:
    """Of each rank its lowest open sequence, and of those the ones at the communicator's lowest."""
    lowest: dict[int, _Open] = {}
    for one in sorted(held, key=lambda one: one.seq):
        lowest.setdefault(one.rank, one)
    first = min(one.seq for one in lowest.values())
    return [one for one in lowest.values() if one.seq == first]


def _divergence(stuck: dict[int, list[_Open]]) -> Hang | None:
    for comm, held in stuck.items():
        names = [one.name for one in held]
        if len(set(names)) < 2:
            continue
        common = max(sorted(set(names)), key=names.count)
        odd = tuple(sorted(one.rank for one in held if one.name != common))
        return Hang(
            kind="desync",
            ranks=odd,
            victims=tuple(sorted(one.rank for one in held if one.name == common)),
            comm=comm,
            seq=held[0].seq,
            op=common,
            waited_ns=max(one.waited for one in held),
            doing={one.rank: one.name for one in held if one.name != common},
        )
    return None


def _missing(run: Run, comm: int, held: list[_Open]) -> list[int]:
    """Members of the communicator that have neither finished nor entered its frontier."""
    seq = held[0].seq
    entered = {one.rank for one in held}
    table = run.collectives
    passed = (table["comm"] == comm) & (table["seq"] >= seq)
    return sorted(members(run, comm) - entered - set(table["rank"][passed].tolist()))


def members(run: Run, comm: int) -> set[int]:
    """Ranks of a communicator: as defined where it was, else whoever has been seen in it, else all of the job."""
    defined = run.communicators["rank"][run.communicators["comm"] == comm].tolist()
    sizes = run.communicators["size"][run.communicators["comm"] == comm].tolist()
    world = run.job.world_size or 0
    if world and sizes and max(sizes) == world:
        return set(range(world))
    seen = set(run.collectives["rank"][run.collectives["comm"] == comm].tolist())
    return set(defined) | seen or set(run.ranks["rank"].tolist())


def _doing(run: Run, ranks: list[int]) -> dict[int, str]:
    """The innermost open phase of each rank, where its probe said so."""
    table = run.in_flight
    found: dict[int, tuple[int, str]] = {}
    for i in range(rows(table)):
        rank, start = int(table["rank"][i]), int(table["start_ns"][i])
        if rank in ranks and str(table["kind"][i]) == "phase" and start >= found.get(rank, (start, ""))[0]:
            found[rank] = (start, str(table["name"][i]))
    return {rank: name for rank, (_, name) in found.items()}
