"""Missing ranks: ranks of a job without recorded collectives, for which others may wait and seem late themselves.

An agent died, or a rank's NCCL plugin was not loaded. Members of a communicator with such a rank leave its
operations late, and nothing shows that they waited; their next partners do wait for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge import dictionary_encoding
from hindmost_judge.model import Run, rows
from hindmost_judge.verdict.schema import STOPS, Verdict
from hindmost_judge.verdict.wording import names

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.types import Array, Ints

#: Causes measured on a rank's own host or GPU: these are no wait for others.
ITS_OWN = (
    "input",
    "h2d",
    "gpu_throttle",
    "gpu_contention",
    "cpu_contention",
    "gc",
    "checkpoint",
    "memory",
    "io",
    "stopped",
)
#: Share of a communicator's recorded members that must be late together: a rank that waits for a missing one is not
#: alone.
_ALIKE = 0.5


@dataclass(frozen=True)
class Absent:
    """``ranks`` of which no collective was recorded, as far as is known which, and of each communicator that such a
    rank is in the members that were seen, where others were seen that are not in it.
    """

    ranks: tuple[int, ...]
    beside: tuple[frozenset[int], ...] = ()

    def doubts(self, one: Verdict) -> bool:
        """Whether those whom a verdict names may have waited for one of these ranks."""
        if one.kind in STOPS or one.cause in ITS_OWN:
            return False
        if one.kind == "slow_link" or one.cause == "network":
            return True  # waits for a missing rank look like slow transfers
        named = set(one.ranks)
        return any(len(seen & named) >= _ALIKE * len(seen) for seen in self.beside if named)


def find(run: Run, blocks: Blocks | None) -> Absent | None:
    """The ranks without collectives in a run; ``None`` where none is known to be missing."""
    told = set(run.unseen.ranks) if run.unseen is not None else set()
    if blocks is None or blocks.joined is None:
        return _without_collectives(run, blocks, told)
    comm, members, size = _memberships(run, blocks.ranks)
    silent = np.setdiff1d(run.ranks["rank"], blocks.ranks)
    if not told and not len(silent) and (members >= size).all():
        return None
    seen = set(blocks.ranks.tolist())
    expected = dict(zip(comm.tolist(), size.tolist(), strict=True))
    short = {one: met for one, met in _met(run).items() if len(met) < expected.get(one, 0)}
    if not expected:  # then the missing members of a communicator are unknown
        short = _met(run)
    if short:
        defined = np.isin(run.communicators["comm"], np.array(list(short), np.uint64))
        told |= {*silent.tolist(), *run.communicators["rank"][defined].tolist()} - seen
    beside = tuple(frozenset(met) for met in short.values() if met < seen)
    return Absent(tuple(sorted(told)), beside) if told or (short and expected) else None


def _without_collectives(run: Run, blocks: Blocks | None, told: set[int]) -> Absent | None:
    """Whom nothing was recorded of, where the others' steps are all that is known."""
    if blocks is not None:
        heard = [run.collectives["rank"], run.intervals["rank"], blocks.ranks]
        told = told | set(run.ranks["rank"].tolist()).difference(*(np.unique(one).tolist() for one in heard))
    return Absent(tuple(sorted(told))) if told else None


def _memberships(run: Run, ranks: Ints) -> tuple[Array, Ints, Ints]:
    """Each communicator that was defined, how many of its members are among these ``ranks``, and its size."""
    table = run.communicators
    if not rows(table):
        return np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64)
    comm, which = np.unique(table["comm"], return_inverse=True)
    size = np.zeros(len(comm), np.int64)
    np.maximum.at(size, which, table["size"])
    seen = np.isin(table["rank"], ranks)
    pairs = np.unique(which[seen].astype(np.int64) * (1 << 32) + table["rank"][seen])  # one may be defined again
    return comm, np.bincount(pairs >> 32, minlength=len(comm)), size


def _met(run: Run) -> dict[int, set[int]]:
    """The ranks that were seen in each communicator, messages left out."""
    together = run.collectives["peer"] < 0
    which, comms = dictionary_encoding.factorize(run.collectives["comm"][together])
    pairs = np.unique(which.astype(np.int64) * (1 << 32) + run.collectives["rank"][together])
    met: dict[int, set[int]] = {}
    for place, rank in zip((pairs >> 32).tolist(), (pairs & 0xFFFFFFFF).tolist(), strict=True):
        met.setdefault(int(comms[place]), set()).add(rank)
    return met


def told(absent: Absent, doubted: list[Verdict]) -> Verdict:
    """Inconclusive: the rank that seems to hold the job back may wait for a missing one."""
    late = sorted({rank for one in doubted for rank in one.ranks})
    seem = f"{names(late)} {'looks' if len(late) == 1 else 'look'} late" if late else "transfers look slow"
    return Verdict(
        kind="insufficient_data",
        cause="unknown",
        evidence=(
            missing(absent),
            f"{seem}, and may have waited for {_it(absent)}",
        ),
        advice=(remedy(absent),),
    )


def missing(absent: Absent) -> str:
    """The ranks without any data."""
    are = "is" if len(absent.ranks) == 1 else "are"
    return f"{_who(absent)} {are} missing: no collective of {_it(absent)} was recorded"


def remedy(absent: Absent) -> str:
    """How what is missing would be recorded."""
    return (
        f"run `hindmost doctor` on the node of {_who(absent)}: it checks the agent and the probe."
        " If it sent to another collector, name that directory, too"
    )


def _who(absent: Absent) -> str:
    return names(absent.ranks) if absent.ranks else "some ranks"


def _it(absent: Absent) -> str:
    return "it" if len(absent.ranks) == 1 else "them"
