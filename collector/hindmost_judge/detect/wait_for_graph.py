"""Where a stopped job stands: the wait-for graph of its ranks, walked to the rank that waits for no other.

A node is a rank, or an operation that several ranks are in; an edge leads from who waits to who is waited for. Ranks
without an edge that others lead to hold the job. A closed chain of waits is a deadlock: the AND model of Knapp,
"Deadlock detection in distributed databases" (ACM Computing Surveys, 1987).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

#: From so many ranks a closed chain is looked for.
_MAX_STARTS = 64


class Way(IntEnum):
    """What the other side has to do: come to a collective, send, or receive."""

    COME = 0
    SEND = 1
    RECEIVE = 2


class Edge(NamedTuple):
    """``waiter`` waits until ``target`` does something. Numbers below 0 are operations, all others ranks."""

    waiter: int
    target: int
    way: Way = Way.COME


@dataclass(frozen=True)
class Walk:
    """``roots``: ranks that wait for no other and that waiting ranks lead to, in order of rank.

    ``cycle``: ranks each of which waits for the next, and the last for the first; empty where there is no deadlock.
    """

    roots: tuple[int, ...] = ()
    cycle: tuple[int, ...] = ()


def walk(blocked: Collection[int], edges: Iterable[Edge], starts: Collection[int] | None = None) -> Walk:
    """Follow the waits of ``blocked`` nodes, of which ``edges`` are known; one without an edge waits for an unknown.

    ``starts``: those that waited for too long, from which alone it is walked; all of ``blocked`` unless given.
    An operation needs all of its targets. A rank with one target needs that; one with several was waiting for some of
    them, it is not known which, so only chains of certain waits are a deadlock while any other rank is a root.
    """
    waits = set(edges)
    met = (wait for wait in waits if wait.way == Way.SEND and Edge(wait.target, wait.waiter, Way.RECEIVE) in waits)
    meet = {(one.waiter, one.target) for one in met}
    targets: dict[int, set[int]] = {node: set() for node in blocked}
    for waiter, target, _ in waits:
        if (waiter, target) not in meet and (target, waiter) not in meet:
            targets.setdefault(waiter, set()).add(target)
    targets = _reached(blocked if starts is None else starts, targets)
    waiters = {*blocked} | {wait.waiter for wait in waits}
    certain = {node: others for node, others in targets.items() if node < 0 or len(others) == 1}
    reached = {target for others in targets.values() for target in others if target >= 0}
    roots = tuple(sorted(reached - waiters))
    cycle = _cycle(certain) or (() if roots else _cycle(targets))
    return Walk(roots, cycle)


def _reached(starts: Collection[int], targets: Mapping[int, set[int]]) -> dict[int, set[int]]:
    reached: dict[int, set[int]] = {}
    queue = [*starts]
    while queue:
        node = queue.pop()
        if node in targets and node not in reached:
            reached[node] = targets[node]
            queue.extend(targets[node])
    return reached


def _cycle(targets: Mapping[int, Collection[int]]) -> tuple[int, ...]:
    """The shortest closed chain through one of the first ranks that are in any; empty where there is none."""
    chains = (
        _back_to(rank, targets) for rank in [rank for rank in sorted(_knotted(targets)) if rank >= 0][:_MAX_STARTS]
    )
    shortest = min((chain for chain in chains if chain), key=len, default=())
    return tuple(node for node in shortest if node >= 0)


def _knotted(targets: Mapping[int, Collection[int]]) -> set[int]:
    """Nodes that may be in a closed chain: those that are left once nodes without a target, or a waiter, are gone."""
    left = set(targets)
    while True:
        leads = {node for node in left if any(target in left for target in targets[node])}
        both = leads & {target for node in leads for target in targets[node]}
        if both == left:
            return left
        left = both


def _back_to(start: int, targets: Mapping[int, Collection[int]]) -> tuple[int, ...]:
    """The shortest chain of waits from a node back to it, by breadth-first search."""
    previous: dict[int, int] = {}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        for target in sorted(targets.get(node, ())):
            if target == start:
                chain = [node]
                while chain[-1] != start:
                    chain.append(previous[chain[-1]])
                return tuple(reversed(chain))
            if target not in previous:
                previous[target] = node
                queue.append(target)
    return ()
