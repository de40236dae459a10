"""The part of a report that describes rather than judges: the job, a row a rank, and how much time could be saved.

It also says why a rank that comes last is not named.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from hindmost_judge import communication
from hindmost_judge.blocks import Blocks
from hindmost_judge.causes import loading, table
from hindmost_judge.encoding import codes, distinct_integers
from hindmost_judge.model import OTHER, Run, rows
from hindmost_judge.stats.robust import average, mean, median, or_zero, sums_by_step
from hindmost_judge.timeline import phases
from hindmost_judge.timeline.phases import pivots, training, unnamed
from hindmost_judge.types import Floats, Ints
from hindmost_judge.verdict import endings
from hindmost_judge.verdict.schema import JobSummary, RankRow, Verdict, WhatIf
from hindmost_judge.verdict.wording import called, ms, percent
from hindmost_judge.whatif import savings
from hindmost_judge.whatif.waste import beyond, by_node


def job(run: Run, blocks: Blocks | None) -> JobSummary:
    """What is known of the job; ``None`` where it is not."""
    about = run.job
    nodes = {*codes(run.ranks["node"])[1]} - {""}
    seconds = (about.ended_ns - about.started_ns) / 1e9 if about.ended_ns and about.started_ns else None
    ended, to_do = endings.of(run, int(blocks.steps[-1]) if blocks is not None and len(blocks.steps) else None)
    step_ms: dict[str, float | None] = {"p50": None, "p99": None, "mean": None}  # of the mean costs are shares
    if blocks is not None and not np.isnan(blocks.period).all():
        p50, p99 = np.nanpercentile(blocks.period, [50, 99]) / 1e6
        step_ms = {"p50": float(p50), "p99": float(p99), "mean": average(blocks.period) / 1e6}
    return JobSummary(
        id=about.id,
        command=about.command,
        world_size=about.world_size or rows(run.ranks) or None,
        nodes=about.nodes or len(nodes) or None,
        steps=_steps(run, blocks),
        step_ms=step_ms,
        duration_s=seconds,
        exit_code=about.exit_code,
        interrupted_by=about.interrupted_by,
        ended=ended,
        to_do=to_do,
        source=about.source,
        exchanges=blocks is not None and blocks.exchanges,
        incarnations=run.incarnations,
    )


def _steps(run: Run, blocks: Blocks | None) -> int | None:
    if run.job.steps is not None:
        return run.job.steps
    if rows(run.steps):
        return len(distinct_integers(run.steps["step"]))
    if blocks is None:
        return None
    return len(blocks.steps) + blocks.warmup if run.counted is None else int(blocks.steps[-1]) + 1


def ranks(run: Run, blocks: Blocks | None) -> RankRows:
    """A row for every rank that was seen, in order."""
    judged = blocks.ranks if blocks is not None else np.empty(0, np.int64)
    seen = np.union1d(run.ranks["rank"], judged).astype(np.int64)
    at = np.searchsorted(seen, judged)
    others = np.delete(seen, at).tolist()
    texts = {field: _texts(run, seen, column) for field, column in (("node", "node"), ("gpu", "gpu_uuid"))}
    if blocks is None:
        return RankRows(seen, texts, {"calls_ratio": communication.share_of_time(run, seen)}, {}, at)
    figures = _figures(run, blocks)
    if len(at) < len(seen):
        every = {name: np.full(len(seen), np.nan) for name in figures}
        for name, values in figures.items():
            every[name][at] = values
        figures = every
    return RankRows(seen, texts, figures, _phases(run, blocks), at, _of_others(run, blocks, others))


def _texts(run: Run, seen: Ints, column: str) -> list[str | None]:
    """[N] what the table of ranks says last of each; ``None`` where it says nothing."""
    known = dict(zip(run.ranks["rank"].tolist(), run.ranks[column].tolist(), strict=True))
    return [str(known.get(rank, "")) or None for rank in seen.tolist()]


#: Most ranks that an incremental evaluation describes: enough for their typical values.
_SAMPLED = 64


def sampled_ranks(blocks: Blocks | None) -> tuple[RankRow, ...]:
    """How long transfers took some of the ranks, for incremental evaluations."""
    if blocks is None:
        return ()
    chosen = slice(None, None, len(blocks.ranks) // _SAMPLED + 1)
    took = median(blocks.transfer[chosen], axis=1) / 1e6
    pairs = zip(blocks.ranks[chosen].tolist(), took.tolist(), strict=True)
    return tuple(RankRow(rank, transfer_ms=None if np.isnan(ms) else ms) for rank, ms in pairs)


def _phases(run: Run, blocks: Blocks) -> dict[str, Floats]:
    """Name to [R] ms in the typical step; NaN where nothing was measured of it, which for causes may count as none."""
    found = {}
    for name, block in blocks.parts.items():
        seen = _measured(run, blocks, name)
        found[name] = median(block if seen is None else np.where(seen, block, np.nan), axis=1) / 1e6
    made = loading.of(blocks)
    if made is not None and not np.isnan(made.storage).all():
        found["storage"] = made.storage * average(blocks.period) / 1e6
    rest = unnamed(blocks.parts, blocks.took) if blocks.took is not None else None
    if rest is not None:
        found[OTHER] = median(rest, axis=1) / 1e6
    return found


def _of_others(run: Run, blocks: Blocks | None, others: list[int]) -> dict[int, dict[str, float | None]]:
    """What the log of the steps says of ranks that could not be judged with the rest, which their collectives lack."""
    table = training(run.steps)
    if blocks is None or not others or not np.isin(table["rank"], others).any():
        return {}
    found = pivots(table, np.array(others, np.int64), blocks.steps)
    return dict(zip(others, by_row({name: median(one, axis=1) / 1e6 for name, one in found.items()}), strict=False))


def _measured(run: Run, blocks: Blocks, name: str) -> np.ndarray[Any, Any] | None:
    """[R, S] or [R, 1] whether a part was measured; ``None`` where its block says so itself.

    The run queue is sampled in gaps long enough for it; a rank without any interval of a name, such as file reads, may
    as well not have been watched.
    """
    if name in ("self_runqueue", "self_blocked") and blocks.joined is not None:
        return sums_by_step((~np.isnan(blocks.joined.runqueue)).astype(np.float64), blocks.starts) > 0
    if name in phases.INTERVALS and f"{name}_ns" not in run.steps:
        return np.isin(blocks.ranks, run.intervals["rank"][run.intervals["name"] == name])[:, None]
    return None


def _figures(run: Run, blocks: Blocks) -> dict[str, Floats]:
    """Field of ``RankRow`` to [R], ms or ratio. What ranks wait in messages is in their time in calls only."""
    unmeasured = np.full(len(blocks.ranks), np.nan)
    named = {"cpu_ratio": "cpu", "runqueue_ratio": "runqueue", "rss_bytes": "rss"}
    gauges = {field: blocks.gauge(name) for field, name in named.items()}
    peers = 1.0 if len(blocks.ranks) > 1 else np.nan  # who is alone waits for none
    messages = blocks.pipeline is None and blocks.joined is not None and blocks.joined.peer_wait.any()
    return {
        "step_ms": np.full(len(blocks.ranks), blocks.step_ns / 1e6),
        "self_ms": unmeasured if blocks.overlapped else median(blocks.self_time, axis=1) / 1e6,
        "wait_ms": peers * median(blocks.wait, axis=1) / 1e6,
        "transfer_ms": median(blocks.transfer, axis=1) / 1e6,
        "caused_wait_ms": peers * mean(blocks.caused) / 1e6,
        "share_last": peers * mean(blocks.last),
        "calls_ratio": communication.share_of_time(run, blocks.ranks) if messages else unmeasured,
        **{name: unmeasured if values is None else values for name, values in gauges.items()},
    }


def what_if(run: Run, blocks: Blocks | None, found: Sequence[Verdict] = ()) -> WhatIf:
    """Time with every rank at the pace of its typical peer in every interval, and the time as it was.

    What the verdicts ``found`` cost beyond the visible delay is lost as well.
    """
    if blocks is None or len(blocks.ranks) < 2 or not blocks.step_ns > 0:
        return WhatIf()
    step = float(np.nanmean(blocks.period))
    shown = float(savings.step_delay(blocks, blocks.intervals).mean())
    lost = shown + beyond(found, blocks) * 1e6
    ideal = min(max(step - lost, 0.0), step)  # of a job that loses nothing rounding leaves a little less than that
    known = ~np.isnan(blocks.caused).all(axis=1)
    means = np.nanmean(blocks.caused[known], axis=1) / 1e6
    by_rank = dict(zip(blocks.ranks[known].tolist(), means.tolist(), strict=True))
    return WhatIf(
        slowdown=step / ideal if ideal > 0 else None,
        wasted_ratio=1 - ideal / step,
        step_ms=step / 1e6,
        ideal_step_ms=ideal / 1e6,
        waste_by_rank_ms={str(rank): lost_ms for rank, lost_ms in by_rank.items()},
        waste_by_node_ms=by_node(run, by_rank),
    )


#: A rank is seen in the table that comes last in this share of the collectives, while all others usually wait for this
#: share of a step or it makes them wait so long. Of the latest so many are explained.
_LAST, _WAITED, _MOST = 0.5, 0.05, 3
#: Work is no longer than that of the peers if it is so by less than this share of a step.
_NOTHING = 0.001
#: A measurement explains a longer time from this share of it on.
_EXPLAINS = 0.5


def last_rank_notes(blocks: Blocks, found: Sequence[Verdict], notes: Sequence[str] = ()) -> list[str]:
    """A sentence on each rank that comes last in most collectives and is in no verdict and not ``told`` of yet.

    None on ranks that alone do their work: nothing shows whether it is longer than it should be.
    """
    if blocks.joined is None or len(blocks.ranks) < 2:
        return []
    named = [rank for verdict in found for rank in (*verdict.ranks, *verdict.victims)]
    often, caused = mean(blocks.last), or_zero(mean(blocks.caused))
    alone = False if blocks.alone is None else blocks.alone
    rows = np.flatnonzero((often > _LAST) & ~np.isin(blocks.ranks, named) & ~np.asarray(alone))
    lines = [f"{line} " for line in (*notes, *(line for verdict in found for line in verdict.evidence))]
    rows = rows[[not any(f"rank {int(blocks.ranks[row])} " in line for line in lines) for row in rows]]
    rows = rows[np.argsort(-often[rows], kind="stable")][:_MOST]
    least = _WAITED * blocks.step_ns
    usual, waits = or_zero(median(blocks.caused, axis=1)), or_zero(median(blocks.wait, axis=1))
    seen = [row for row in rows.tolist() if usual[row] >= least or np.delete(waits, row).min() >= least]
    ahead = blocks.lanes is not None or any(verdict.kind == "host_bound" for verdict in found)
    return [_why_last(blocks, row, float(often[row]), float(caused[row]), ahead=ahead) for row in seen]


def _why_last(blocks: Blocks, row: int, often: float, caused: float, *, ahead: bool) -> str:
    longer = float(np.nan_to_num(median(blocks.delay[row])))
    more = longer > _NOTHING * blocks.step_ns
    last = f"rank {int(blocks.ranks[row])} is last in {percent(often)} of collectives"
    if not more and ahead:
        return f"{last} only because its peers' CPUs launch kernels earlier: its work is no longer than theirs"
    if not more:
        return f"{last}, but its work is no longer than its peers'"
    if blocks.lanes is not None and blocks.lanes.wait is not None and blocks.lanes.doubt[row] > longer / 2:
        where = called(blocks.lanes.phases[blocks.lanes.wait.phase])
        return f"{last}: its work is at most {ms(longer)} longer (part of its peers' {where} may be a wait)"
    last = f"{last}, partly because its peers' CPUs launch kernels earlier" if ahead else last
    cost = f", costing {ms(caused)}" if blocks.lanes is not None else ""
    return f"{last}: {_longer(blocks, row, longer)}{cost}"


def _shown(blocks: Blocks, row: int, longer: float) -> float:
    """``longer`` as the table shows it, where that has self times: the difference of two medians."""
    peers = (blocks.cohort == blocks.cohort[row]) & (np.arange(len(blocks.ranks)) != row)
    if blocks.overlapped or not peers.any():
        return longer
    own = median(blocks.self_time, axis=1)
    found = float(np.nan_to_num(own[row] - median(own[peers])))
    return found if found > 0 else longer


def _longer(blocks: Blocks, row: int, longer: float) -> str:
    """What takes a rank ``longer`` ns than its peers: its work, or time off the CPU if CPU time does not explain it.

    Ranks that share CPUs make each other wait: the last one may have the least work.
    """
    steps, least, longer = np.arange(len(blocks.steps)), _EXPLAINS * longer, _shown(blocks, row, longer)
    cpu, queue = (blocks.parts.get(name) for name in ("self_cpu", "self_runqueue"))
    if cpu is None or np.isnan(cpu[row]).all() or table.excess_of(cpu, row, steps) >= least:
        return f"its work is {ms(longer)} longer"
    if queue is not None and table.excess_of(queue, row, steps) >= least:
        return f"it waits {ms(longer)} longer for a CPU"
    return f"it is off the CPU for {ms(longer)} longer"


@dataclass(frozen=True, eq=False)
class RankRows(Sequence[RankRow]):
    """A report's rows of ranks, held as columns: of a large job rows are more work than verdicts, and few are read.

    Reads like a tuple of rows, each made when it is looked at.

    What ``ranks`` [N] are and did: ``texts`` and ``figures`` [N] by the name of their field, NaN where unmeasured.

    ``phases`` are [M] ms by name, of the ranks whose places are in ``judged`` [M]; ``logged`` those of others, by rank.
    """

    ranks: Ints
    texts: Mapping[str, list[str | None]]
    figures: Mapping[str, Floats]
    phases: Mapping[str, Floats]
    judged: Ints
    logged: Mapping[int, dict[str, float | None]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ranks)

    @overload
    def __getitem__(self, index: int) -> RankRow: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RankRow, ...]: ...
    def __getitem__(self, index: int | slice) -> RankRow | tuple[RankRow, ...]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[RankRow]:
        return (RankRow(**row) for row in self.plain())

    def plain(self) -> list[dict[str, Any]]:
        """A row each in the order of :class:`RankRow`'s fields; what is no number, or no finite one, is ``None``."""
        ranks = self.ranks.tolist()
        phases: list[Any] = [self.logged.get(rank, {}) for rank in ranks]
        for place, row in zip(self.judged.tolist(), by_row(self.phases), strict=False):
            phases[place] = row
        figures = {name: _finite(values) for name, values in self.figures.items()}
        columns = {"rank": ranks, **self.texts, "phases_ms": phases, **figures}
        unknown: list[None] = [None] * len(ranks)
        fields = {one.name: columns.get(one.name, unknown) for one in dataclasses.fields(RankRow)}
        return [dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True)]


def by_row(columns: Mapping[str, Floats]) -> list[dict[str, float | None]]:
    """What columns [N] say of each of the N, by their names; ``None`` where that is no finite number."""
    listed = [_finite(values) for values in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*listed, strict=True)]


def _finite(values: Floats) -> list[float | None]:
    finite = np.isfinite(values)
    if finite.all():
        return list(values.tolist())
    return [one if known else None for one, known in zip(values.tolist(), finite.tolist(), strict=True)]
