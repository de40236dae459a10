"""Jobs that go on with fewer ranks: each period with the same members is judged as a separate job."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge import constant
from hindmost_judge.model import RUNNING, Run, rows

if TYPE_CHECKING:
    from hindmost_judge.model import Table
    from hindmost_judge.settings import Settings
    from hindmost_judge.types import Array


@dataclass(frozen=True)
class Change:
    """Some ranks left after ``last_step`` and the others went on: the run before that and after it."""

    left: tuple[int, ...]
    last_step: int
    before: Run
    after: Run

    def __str__(self) -> str:
        counts = rows(self.before.ranks), rows(self.after.ranks)
        return f"{counts[0]} ranks until step {self.last_step}, {counts[1]} since then: each part is judged separately"


def find(run: Run, settings: Settings) -> Change | None:
    """The last departure after which enough steps followed; ``None`` where all left together, or still run."""
    states, steps = run.rank_states, run.steps
    gone = states["rank"][states["life"] != RUNNING]
    if rows(steps) == 0 or len(gone) == 0:
        return None
    ends = steps["start_ns"] + steps["duration_ns"]
    last = {int(rank): int(ends[steps["rank"] == rank].max()) for rank in np.unique(steps["rank"])}
    number = {rank: int(steps["step"][steps["rank"] == rank].max()) for rank in last}
    newest, furthest = max(last.values()), max(number.values())
    needed = 2 * settings.min_steps * float(np.median(steps["duration_ns"]))
    early = [rank for rank, end in last.items() if rank in gone and newest - end > needed]
    left = sorted(rank for rank in early if number[rank] < furthest)  # a rank with all steps made is at the end
    if not left or len(last) - len(left) < 2:
        return None
    moment = max(last[rank] for rank in left)
    theirs = np.isin(steps["rank"], left)
    return Change(tuple(left), int(steps["step"][theirs].max()), _until(run, moment), _since(run, moment, left))


def _until(run: Run, moment: int) -> Run:
    return replace(
        run,
        steps=constant.chosen(run.steps, run.steps["start_ns"] < moment),
        collectives=constant.chosen(run.collectives, run.collectives["start_ns"] < moment),
    )


def _since(run: Run, moment: int, left: list[int]) -> Run:
    def stays(table: Table) -> Array:
        return np.asarray(~np.isin(table["rank"], left))

    ranks = constant.chosen(run.ranks, stays(run.ranks))
    return replace(
        run,
        job=replace(run.job, world_size=rows(ranks)),
        ranks=ranks,
        steps=constant.chosen(run.steps, stays(run.steps) & (run.steps["start_ns"] >= moment)),
        collectives=constant.chosen(run.collectives, stays(run.collectives) & (run.collectives["start_ns"] >= moment)),
        in_flight=constant.chosen(run.in_flight, stays(run.in_flight)),
    )
