"""Gathering to one rank and its broadcast, on made tables: who is late for it is named as for an all-reduce."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hindmost_judge.judge import judge
from hindmost_judge.model import COLLECTIVES, UNMEASURED, Run
from hindmost_judge.timeline.messages import with_gathers_joined

from tests.scenarios.loads import Load, make

SLOW = Load(ranks=4, compute=8.0, faults=[{"rank": 2, "compute": 4.0}])
#: What each rank does before the broadcast, mpi4py's way: 3 and 2 by 2, 2 and 1 by 0; "r" receives, "s" sends.
TREE = {0: ["r1", "r2"], 1: ["s0"], 2: ["r3", "s0"], 3: ["s2"]}
#: The root has not heard of rank 1 when it broadcasts.
PARTLY = {0: ["r2"], 1: ["s3"], 2: ["s0"], 3: ["r1"]}
REDUCED = {rank: ["g0"] for rank in range(4)}
OPERATIONS = {"r": "recv", "s": "send", "g": "reduce"}


def instead(run: Run, calls: dict[int, list[str]], root: int = 0, between: float = 0.0) -> Run:
    """The run with these calls and a broadcast for each of its all-reduces.

    ``between`` of a rank's self time is after the first of them.
    """
    met = run.collectives
    steps = int(met["seq"].max()) + 1
    came = met["start_ns"].reshape(4, steps)
    left = (met["start_ns"] + met["duration_ns"]).reshape(4, steps)
    parts: list[dict[str, Any]] = []
    for rank, words in calls.items():
        mine = {name: column.reshape(4, steps)[rank] for name, column in met.items()}
        own, at = mine["self_ns"], came[rank] - (between * mine["self_ns"]).astype(np.int64)
        for number, word in enumerate(words):
            peer = int(word[1:])
            last = np.maximum(
                at, came.max(axis=0) if word[0] == "g" and rank == 0 else came[peer] if word[0] == "r" else 0
            )
            before = own - (between * own).astype(np.int64) if number == 0 else np.full(steps, 300)
            measured = {"op": np.full(steps, OPERATIONS[word[0]]), "peer": np.full(steps, peer), "seq": np.zeros(steps)}
            if word[0] == "g":
                measured |= {"seq": 2 * np.arange(steps)}
            else:
                measured |= {"cpu_ns": np.full(steps, UNMEASURED), "runqueue_ns": np.full(steps, UNMEASURED)}
            parts.append(mine | {"start_ns": at, "duration_ns": last - at + 1_000, "self_ns": before} | measured)
            at = last + 1_000 + 300
        at = np.maximum(at, came[rank])
        rest = {"self_ns": np.full(steps, 300), "cpu_ns": np.full(steps, UNMEASURED)} if words[0][0] == "g" else {}
        spread = {"op": np.full(steps, "broadcast"), "peer": np.full(steps, root), "seq": 2 * np.arange(steps) + 1}
        parts.append(mine | spread | rest | {"start_ns": at, "duration_ns": np.maximum(left[rank] - at, 500)})
    return replace(run, collectives={name: np.concatenate([part[name] for part in parts]) for name in COLLECTIVES})


def named(run: Run) -> list[tuple[str, tuple[int, ...], str | None]]:
    return [(verdict.kind, verdict.ranks, verdict.cause) for verdict in judge(run).verdicts]


@pytest.mark.parametrize("calls", [TREE, REDUCED], ids=["messages", "reduce"])
def test_who_is_late_for_a_gathering_is_named(calls: dict[int, list[str]]) -> None:
    """Sent to one rank and broadcast by it, results are waited for as those of an all-reduce: same cause and cost."""
    run = make(SLOW)
    assert named(run) == [("straggler", (2,), "compute")]
    report = judge(instead(run, calls))
    assert [(verdict.kind, verdict.ranks, verdict.cause) for verdict in report.verdicts] == named(run)
    assert report.verdicts[0].cost_ms_per_step == pytest.approx(judge(run).verdicts[0].cost_ms_per_step, rel=0.05)
    assert report.job.steps == judge(run).job.steps


@pytest.mark.parametrize("calls", [TREE, REDUCED], ids=["messages", "reduce"])
def test_an_even_job_that_gathers_is_balanced(calls: dict[int, list[str]]) -> None:
    """No rank is named where none is late."""
    assert named(instead(make(Load()), calls))[0][:2] == ("balanced", ())


def test_a_broadcast_whose_root_has_not_heard_of_all_is_no_meeting() -> None:
    """Its members may leave it before the last has come."""
    run = instead(make(SLOW), PARTLY)
    assert with_gathers_joined(run) is run


def test_stages_that_compute_in_turn_are_left() -> None:
    """Each receives, computes and sends: the late rank did not wait for what the last one broadcasts."""
    chain = {0: ["s1"], 1: ["r0", "s2"], 2: ["r1", "s3"], 3: ["r2"]}
    run = instead(make(SLOW), chain, root=3, between=0.9)
    assert with_gathers_joined(run) is run
    passed_on = instead(make(SLOW), chain, root=3)
    assert (with_gathers_joined(passed_on).collectives["op"] == "all_reduce").all()
