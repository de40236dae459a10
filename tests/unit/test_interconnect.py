"""Where to look for a slow link fits where the ranks are known to run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hindmost_collector.judge import judge
from hindmost_collector.judgement import interconnect
from hindmost_collector.simulate import Fault, Scenario, simulate

if TYPE_CHECKING:
    from hindmost_collector.model import Run

RUN = simulate(Scenario(ranks=8, steps=4)).run


def at(nodes: list[str], *, gpus: bool = True, source: str = "hindmost") -> Run:
    """The same run on these nodes, one a rank."""
    ranks = {**RUN.ranks, "node": np.array(nodes)}
    if not gpus:
        ranks["gpu_uuid"] = np.full(len(nodes), "")
    return replace(RUN, ranks=ranks, job=replace(RUN.job, source=source))


@pytest.mark.parametrize("ranks", [(), (2,), (0, 1, 2, 3)])
def test_on_one_node_nobody_is_sent_to_a_network(ranks: tuple[int, ...]) -> None:
    """Within a node NVLink and PCIe are looked at, without GPUs memory and bindings: no NIC, no cable, no network."""
    with_gpus, without = (interconnect.advice(at(["n0"] * 8, gpus=gpus), ranks) for gpus in (True, False))
    assert "within n0: NVLink errors, PCIe width" in with_gpus
    assert "within n0: memory bandwidth, NUMA" in without
    assert not any(word in with_gpus + without for word in ("NIC", "cable", "switch port", "network"))


def test_between_nodes_their_network_is_looked_at() -> None:
    """Ranks of several nodes share NICs, cables and a switch; members of one of these nodes do not."""
    run = at([f"n{rank // 4}" for rank in range(8)])
    told = "look at the link of ranks 0 and 4 between n0, n1: NIC counters, cables, the switch port"
    assert interconnect.advice(run, (0, 4)) == told
    assert interconnect.advice(run, ()).endswith("the switch port, other jobs on the network")
    assert "within n1: NVLink" in interconnect.advice(run, (5, 7))


@pytest.mark.parametrize("ranks", [(), (2, 3)])
def test_where_nodes_are_not_known_both_are_named(ranks: tuple[int, ...]) -> None:
    """A recording that does not say where ranks ran is not taken for one node, nor for several."""
    told = interconnect.advice(at([""] * 8, gpus=False, source="NCCL Inspector logs"), ranks)
    assert "within a node NVLink" in told
    assert "between nodes NIC" in told


@pytest.mark.parametrize(("ranks", "layout", "told"), [(8, "dp", "within node0000"), (16, "dp", "between node0000, ")])
def test_the_verdict_on_a_slow_network_says_so(ranks: int, layout: str, told: str) -> None:
    """The advice of a report is that of the nodes its ranks ran on."""
    fault = Fault("network", (1,), 0.2, onset=50)
    (verdict,) = judge(simulate(Scenario(ranks=ranks, steps=120, layout=layout, faults=(fault,))).run).verdicts
    assert (verdict.kind, verdict.cause) == ("slow_link", "network")
    (advice,) = verdict.advice
    assert told in advice
