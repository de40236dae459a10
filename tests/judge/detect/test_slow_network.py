"""A network that becomes slow for all: no rank is late, and only the job's own past shows it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Noise, Scenario, simulate
from hindmost_judge.blocks import SlowNetwork
from hindmost_judge.detect import slow_network
from hindmost_judge.judge import judge
from hindmost_judge.model import Past, Run
from hindmost_judge.verdict.schema import Verdict

from tests.runs import only, with_rows
from tests.scenarios.loads import Load, held_up, make, metrics

STEPS, ONSET = 140, 60


def slowed(size: float = 0.1, end: int | None = None, **known: Any) -> Scenario:
    return Scenario(8, STEPS, seed=3, faults=(Fault("network", (3,), size, ONSET, end),), **known)


def links(run: Run) -> list[Verdict]:
    return [verdict for verdict in judge(run).verdicts if verdict.kind == "slow_link"]


def grown(run: Run, *, sizes: bool) -> Run:
    """Transfers twice as long from the onset on, as larger messages make them, or these alone."""
    table = dict(run.collectives)
    factor = np.where(table["step"] >= ONSET, 2, 1)
    least = table["duration_ns"].min()
    table["duration_ns"] = table["duration_ns"] + (factor - 1) * least
    table["bytes"] = table["bytes"] * factor if sizes else table["bytes"]
    return replace(run, collectives=table)


@pytest.mark.parametrize("sizes", [True, False], ids=["larger messages take longer by right", "computing hides it"])
def test_transfers_may_take_longer_without_a_slow_network(sizes: bool) -> None:
    """Only messages of one size are compared, and a step may be as long as before."""
    assert not links(grown(simulate(slowed(0.0)).run, sizes=sizes))


def test_another_mix_of_operations_is_no_slow_network() -> None:
    """A program that runs further operations from some step on shares the network with itself."""
    run = simulate(slowed(layout="fsdp")).run
    assert links(run)
    more = only(run, collectives=run.collectives["step"] >= ONSET).collectives
    assert not links(with_rows(run, collectives=more | {"op": np.full(len(more["rank"]), "broadcast")}))


@pytest.mark.parametrize("seed", range(3))
def test_noise_of_transfers_is_no_change(seed: int) -> None:
    """Transfers that differ by half from one to the next, in a step of which they are a third."""
    for layout in ("dp", "fsdp"):
        scenario = Scenario(8, 200, seed, layout=layout, transfer_share=0.5, noise=Noise(transfer=0.5))
        assert not links(simulate(scenario, metrics=False).run)


@pytest.mark.parametrize("seed", range(3))
def test_where_a_rank_is_late_by_as_much_the_network_is_not_to_blame(seed: int) -> None:
    """CPUs that others use make transfers slow, and one rank late too often for noise and too rarely for a name."""
    rng = np.random.default_rng(seed)
    late = [at for at in range(ONSET, 240, 12) if rng.random() < 0.65]
    faults = [{"rank": 1, "blocked": 6.0, "from": at, "until": at + 12} for at in late]
    run = make(Load(ranks=2, steps=240, compute=4, transfer=2.0, seed=seed, cpu=False, faults=faults))
    assert not links(held_up(run, 5.0 * (np.arange(240) >= ONSET)))


@pytest.mark.parametrize(("late", "to_blame"), [(0.4, True), (0.7, False)])
def test_the_network_is_to_blame_for_what_no_rank_is_late_by_more_than_half_of(late: float, to_blame: bool) -> None:
    """Slow transfers and a late rank may both be of what else runs on the host."""
    blocks: Any = SimpleNamespace(ranks=np.arange(4), delay=np.zeros((4, STEPS)))
    blocks.delay[1, ONSET:] = late * 10.0
    found = SlowNetwork(ONSET, STEPS, took=30.0, usual=20.0, cost=10.0, past=Past(ONSET, 20.0, 100.0, 0.5, 4.0))
    assert slow_network.rank_is_late(blocks, found, ()) != to_blame


def queues(run: Run, since: int = 0, until: int = 40, **rates: float) -> Run:
    """The same job whose ranks' main threads wait for a CPU for these parts of the time, between these seconds."""
    name, begin = "hindmost_process_runqueue_seconds_total", int(run.collectives["start_ns"].min()) // 10**9
    samples = [
        (
            name,
            f'{{"job": "{run.job.id}", "rank": "{rank[1:]}"}}',
            begin + second,
            rate * min(max(second - since, 0), until - since),
        )
        for rank, rate in rates.items()
        for second in range(40)
    ]
    return replace(run, metrics=metrics(samples))


@pytest.mark.parametrize(
    ("rate", "until", "kinds"), [(0.02, 40, ["slow_link"]), (0.74, 4, ["balanced"]), (0.74, 40, ["slow_link"])]
)
def test_transfers_that_may_wait_for_a_cpu_say_nothing_of_a_network(rate: float, until: int, kinds: list[str]) -> None:
    """Transfers take 20 of 60 ms longer until step 68 of 140, at 4 s: where other jobs leave the node then, not where
    CPUs stay as full."""
    run = held_up(make(Load(ranks=2, steps=140, compute=40.0, noise=1.0, transfer=2.0)), 20.0 * (np.arange(140) < 68))
    run = queues(run, 0, until, r0=rate, r1=rate)
    assert [verdict.kind for verdict in judge(run).verdicts] == kinds


def on_cpus(run: Run) -> Run:
    """The same job without GPUs."""
    steps = {
        name: np.full_like(column, -1) if name.startswith("gpu_") else column for name, column in run.steps.items()
    }
    return replace(run, steps=steps, collectives=run.collectives | {"flags": 0 * run.collectives["flags"]})


@pytest.mark.parametrize(
    ("slow_from", "lacks", "ranks"), [(ONSET, False, [(0, 2, 4, 6)]), (ONSET, True, []), (0, True, [])]
)
def test_nor_do_those_of_one_group(slow_from: int, lacks: bool, ranks: list[tuple[int, ...]]) -> None:
    """A group one of whose ranks lacks a CPU from then on takes longer than its sister, over the same links.

    The other ranks are not sampled: that clears nothing."""
    scenario = Scenario(8, STEPS, seed=3, layout="tp_dp", tensor=2, faults=(Fault("network", (2,), 0.2, slow_from),))
    run = on_cpus(simulate(scenario, metrics=False).run)
    start, step = run.collectives["start_ns"], run.steps["step"]
    onset = int(run.steps["start_ns"][step == max(slow_from, step.min())].min() - start.min()) // 10**9
    run = queues(run, onset, r2=0.5 * lacks)
    assert [verdict.ranks for verdict in links(run)] == ranks


@pytest.mark.parametrize(("fast", "network"), [(0, True), (30, False)])
def test_full_cpus_and_a_slow_network_are_told_apart_where_all_ranks_once_had_a_cpu(fast: int, network: bool) -> None:
    """Transfers of 40 ms are slow in each step, or not in those in which no rank waits for a CPU."""
    run = make(Load(ranks=2, steps=140, compute=10.0, noise=0.1, transfer=40.0))
    bound = judge(queues(held_up(run, -39.0 * (np.arange(140) < fast)), r0=0.74, r1=0.74)).job.bound
    assert bound is not None
    assert bound.by == "cpu"
    assert ("or a slow network: transfers are 80 %" in bound.evidence) == network
