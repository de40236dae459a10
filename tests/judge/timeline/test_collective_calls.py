"""Broadcasts in which a job waits for their root, and rounds of gathers and reductions."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hindmost_judge.encoding import codes
from hindmost_judge.judge import judge
from hindmost_judge.model import UNMEASURED, Run
from hindmost_judge.timeline import matching
from hindmost_judge.timeline.collective_calls import awaited_broadcasts, is_rooted
from hindmost_judge.timeline.overlap import delay_by_round

from tests.runs import call, made, only, with_rows

MS = 1_000_000
RANKS = 4
STEPS = 60


def job(late: dict[int, float], *, every: int = 1, takes: float = 0.01) -> Run:
    """Each step rank 0 broadcasts, all compute 10 ms, and reduce; ranks come ``late`` (ms) to the broadcast. Late in
    every ``every``-th step. The receivers are done ``takes`` ms after the root came, who leaves at once. Times are the
    GPU's, in a group of 4 ranks."""
    generator = np.random.default_rng(3)
    ready, parts = np.zeros(RANKS), []
    for step in range(STEPS):
        ready = ready + generator.normal(2.0, 0.02, RANKS)
        for rank, more in late.items():
            ready[rank] += more if step % every == 0 else 0.0
        received = np.maximum(ready, ready[0]) + takes
        received[0] = ready[0] + 0.003
        parts.append(call("broadcast", step, ready, received, size=1000))
        ready = received + generator.normal(10.0, 0.02, RANKS)
        met = np.full(RANKS, ready.max() + 0.2)
        parts.append(call("all_reduce", step, ready, met))
        ready = met
    return made(RANKS, collectives=parts)


def counted(run: Run) -> int:
    """How many of a run's broadcasts count as ones that are waited in."""
    code, names = codes(run.collectives["op"])
    gives = np.array([is_rooted(name) for name in names])
    return int(
        awaited_broadcasts(run.collectives, code, gives, matching.synchronising(run.collectives, (code, names))).sum()
    )


def test_a_late_root_is_named_where_all_wait_for_its_broadcast() -> None:
    """No rank waits for it anywhere else: after the broadcast all are as late as it is."""
    (found,) = judge(job({0: 5.0})).verdicts
    assert (found.kind, found.ranks) == ("straggler", (0,))
    assert found.cost_ms_per_step == pytest.approx(5.0, rel=0.1)


def untimed(run: Run) -> Run:
    """The run of which is known how long calls took, and not when they began."""
    return replace(run, collectives=run.collectives | {"start_ns": np.full(RANKS * STEPS * 2, UNMEASURED)})


@pytest.mark.parametrize(("late", "count"), [({0: 5.0}, RANKS * STEPS), ({2: 1.0}, 0)], ids=["late root", "jitter"])
def test_broadcasts_count_where_start_times_are_unknown(late: dict[int, float], count: int) -> None:
    """How long all but one were inside, compared with their other calls, shows as much; not what differs in any job."""
    assert counted(untimed(job(late))) == count


def test_broadcasts_of_unlike_sizes_count() -> None:
    """A batch that one rank reads for all is rarely as large as the last."""
    run = job({0: 5.0})
    sizes = np.where(run.collectives["op"] == "broadcast", 1000 + run.collectives["seq"], 1 << 20)
    assert counted(replace(run, collectives={**run.collectives, "bytes": sizes})) == RANKS * STEPS


def test_communicators_number_their_broadcasts_apart() -> None:
    """Its own numbers show what is starting up in one."""
    other = job({}).collectives
    moved = {"comm": np.full_like(other["comm"], 9), "rank": other["rank"] + RANKS, "seq": other["seq"] + 1000}
    assert counted(with_rows(job({0: 5.0}), collectives=other | moved)) == 2 * RANKS * STEPS


@pytest.mark.parametrize("name", ["MPI_Scatterv", "ncclBroadcast", "MPI_Bcast", "broadcast", "_broadcast_oop"])
def test_operations_of_a_root(name: str) -> None:
    """By whatever name a source has for them."""
    assert is_rooted(name)


def test_of_a_root_that_is_late_now_and_then_it_is_told() -> None:
    """All broadcasts of a kind count, so that steps without waiting can be compared with."""
    bound = judge(job({0: 12.0}, every=6)).job.bound
    assert bound is not None
    assert bound.evidence.startswith("rank 0 pauses")


def test_a_late_receiver_is_named_and_its_root_is_not() -> None:
    """The root goes on at once and waits in the next reduction; it came to the broadcast before the last, too."""
    run = job({2: 5.0})
    assert not counted(run)
    (found,) = judge(run).verdicts
    assert (found.kind, found.ranks) == ("straggler", (2,))


def test_a_receiver_later_than_its_late_root_is_named() -> None:
    """Two leave the broadcast at once: no rank waits longer for its root than for that receiver afterwards."""
    run = job({0: 5.0, 2: 9.0})
    assert not counted(run)
    assert {rank for verdict in judge(run).verdicts for rank in verdict.ranks} == {2}


def test_jitter_counts_no_broadcast() -> None:
    """Some come a little after the root, and some before, in any job."""
    assert not counted(job({}))
    assert [verdict.kind for verdict in judge(job({})).verdicts] == ["balanced"]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("takes", [0.3, 1.0, 3.0])
def test_a_root_that_leaves_before_its_receivers_is_not_late_for_it(takes: float, *, known: bool) -> None:
    """What it gives is taken up on the way: it is as early for the reduction, and waits there."""
    run = job({}, takes=takes) if known else untimed(job({}, takes=takes))
    assert not counted(run)
    assert not any(verdict.ranks for verdict in judge(run).verdicts)


def test_a_late_root_of_large_broadcasts_is_named() -> None:
    """It is late by the most of what its receivers wait longer."""
    run = job({0: 5.0}, takes=1.0)
    assert counted(run)
    assert [verdict.ranks for verdict in judge(run).verdicts] == [(0,)]


def test_broadcasts_of_starting_up_do_not_count() -> None:
    """A root that loads a checkpoint is late for the first parameters, once."""
    assert not counted(job({0: 500.0}, every=STEPS))


def test_a_rank_without_some_broadcasts_hides_none_of_the_others() -> None:
    """The calls that all ranks were in show which rank is waited for."""
    run = job({0: 5.0})
    missed = (run.collectives["rank"] == 2) & (run.collectives["op"] == "broadcast") & (run.collectives["seq"] % 2 == 0)
    assert counted(only(run, collectives=~missed)) == RANKS * STEPS - missed.sum()


def test_the_root_of_one_of_several_groups_is_named() -> None:
    """Tensor-parallel groups of two get their batch from a rank of their own: the other of them waits there for it."""
    ready, parts = np.zeros(RANKS), []
    generator = np.random.default_rng(4)
    for step in range(STEPS):
        ready = ready + generator.normal(2.0, 0.02, RANKS) + np.array([0.0, 0.0, 5.0, 0.0])
        root = ready[[0, 0, 2, 2]]
        received = np.maximum(ready, root) + np.array([0.003, 0.01, 0.003, 0.01])
        parts.append(call("broadcast", step, ready, received, comm=[7, 7, 8, 8], size=1000))
        ready = received + generator.normal(10.0, 0.02, RANKS)
        met = np.maximum(ready, ready[[2, 3, 0, 1]]) + 0.2
        parts.append(call("all_reduce", step, ready, met, comm=[17, 18, 17, 18]))
        ready = met
    run = made(RANKS, collectives=parts)
    assert counted(run) == RANKS * STEPS
    (found,) = judge(run).verdicts
    assert (found.kind, found.ranks) == ("straggler", (2,))
    assert found.cost_ms_per_step == pytest.approx(5.0, rel=0.1)


def test_few_broadcasts_show_nothing() -> None:
    """What does not come once a step is not part of it."""
    run = job({0: 5.0})
    kept = (run.collectives["op"] != "broadcast") | (run.collectives["seq"] >= STEPS - 8)
    assert not counted(only(run, collectives=kept))


IN_ROUNDS = 3
ROUNDS = 20
ROUND = (("all_gather", 1), ("all_gather", 2), ("reduce_scatter", 2), ("reduce_scatter", 1))


def late(delays: tuple[float, ...], kinds: tuple[tuple[str, int], ...] = ROUND) -> Any:
    """[R] ms that ranks are late, in the typical step of one round for each of ``delays``: of rank 1, before it.
    Between two collectives all compute 2 ms."""
    rows, ready = [], np.zeros(IN_ROUNDS)
    for step in range(ROUNDS):
        seq = step * len(delays) * len(kinds)
        for more in delays:
            for place, (op, size) in enumerate(kinds):
                ready = ready + 2.0
                ready[1] += more if place == 0 else 0.0
                met = np.full(IN_ROUNDS, ready.max() + 0.1)
                rows.append(call(op, seq, ready, met, size=size * 1024))
                seq, ready = seq + 1, met
    run = made(IN_ROUNDS, collectives=rows)
    grid = matching.grid(run)
    assert grid is not None
    starts = np.arange(ROUNDS) * len(delays) * len(kinds)
    return np.median(delay_by_round(grid, matching.self_time(grid), starts), axis=1) / MS


@pytest.mark.parametrize("delays", [(50.0, 50.0), (50.0, 40.0, 30.0)])
def test_what_a_rank_is_late_by_in_each_round_counts(delays: tuple[float, ...]) -> None:
    """But for what a layer hides in each after the first."""
    assert late(delays)[1] == pytest.approx(sum(delays), abs=2.1 * (len(delays) - 1))


@pytest.mark.parametrize(
    ("delays", "kinds", "found"),
    [((1.5, 1.5), ROUND, 1.5), ((50.0,), ROUND, 50.0), ((50.0, 50.0), (("all_reduce", 1),) * 4, 50.0)],
    ids=["a layer hides all but the largest of slow code", "a single round", "buckets of one size are no rounds"],
)
def test_a_delay_that_shows_again_counts_once(delays: tuple[float, ...], kinds: Any, found: float) -> None:
    assert late(delays, kinds)[1] == pytest.approx(found, abs=0.1)
