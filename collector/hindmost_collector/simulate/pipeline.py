"""A pipeline's step: forward and backward of micro-batches through the stages, one forward one backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hindmost_collector.simulate.layout import Array
    from hindmost_collector.simulate.scenario import Scenario

#: Sending a micro-batch's activations to the next stage takes this share of the step.
SEND_SHARE = 0.001


@dataclass(frozen=True)
class PointToPoint:
    """One transfer in every replica: who, with whom, when. ``ranks``, ``peers``, ``start``, ``end`` are [D]."""

    step: int
    op: str
    ranks: Array
    peers: Array
    start: Array
    end: Array


def schedule(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """Order of forwards and backwards at a stage: fill, then one forward one backward, then drain."""
    ahead = min(stages - 1 - stage, microbatches)
    order = [("forward", m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        order += [("forward", ahead + m), ("backward", m)]
    return order + [("backward", m) for m in range(microbatches - ahead, microbatches)]


def through_pipeline(scenario: Scenario, ready: Array, work: Array, step: int) -> tuple[Array, list[PointToPoint]]:
    """[R] when each rank's last backward ends, and the transfers. ``work`` [R, K] begins with the micro-batches'."""
    stages, micro = scenario.pipeline, scenario.microbatches
    ranks = np.arange(scenario.ranks).reshape(stages, -1)
    free = ready.reshape(stages, -1).copy()
    took = work[:, : 2 * micro].reshape(stages, ranks.shape[1], 2, micro)
    done: dict[tuple[str, int, int], Array] = {}
    transfers: list[PointToPoint] = []
    waiting = [schedule(stage, stages, micro) for stage in range(stages)]
    while any(waiting):
        for stage in range(stages):
            while waiting[stage]:
                kind, m = waiting[stage][0]
                source = stage - 1 if kind == "forward" else stage + 1
                inside = 0 <= source < stages
                if inside and (kind, source, m) not in done:
                    break
                waiting[stage].pop(0)
                if inside:
                    sent = done[kind, source, m]
                    there = sent + SEND_SHARE * scenario.step_ms * 1e6
                    came = np.maximum(there, free[stage])
                    transfers.append(PointToPoint(step, "recv", ranks[stage], ranks[source], free[stage].copy(), came))
                    transfers.append(PointToPoint(step, "send", ranks[source], ranks[stage], sent, there))
                    free[stage] = came
                free[stage] = free[stage] + took[stage, :, 0 if kind == "forward" else 1, m]
                done[kind, stage, m] = free[stage].copy()
    return free.reshape(-1), transfers
