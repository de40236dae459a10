"""Operations that differ at one place of a communicator, in a job that goes on."""

from dataclasses import replace

import numpy as np
from hindmost_judge.judge import judge
from hindmost_judge.model import Run

from tests.scenarios.loads import Load, make


def differing(ranks: list[int], first: int, source: str = "hindmost") -> Run:
    """A healthy job in which these ranks run a broadcast at every tenth number from ``first`` on."""
    run = make(Load(ranks=4, steps=80))
    c = run.collectives
    odd = np.isin(c["rank"], ranks) & (c["seq"] >= first) & ((c["seq"] - first) % 10 == 0)
    op = np.where(odd, "broadcast", c["op"])
    return replace(run, job=replace(run.job, source=source), collectives=c | {"op": op})


def kinds(run: Run) -> list[tuple[str, tuple[int, ...]]]:
    return [(verdict.kind, verdict.ranks) for verdict in judge(run).verdicts]


def test_a_rank_that_runs_another_operation_than_the_rest_is_named() -> None:
    """NCCL pairs up what it is given: there is no hang, and the results are wrong."""
    (verdict,) = judge(differing([1], 40)).verdicts
    assert (verdict.kind, verdict.ranks) == ("desync", (1,))
    assert "rank 1 ran broadcast as operation 40" in verdict.evidence[0]
    assert "at 4 places" in verdict.evidence[1]


def test_a_rank_that_was_slow_before_is_not_named_next_to_it() -> None:
    """Another rank was late in the first steps: that is over, and what the job computes is wrong."""
    run = make(Load(ranks=4, steps=80, faults=[{"rank": 2, "compute": 4.0, "until": 30}]))
    assert kinds(replace(run, collectives=run.collectives | {"op": differing([1], 40).collectives["op"]})) == [
        ("desync", (1,))
    ]
    assert kinds(run) == [("straggler", (2,))]


def test_where_it_is_unknown_who_is_wrong_no_rank_is_named() -> None:
    """Two against two; numbers that never agreed; a recorder whose numbers may count something else."""
    for run in (differing([1, 2], 40), differing([1], 5), differing([1], 40, source="elsewhere")):
        assert ("desync", (1,)) not in kinds(run)
        assert all(kind != "desync" for kind, _ in kinds(run))


def stopped(run: Run) -> Run:
    """The job as it is when its first two ranks have waited for 20 s in different numbers of that communicator."""
    c = run.collectives
    end = int((c["start_ns"] + c["duration_ns"]).max())
    last = {rank: int(c["seq"][c["rank"] == rank].max()) for rank in (0, 1)}
    held = {
        "rank": np.array([0, 1], np.int32),
        "kind": np.array(["collective"] * 2),
        "name": np.array(["all_reduce", "all_reduce"]),
        "comm": np.full(2, c["comm"][0], np.uint64),
        "seq": np.array([last[0] + 1, last[1] + 2], np.int64),
        "peer": np.full(2, -1, np.int32),
        "flags": np.zeros(2, np.int32),
        "start_ns": np.full(2, end, np.int64),
        "observed_ns": np.full(2, end + 20 * 10**9, np.int64),
    }
    return replace(run, in_flight={name: held[name] for name in run.in_flight})


def two_parted() -> Run:
    """Two ranks that stopped after rank 1 ran an extra broadcast."""
    run = differing([1], 40)
    two = np.isin(run.collectives["rank"], (0, 1))
    ranks = {name: column[:2] for name, column in run.ranks.items()}
    steps = {name: column[np.isin(run.steps["rank"], (0, 1))] for name, column in run.steps.items()}
    collectives = {name: column[two] for name, column in run.collectives.items()}
    job = replace(run.job, world_size=2, started_ns=1)
    return stopped(replace(run, job=job, ranks=ranks, steps=steps, collectives=collectives))


def test_of_two_ranks_that_parted_and_stopped_neither_is_named_but_what_each_ran_is() -> None:
    """All-reduces after an extra broadcast pair up until none are left: the stop's reason is where they parted."""
    verdict = judge(two_parted()).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("desync", (), (0, 1))
    assert any("rank 1 ran broadcast as operation 40, rank 0 all_reduce" in line for line in verdict.evidence)


def test_ranks_that_parted_have_waited_since_both_stopped() -> None:
    """Both wait for 20 s, from the same time on."""
    run = two_parted()
    verdict = judge(run).verdicts[0]
    assert (verdict.waited_s, verdict.since_time_s) == (40.0, run.in_flight["start_ns"][0] / 1e9)


def test_of_four_ranks_that_stopped_the_one_that_parted_is_named() -> None:
    """The last rank to wait says little about which rank took the wrong branch before."""
    verdict = judge(stopped(differing([1], 40))).verdicts[0]
    assert (verdict.kind, verdict.ranks) == ("desync", (1,))
