"""The same run in another form: ranks renamed, clocks shifted, its first steps left out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from hindmost_judge.model import Run, Table

TIMES = ("start_ns", "time_ns", "observed_ns")


def renamed(run: Run, order: Sequence[int]) -> Run:
    """Rank r is called ``order[r]``; nothing else changes."""
    names = np.array(order)

    def table(one: Table) -> Table:
        numbers = {name: one[name] for name in ("rank", "peer") if name in one}
        called = {name: np.where(was >= 0, names[was], was).astype(was.dtype) for name, was in numbers.items()}
        moved = one | called
        by_rank = np.argsort(moved["rank"], kind="stable") if "rank" in moved else slice(None)
        return {name: column[by_rank] for name, column in moved.items()}

    return replace(run, **{name: table(one) for name, one in run.tables().items()})


def shifted(run: Run, offsets: Mapping[str, int]) -> Run:
    """The clock of a node is ahead by so many ns: all that its ranks and its agent wrote."""
    node = dict(zip(run.ranks["rank"].tolist(), run.ranks["node"].tolist(), strict=True))

    def table(one: Table) -> Table:
        of = one["node"].tolist() if "node" in one else [node[rank] for rank in one.get("rank", np.empty(0)).tolist()]
        ahead = np.array([offsets.get(name, 0) for name in of], dtype=np.int64)
        return one | {name: one[name] + ahead for name in TIMES if name in one and len(one[name])}

    return replace(run, **{name: table(one) for name, one in run.tables().items()})


def without_first_steps(run: Run, share: float) -> Run:
    """As if recording had begun later: without this share of the marked steps, and the collectives before the rest."""
    steps, calls = run.steps, run.collectives
    number = np.unique(steps["step"])
    first = number[int(share * len(number))]
    begun = steps["start_ns"][steps["step"] == first].min()
    later = calls["step"] >= first if (calls["step"] >= 0).any() else calls["start_ns"] >= begun
    for comm in np.unique(calls["comm"]):  # all ranks from the same one on
        of = calls["comm"] == comm
        later[of] = calls["seq"][of] >= calls["seq"][of & later].min(initial=np.iinfo(np.int64).max)
    held = {"steps": (steps, steps["step"] >= first), "collectives": (calls, later)}
    return replace(run, **{name: {n: col[where] for n, col in one.items()} for name, (one, where) in held.items()})
