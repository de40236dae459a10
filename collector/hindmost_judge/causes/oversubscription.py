"""Ranks bound to fewer CPUs than they are: each has to wait in the run queue while another of them runs.

A set of ranks needs a CPU each. By Hall's condition no assignment gives them one if the CPUs that all of them together
may use are fewer than they are, however many others the node has (P. Hall, 1935).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Oversubscription:
    """Ranks that may run on these CPUs only, of which there are fewer."""

    ranks: tuple[int, ...]
    cpus: frozenset[int]


def oversubscriptions(allowed: Mapping[int, frozenset[int]]) -> list[Oversubscription]:
    """The sets of a node's ranks that lack CPUs, in order of rank; none where every rank can have a CPU of its own.

    ``allowed`` is rank to the CPUs that it may use. Each set of CPUs is tried that some rank is bound to. Of sets of
    CPUs within each other only the largest one is listed.
    """
    oversubscribed = []
    for cpus in {cpus for cpus in allowed.values() if cpus}:
        ranks = tuple(sorted(rank for rank, bound_to in allowed.items() if bound_to and bound_to <= cpus))
        if len(ranks) > len(cpus):
            oversubscribed.append(Oversubscription(ranks, cpus))
    largest = [one for one in oversubscribed if not any(one.cpus < other.cpus for other in oversubscribed)]
    return sorted(largest, key=lambda one: one.ranks)


def cpus(listed: str) -> frozenset[int]:
    """The CPUs of the kernel's list, such as ``0-2,8``; none where it is no such list."""
    try:
        spans = [span.split("-") for span in listed.split(",")]
        return frozenset(cpu for span in spans for cpu in range(int(span[0]), int(span[-1]) + 1))
    except ValueError:
        return frozenset()


def share_by_peers(queued: Floats, used: Floats, cpus: int) -> Floats:
    """[N] the share, 0 to 1, of what each rank ``queued`` [N] that CPU time of its peers can account for.

    A rank queues behind what the others ``used`` [N] of the ``cpus`` that they share, and no longer; both are s per s.
    The rest it queued behind other processes. All of it where either is unmeasured (NaN).
    """
    behind = (np.sum(used) - used) / max(cpus, 1)
    shares = np.divide(behind, queued, out=np.ones_like(behind), where=queued > 0)
    return np.asarray(np.clip(np.nan_to_num(shares, nan=1.0), 0.0, 1.0))


def delay_in_collectives(queued: Floats, between: Floats, waited: Floats, transfer: Floats) -> float:
    """ns a step by which collectives are longer because every one of these ranks queues for a CPU inside of them.

    All [N] are ns a step of the ranks that lack CPUs: ``queued`` in the run queue, ``between`` collectives of that,
    ``waited`` for later ranks (queueing there delays no rank), ``transfer`` what collectives took beyond it. A
    collective goes on when its last rank runs, so the least queued rank sets the delay.
    """
    inside = np.nan_to_num(queued - between - waited)
    return float(np.clip(np.min(inside, initial=np.inf), 0.0, np.max(np.nan_to_num(transfer), initial=0.0)))
