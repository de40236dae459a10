"""Where a graph of operations loses time because its operations differ: by phase, worker, stage and cause.

A phase counts what its own operations would save at their ideal. Lost computing is split among workers, in the ratio in
which each computes longer than at the ideal; lost transfers and the rest belong to no worker. Hosts are unknown there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.verdict.schema import Waste
from hindmost_judge.whatif.waste import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.types import Array
    from hindmost_judge.verdict.schema import Verdict
    from hindmost_judge.whatif.operation_graph import Graph

_COMPUTING = {"forward-compute": "forward", "backward-compute": "backward"}
_TRANSFER = "sync"


def find(built: Graph, measured: float, ideal: float, verdicts: Sequence[Verdict]) -> Waste:
    """The tables, ms of the mean step; ``measured`` and ``ideal`` are that step, ns, as it was and with all alike."""
    lost = max(measured - ideal, 0.0) / 1e6
    causes: dict[str, float] = {}
    for one in verdicts:
        if one.cost_ms_per_step:
            causes[one.cause or "unknown"] = causes.get(one.cause or "unknown", 0.0) + one.cost_ms_per_step
    causes = _within(lost, causes)
    phases = _within(lost, _by_phase(built, measured))
    computing = sum(phases.get(name, 0.0) for name in _COMPUTING.values())
    by_rank, by_stage = (_shared(built, of, computing) for of in (built.rank, built.stage))
    step_ms = measured / 1e6
    return Waste(
        lost_ms=lost,
        rest_ms=lost - sum(causes.values()),
        by_rank=rows(by_rank, step_ms),
        by_stage=rows(by_stage, step_ms),
        by_cause=rows(causes, step_ms),
        by_phase=rows(phases, step_ms),
    )


def _by_phase(built: Graph, measured: float) -> dict[str, float]:
    """Ms a step that each phase would save, were its operations alike."""
    kinds = np.array([_COMPUTING.get(name, "") for name in built.names])[built.op]
    kinds = np.where((kinds == "") & (built.group >= 0), _TRANSFER, kinds)
    found = {}
    for name in (*_COMPUTING.values(), _TRANSFER):
        saved = measured - built.replay(np.where(kinds == name, built.ideal, built.cost))
        found[name] = max(saved, 0.0) / 1e6
    return found


def _within(lost: float, found: dict[str, float]) -> dict[str, float]:
    """The same, scaled down where the parts add up to more than was lost: together they save less than separately."""
    total = sum(found.values())
    return {name: ms * min(lost / total, 1.0) for name, ms in found.items()} if total > 0 else found


def _shared(built: Graph, of: Array, ms: float) -> dict[str, float]:
    """So many ms shared among workers, or ``of`` [N] stages: as each worker computes longer than at the ideal."""
    held = np.isin(built.op, [place for place, name in enumerate(built.names) if name in _COMPUTING])
    ranks, first, row = np.unique(built.rank, return_index=True, return_inverse=True)
    more = np.bincount(row, weights=np.where(held, built.cost - built.ideal, 0.0), minlength=len(ranks))
    more = np.maximum(more, 0.0)
    found: dict[str, float] = {}
    for name, weight in zip(of[first].tolist(), more.tolist(), strict=True):
        found[str(name)] = found.get(str(name), 0.0) + (ms * weight / more.sum() if more.sum() > 0 else 0.0)
    return found
