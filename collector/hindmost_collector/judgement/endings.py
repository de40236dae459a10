"""How a job ended: on its own, or because some rank did, and which rank the others were waiting for then."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.detectors import hang
from hindmost_collector.explain.telemetry import Metrics
from hindmost_collector.judgement.wording import names
from hindmost_collector.model import VANISHED, Run, rows
from hindmost_collector.settings import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Agents check their ranks once a second: processes that vanish between two checks have no known order.
LOOK_NS = 1_500_000_000


def sentence(run: Run) -> str | None:
    """How the job failed and which rank died first, as far as known; ``None`` where it ended well or that is unknown.

    A training process that closed its ring left in order, also where its exit code was not 0. In a job that was
    asked to end no rank is named: its processes are killed in any order.
    """
    gone = _gone(run)
    code, signalled = run.job.exit_code, run.job.interrupted_by
    if not code and (code is not None or len(gone) == 0):
        return None
    told = [exit_words(code, None if signalled else run.killed_by)] if code else []
    first, how = first_to_die(run)
    if signalled:
        told.insert(0, f"interrupted by {signalled}")
    elif first:
        told.append(f"{_who(run, first)} died first{_after(run, first)}{how}")
    elif len(gone):
        told.append(f"{_who(run, gone)} were killed or crashed{how or ', order unknown'}")
    killed = _out_of_memory(run)
    return "; ".join(told + killed)


def exit_words(code: int, killed_by: int | None) -> str:
    """``exit code 137 (SIGKILL)``; of the command itself, as -9: ``killed by signal 9 (SIGKILL)``."""
    name = f" ({signal.Signals(killed_by).name})" if killed_by in list(signal.Signals) else ""
    return f"killed by signal {-code}{name}" if code < 0 else f"exit code {code}{name}"


def _gone(run: Run) -> list[int]:
    """Ranks whose process is gone without having closed its ring."""
    return sorted(run.rank_states["rank"][run.rank_states["life"] == VANISHED].tolist())


def first_to_die(run: Run) -> tuple[list[int], str]:
    """The ranks that died before the rest, and what shows it; none where nothing does.

    Either an agent missed them earlier than the others, or all were gone in one check and only these had not entered
    what the others were waiting in. After a long wait that is a hang that was ended, not a death.
    """
    gone = _gone(run)
    if not gone:
        return [], ""
    when = dict(zip(run.rank_states["rank"].tolist(), run.rank_states["time_ns"].tolist(), strict=True))
    earliest = min(when[rank] for rank in gone)
    early = [rank for rank in gone if when[rank] < earliest + LOOK_NS]
    later = [rank for rank in gone if rank not in early]
    if later:
        return early, f", {(min(when[rank] for rank in later) - earliest) / 1e9:.1f} s before {names(later)}"
    if len(gone) == 1:
        return gone, ""
    stop = hang.find(run, float("nan"), replace(DEFAULT, hang_seconds=0.0))
    if stop is not None and stop.ranks and set(stop.ranks) <= set(gone):
        if stop.waited_ns >= DEFAULT.patience_ns(float("nan")):
            return [], f" while {names(stop.victims)} waited for {names(stop.ranks)}"
        whom = "it" if len(stop.ranks) == 1 else "them"
        return list(stop.ranks), f": {names(stop.victims)} waited for {whom} in {stop.op} number {stop.seq}"
    return [], ""


def _who(run: Run, ranks: Sequence[int]) -> str:
    """``rank 1 on vm``; nodes where they are few."""
    at = np.isin(run.ranks["rank"], ranks)
    nodes = [node for node, _ in Counter(str(node) for node in run.ranks["node"][at] if str(node)).most_common()]
    return names(ranks) + (f" on {' and '.join(nodes)}" if 0 < len(nodes) <= 2 else "")


def _after(run: Run, ranks: Sequence[int]) -> str:
    """The last step that one of them finished."""
    mine = np.isin(run.steps["rank"], ranks) & (run.steps["kind"] != "eval")
    return f" after step {int(run.steps['step'][mine].max())}" if mine.any() else ""


def _out_of_memory(run: Run) -> list[str]:
    """Nodes whose kernel killed processes because memory ran out meanwhile."""
    if not rows(run.metrics):
        return []
    found = Metrics.of(run).series("hindmost_node_oom_kills_total")
    killed = {one.node: int(one.values[-1] - one.values[0]) for one in found if len(one.values)}
    return [
        f"{node} ran out of memory: its kernel killed {count} process{'es' * (count > 1)}"
        for node, count in killed.items()
        if count > 0
    ]
