"""What a repair saves in a pipeline, where idle time between stages takes up a part of what a rank is late."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.recordings.tables import concatenate, select
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import METRICS, STEPS, Run, empty
from hindmost_judge.timeline.messages import COLLECTIVE, RECEIVE, SEND, Schedule
from hindmost_judge.whatif import pipeline_replay

from tests.runs import only

PIPELINE = Scenario(seed=5, ranks=16, layout="pp_dp", pipeline=4, microbatches=4)
MS = 1e6


def test_ranks_that_do_other_things_each_step_are_judged_without_a_replay() -> None:
    """Sends and receives that come in no order are no pipeline's."""
    run = simulate(replace(PIPELINE, faults=(Fault("compute", (6,), 0.15),))).run
    kept = (run.collectives["peer"] < 0) | (np.random.default_rng(3).random(len(run.collectives["peer"])) < 0.7)
    verdicts = judge(only(run, collectives=kept)).verdicts
    assert all(verdict.kind in ("straggler", "balanced") and set(verdict.ranks) <= {6} for verdict in verdicts)


def test_a_pipeline_with_unmarked_steps_is_judged() -> None:
    """An MPI job has calls and no steps."""
    run = simulate(replace(PIPELINE, faults=(Fault("compute", (6,), 0.15),))).run
    calls = run.collectives | {"flags": np.zeros_like(run.collectives["flags"])}
    (verdict,) = judge(unmarked(replace(run, collectives=calls))).verdicts
    assert verdict.ranks == (6,)


def _in_buckets(run: Run) -> Run:
    """The run with three all-reduces on end in each data-parallel group, with no other and no marks of steps."""
    calls = run.collectives
    reduced = np.flatnonzero((calls["op"] == "all_reduce") & (calls["bytes"] == calls["bytes"].max()))
    parts, part = [select(calls, calls["peer"] >= 0)], select(calls, reduced)
    took = part["duration_ns"]
    for bucket, (after, left) in enumerate(
        [(0 * took, took - 205_000), (took - 200_000, 95_000), (took - 100_000, 95_000)]
    ):
        moved = {"seq": 3 * part["seq"] + bucket, "start_ns": part["start_ns"] + after, "duration_ns": 0 * took + left}
        parts.append(part | moved)
    joined = concatenate("collectives", parts)
    return unmarked(replace(run, collectives=joined | {"step": np.full_like(joined["step"], -1)}))


def unmarked(run: Run) -> Run:
    return replace(run, steps=empty(STEPS), metrics=empty(METRICS))


def test_gradients_in_buckets_are_one_step_of_an_unmarked_pipeline() -> None:
    """They follow the computing of all micro-batches: taken for a step each, most steps had no work in them."""
    fault = Fault("compute", (2,), 0.2)
    simulated = simulate(Scenario(seed=5, ranks=4, layout="pp_dp", pipeline=2, microbatches=4, faults=(fault,)))
    report = judge(_in_buckets(simulated.run))
    saved = (simulated.truth.total_ns - simulated.truth.repaired_ns) / 100 / MS
    assert report.job.steps == pytest.approx(100, abs=2)
    assert [verdict.ranks for verdict in report.verdicts] == [(2,)]
    assert report.verdicts[0].cost_ms_per_step == pytest.approx(saved, rel=0.1)


def _in_one_kernel(run: Run) -> Run:
    """The run as NCCL tells it where sends and receives of a group are one kernel: both end when the send does."""
    calls = run.collectives
    which, of_sends = (np.flatnonzero(calls["op"] == op) for op in ("recv", "send"))
    sent = {(calls["rank"][at], calls["start_ns"][at]): calls["duration_ns"][at] for at in of_sends}
    took = calls["duration_ns"].copy()
    for at in which:
        took[at] = sent.get((calls["rank"][at], calls["start_ns"][at]), took[at])
    assert (took != calls["duration_ns"]).any()
    return replace(run, collectives=calls | {"duration_ns": took})


@pytest.mark.parametrize(
    ("scenario", "rank"),
    [
        (PIPELINE, 6),
        (replace(PIPELINE, microbatches=8), 14),
        (replace(PIPELINE, ranks=4, pipeline=2, microbatches=8), 0),
    ],
)
def test_a_receive_in_one_kernel_with_a_send_ends_when_its_message_was_taken(scenario: Scenario, rank: int) -> None:
    """Its waiting is not what the rank works next: the slow rank is named, no neighbour, clocks apart or not."""
    simulated = simulate(replace(scenario, faults=(Fault("compute", (rank,), 0.15),)))
    truth = simulated.truth
    saved = (truth.total_ns - truth.repaired_ns) / len(truth.active[0]) / MS
    run = _in_one_kernel(simulated.run)
    calls = run.collectives
    drift = calls["rank"].astype(np.int64) * (10**14 + (calls["start_ns"] - calls["start_ns"].min()) // 200_000)
    apart = unmarked(replace(run, collectives=calls | {"start_ns": calls["start_ns"] + drift}))
    for reported in (run, apart):
        (verdict,) = judge(reported).verdicts
        assert verdict.ranks == (rank,)
        assert verdict.cost_ms_per_step == pytest.approx(saved, rel=0.15)


def test_equals_whose_messages_share_kernels_are_balanced() -> None:
    """No rank is slow, and none becomes so through NCCL's reporting."""
    (verdict,) = judge(_in_one_kernel(simulate(PIPELINE).run)).verdicts
    assert verdict.kind == "balanced"


def _two_stages(sender_works: float, receiver_works: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Schedule:
    """Rank 0 sends to rank 1 and leaves when that has received, 1 ms after both have come; then both meet."""
    steps = len(receiver_works)
    meet = np.maximum(sender_works, receiver_works)
    start = np.stack([np.full(steps, sender_works), meet + 1, receiver_works, meet + 1])
    end = np.stack([meet + 1, meet + 2, meet + 1, meet + 2])
    return Schedule(
        row=np.array([0, 0, 1, 1]),
        place=np.array([0, 1, 0, 1]),
        kind=np.array([SEND, COLLECTIVE, RECEIVE, COLLECTIVE]),
        with_whom=np.array([1, 0, 0, 0]),
        overlapping=np.zeros(4, bool),
        start=start * MS,
        end=end * MS,
        begin=np.zeros((4, steps)),
        steps=np.arange(steps),
    )


def test_a_sender_that_waits_for_its_receiver_does_not_work_meanwhile() -> None:
    """A blocking send is as long as its receiver is late: with that repaired, the sender is done sooner."""
    late = np.where(np.arange(20) % 2, 30.0, 5.0)
    built = pipeline_replay.build(_two_stages(10.0, late), np.array([0, 1]), 20)
    assert built is not None
    assert built.self_time(2)[0] == pytest.approx(10.0 * MS)
    assert built.self_time(2)[1] == pytest.approx(late * MS)
    less, _ = built.intervals(2)
    less[1, ::2] = -(late - 5.0) * MS  # the receiver's interval before the receive, of each step
    assert built.step_delay(less) == pytest.approx(np.where(late > 10, -20.0, 0.0) * MS)


def test_an_overlapped_send_that_waits_travels_no_longer_for_it() -> None:
    """Its receiver is 20 ms late in all steps: repaired it has the message at once, not 20 ms after it was sent."""
    steps = np.arange(20)
    schedule = _two_stages(10.0, np.full(20, 30.0))
    start, end = schedule.start.copy(), schedule.end.copy()
    start[1] = 11 * MS  # the sender goes on meanwhile, until both meet
    built = pipeline_replay.build(replace(schedule, start=start, end=end), np.array([0, 1]), len(steps))
    assert built is not None
    less, _ = built.intervals(2)
    less[1, ::2] = -20 * MS
    assert built.step_delay(less) == pytest.approx(np.full(20, -20.0) * MS, abs=MS)


def _sends_in_a_row(works: float, receives: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> Schedule:
    """Rank 0 works 20 ms before each of three overlapped sends; [3, S] is when rank 1 receives them."""
    steps = receives.shape[1]
    sent = np.repeat(works * np.arange(1, 4)[:, None], steps, axis=1)
    taken = np.maximum(sent, receives) + 1
    both = taken.max(axis=0, keepdims=True)
    start = np.concatenate([sent, both, receives, both])
    end = np.concatenate([taken, both + 1, taken, both + 1])
    return Schedule(
        row=np.repeat([0, 1], 4),
        place=np.tile(np.arange(4), 2),
        kind=np.array([SEND] * 3 + [COLLECTIVE] + [RECEIVE] * 3 + [COLLECTIVE]),
        with_whom=np.array([1, 1, 1, 0, 0, 0, 0, 0]),
        overlapping=np.zeros(8, bool),
        start=start * MS,
        end=end * MS,
        begin=np.zeros((8, steps)),
        steps=np.arange(steps),
    )


def test_a_sender_works_on_while_its_sends_wait_for_the_receiver() -> None:
    """A send that is over before the next begins was overlapped if the time after it is shorter by as much."""
    scatter = np.random.default_rng(3).uniform(0, 8, (3, 40))
    sends = _sends_in_a_row(20.0, np.array([[30.0], [48.0], [66.0]]) + scatter)
    built = pipeline_replay.build(sends, np.array([0, 1]), 40)
    assert built is not None
    work = built.work[np.flatnonzero(built.row == 0)[:3]]
    assert work == pytest.approx(np.full((3, 40), 20.0 * MS))


def test_operations_that_wait_in_a_circle_are_not_replayed() -> None:
    """A receive without a send, as in a torn recording, is no schedule."""
    schedule = _two_stages(10.0, np.full(20, 30.0))
    torn = replace(schedule, kind=np.array([RECEIVE, COLLECTIVE] * 2))
    assert pipeline_replay.build(torn, np.array([0, 1]), 20) is None
