"""Recordings of real training on GPUs with known faults are judged as what they are. Some of them are in the
repository; those named ``observed`` are hindmost's own runs, of DDP on 4 H200s, of MPI and gloo on two shared cores: in
each a rank was once named or cleared falsely, or at a false cost, or the fault is the demo's. So it was in the slow
backward and in those whose hosts launch for all of each step."""

import warnings

import numpy as np
import pytest
from hindmost_collector.page.history import StepHistory
from hindmost_collector.recordings.load import load
from hindmost_judge.judge import judge

from tests.recordings import OURS, STUDY, here, judged, recorded, recording
from tests.runs import only, with_job

from .expected import RECORDINGS, not_explained, waits_of_no_rank
from .loads import without_first_steps


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_is_judged_as_what_it_is(name: str) -> None:
    """Kind, exactly the culprits, victims, cause, onset within three steps, cost within a fifth of the effect."""
    expected = RECORDINGS[name]
    verdict, *more = judged(recording(name)).verdicts
    assert verdict.kind in expected.kinds
    assert verdict.ranks == expected.ranks
    assert verdict.victims == expected.victims
    assert [rank for one in more for rank in one.ranks] == list(expected.also)
    if expected.cause is not None:
        assert verdict.cause == expected.cause
    if expected.since is not None:
        assert abs((verdict.since_step or 0) - expected.since) <= 3
    if expected.cost_ms is not None:
        assert verdict.cost_ms_per_step == pytest.approx(expected.cost_ms, rel=0.2)


_NAMES = {
    *RECORDINGS,
    "hostbound-live-clean",
    "inputbound-live-clean",
    *(one.name.split(".")[0] for one in OURS.iterdir()),
}
#: All that are here.
EVERY = sorted(path for name in _NAMES if (path := here(name)))


def test_the_verdict_explains_the_table() -> None:
    """A rank that is last in most collectives, with the others waiting 5 % of a step, is in a verdict or a sentence."""
    assert {path.name: found for path in EVERY if (found := not_explained(judged(path)))} == {}


def test_ranks_wait_for_others_that_the_table_shows() -> None:
    """What ranks wait for a late one is caused by one; elsewhere the caption says what else the column holds."""
    assert {path.name: found for path in EVERY if (found := waits_of_no_rank(judged(path)))} == {}


def test_lanes_add_up_to_the_step() -> None:
    """What was measured of a host and of a GPU is no more than 2 % longer than the step; drawn, it is the step. Where
    collectives have no start times, as NCCL's Inspector has none, steps are as long as hosts mark them: what GPUs do
    between two of these made 2.1 % in a recording that is not in this repository."""
    for path in OURS.iterdir():
        history = StepHistory()
        if (seen := judged(path).overview) is not None:
            history.add(seen)
        means = history.means()
        for lane in means.lanes().values() if means else ():
            known = ~np.isnan(lane.measured)
            assert known.any(), path
            assert lane.measured[known].max() <= 1.02, path
            assert sum(lane.parts.values())[known] == pytest.approx(1.0), path
            assert min(part[known].min() for part in lane.parts.values()) >= 0.0, path


def test_a_slow_stage_of_one_rank_is_reported_with_its_rank() -> None:
    """The last stage waits in its forward for the slow one's messages, longer than that computes, and is not named."""
    (verdict,) = judged(OURS / "pp4-slow-forward-rank2.tar.xz").verdicts
    assert "stage 2 of 4 (rank 2)" in verdict.evidence[0]


def test_stalls_are_not_reported_again_as_waiting_for_hosts() -> None:
    """Its GPU has no work while a rank waits for its input now and then: that is all there is to tell."""
    (verdict,) = judged(OURS / "fsdp-stalled-input-rank0.tar.xz").verdicts
    assert verdict.kind == "intermittent"


def test_a_sharded_job_that_hosts_pace_has_a_sentence_on_the_host_that_works_longer() -> None:
    """Nothing was injected. One host is slower in half of the steps, by no more than hosts differ by in a phase."""
    report = judged(recording("fsdp-host-bound"))
    (bound,) = report.verdicts
    assert bound.kind == "host_bound"
    assert bound.evidence[0].startswith("the GPU that the others wait for (of rank 3) is idle ")
    assert any(note.startswith("rank 3 is last in 53 % of collectives, partly because") for note in report.notes)


def test_gpus_that_wait_for_launches_are_reported_where_none_is_last_in_most_steps() -> None:
    """It is not always the same."""
    (verdict,) = judged(recording("pp4-host-bound")).verdicts
    assert verdict.evidence[0].startswith("the GPU that the others wait for (not always the same) is idle ")


def test_stalls_at_one_pace_are_reported_with_it() -> None:
    """Rank 1 was stopped for 250 ms every 2 s, on a machine whose other work holds up both ranks by up to 150 ms."""
    (verdict,) = judged(OURS / "gloo-observed-stopped-now-and-then-rank1.tar.xz").verdicts
    assert verdict.evidence[0] == "rank 1 stalls in 13 of 133 steps, 246 ms each, every 2 s"


def test_a_hang_is_reported_with_the_culprit_s_line() -> None:
    """The stack dump of the rank that did not come is part of the evidence."""
    report = judged(OURS / "ddp-hang-rank1.tar.xz")
    assert any("corpus.py:49, in data()" in line for line in report.verdicts[0].evidence)


def test_a_rank_that_raised_is_reported_with_its_exception() -> None:
    """The others wait in a pickled all-reduce, and it in MPI_Finalize, for ever."""
    evidence = judged(OURS / "mpi-observed-raised-rank2.tar.xz").verdicts[0].evidence
    assert evidence[0] == "rank 2 raised ValueError at lower.py:14"


def test_ranks_without_launch_times_are_judged_without_a_warning() -> None:
    """What numpy says of slices in which nothing is known is no text for a user's terminal."""
    recording = load(OURS / "inspector-ddp-slow-rank0.tar.xz")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert judge(recording).verdicts[0].ranks == (0,)


def test_a_rank_that_crashed_is_reported_as_the_first_that_died() -> None:
    """Its launcher ended the others 0.3 s later, and the agent saw all of them gone at once."""
    job = judged(OURS / "mpi-observed-died-rank1.tar.xz").to_dict()["job"]
    assert job["ended"].endswith("rank 1 on vm died first after step 59 (SIGSEGV), 0.3 s before ranks 0, 2 and 3")
    assert job["to_do"] == "read the last output of rank 1"


def test_a_launcher_that_ends_long_after_its_ranks_does_not_make_them_wait() -> None:
    """They waited for 0.3 s, as one of them had crashed: however long the launcher then takes, that is no hang."""
    run = recorded(OURS / "mpi-observed-died-rank1.tar.xz")
    assert run.job.ended_ns is not None
    assert [one.kind for one in judge(with_job(run, ended_ns=run.job.ended_ns + 10**10)).verdicts] == ["balanced"]


def test_a_queue_of_launches_is_no_difference_of_clocks() -> None:
    """Recorded from its tenth step on: rank 1's host is ahead of its GPU in all of it, and not only of its clock."""
    run = without_first_steps(recorded(OURS / "ddp-buffers-slow-input-rank0.tar.xz"), 0.1)
    (verdict,) = judge(run).verdicts
    assert (verdict.ranks, verdict.cause) == ((0,), "input")
    assert verdict.cost_ms_per_step == pytest.approx(25.9, rel=0.2)


@pytest.mark.parametrize("share", [0.1, 0.25])
def test_workers_that_one_rank_waits_for_in_turn_are_slow_in_every_batch(share: float) -> None:
    """Rank 1 waits in every second step, for one of its two workers; its peers never do. That is no stall."""
    run = without_first_steps(recorded(OURS / "ddp-observed-throttled-workers-rank1.tar.xz"), share)
    (verdict,) = judge(run).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (1,), "io")


def test_a_rank_that_ended_with_its_job_was_not_gone_before() -> None:
    """An interrupt's SIGTERM ended rank 2, in `time.sleep` of its script: the others did not wait for its end."""
    (verdict,) = judge(recorded(OURS / "mpi-observed-ring-asleep-rank2.tar.xz")).verdicts
    assert verdict.ranks == (2,)
    assert not any("gone" in one for one in verdict.evidence)


def test_a_rank_that_needs_more_cpu_time_before_a_stop_is_reported_with_it() -> None:
    """Four ranks poll on two CPUs: of what rank 1 computes longer there is no delay to take apart."""
    first, *_ = judged(OURS / "mpi-observed-parted-on-full-cores-rank1.tar.xz").verdicts
    assert (first.kind, first.ranks) == ("desync", (1,))


def test_a_rank_that_was_killed_is_reported_before_the_one_that_lost_its_peer() -> None:
    """That one raised 15 ms before the agent saw the process gone, and left 0.3 s later."""
    ended = judged(OURS / "gloo-observed-killed-rank1.tar.xz").to_dict()["job"]["ended"]
    assert "rank 1 on vm died first after step 53 (SIGKILL)" in ended


def test_a_host_that_leaves_its_gpu_without_work_does_not_compute_longer() -> None:
    """A job without a fault whose hosts launched late: slow and stalling ranks are reported for their CPU's work."""
    verdicts = judged(OURS / "ddp-observed-late-hosts.tar.xz").verdicts
    (named,) = (verdict for verdict in verdicts if verdict.kind == "straggler")
    assert named.evidence[0].startswith("CPU ")
    assert named.cost_ratio is not None
    assert named.cost_ratio < 0.03  # of hosts that all launch late it is a little later than the others
    for late in (verdict for verdict in verdicts if verdict.ranks):
        assert "another core or node" in late.advice[0]
        assert "nvidia-smi" not in late.advice[0]


@pytest.mark.parametrize(
    ("name", "where", "cost_ms"),
    [("hostbound-live-host10-rank1", "CPU forward", 9.4), ("inputbound-live-host20-rank1", "forward", 17.0)],
)
def test_a_slow_host_is_reported_once_with_its_phase_and_what_it_costs(name: str, where: str, cost_ms: float) -> None:
    """Two H200s whose hosts set the pace; rank 1's spins in its forward from the start."""
    (named,) = (verdict for verdict in judged(recording(name)).verdicts if verdict.ranks)
    assert (named.kind, named.ranks, named.cause, named.since_step) == ("straggler", (1,), "compute", 0)
    assert where in named.evidence[0]
    assert named.cost_ms_per_step == pytest.approx(cost_ms, rel=0.2)


def test_a_slow_input_is_reported_although_hosts_drift_by_half_as_much() -> None:
    """Two H200s: rank 0 fetches 9.8 ms longer from step 150 on. Rank 1 became 6 ms faster 40 steps before."""
    (named,) = (verdict for verdict in judged(OURS / "ddp-observed-slow-input-rank0.tar.xz").verdicts if verdict.ranks)
    assert (named.kind, named.ranks, named.cause) == ("straggler", (0,), "input")
    assert (named.since_step, named.cost_ms_per_step) == (pytest.approx(150, abs=3), pytest.approx(8.9, rel=0.2))


def test_a_peer_that_waits_for_its_gpu_proves_no_delay() -> None:
    """Two H200s, nothing put in. Rank 0 is ahead, and waits in its backward for as long as it comes early."""
    report = judged(OURS / "ddp-observed-hosts-ahead.tar.xz")
    assert not [verdict for verdict in report.verdicts if verdict.ranks]
    assert any("partly because its peers' CPUs launch kernels earlier" in note for note in report.notes)


@pytest.mark.parametrize(("name", "most_ms"), [("hostbound-live-clean", 0.0), ("inputbound-live-clean", 6.5)])
def test_of_an_undisturbed_job_no_more_is_reported_than_what_its_hosts_differ_by(name: str, most_ms: float) -> None:
    """A rank whose peer is a step ahead comes a step late, and costs what its own work is longer by."""
    named = [verdict for verdict in judged(recording(name)).verdicts if verdict.ranks]
    assert sum(verdict.cost_ms_per_step or 0.0 for verdict in named) <= most_ms
    assert {verdict.cause for verdict in named} <= {"input"}


@pytest.mark.parametrize("steps", [55, 168])
def test_so_it_is_reported_while_few_steps_are_timed_on_gpus(steps: int) -> None:
    """As that job began three of the steps that were timed were late ones, of a GPU that its host kept waiting."""
    run = recorded(OURS / "ddp-observed-late-hosts.tar.xz")
    now = run.steps["start_ns"][run.steps["step"] == steps].min()
    steps, calls = (table["start_ns"] + table["duration_ns"] <= now for table in (run.steps, run.collectives))
    seen = only(run, steps=steps, collectives=calls, metrics=run.metrics["time_ns"] <= now)
    named = [verdict for verdict in judge(seen).verdicts if verdict.ranks]
    assert {verdict.cause for verdict in named} <= {"unknown", "compute"}
    assert all(
        verdict.kind != "straggler" or verdict.cause == "unknown" or "CPU" in verdict.evidence[0] for verdict in named
    )


def test_a_clock_that_explains_a_fifth_of_a_slow_backward_is_not_its_cause() -> None:
    """In the first 40 steps the slow rank's clock was 1.9 % under its peers': half a millisecond of three."""
    run = load(OURS / "ddp-slow-backward-rank2.tar.xz")
    end = run.steps["start_ns"][run.steps["step"] == 40].min()
    times = {"steps": "start_ns", "collectives": "enqueue_ns", "metrics": "time_ns"}
    first = only(run, **{name: run.tables()[name][time] < end for name, time in times.items()})
    (verdict,) = judge(first).verdicts
    assert (verdict.ranks, verdict.cause) == ((2,), "compute")


def test_a_backward_that_is_slower_in_kernels_of_its_own_costs_what_it_takes_before_the_others_wait() -> None:
    """Its host waits for other kernels than its peers', and GPUs that wait compute slower: 1.6 ms show of 2.1."""
    (verdict,) = judged(OURS / "ddp-slow-backward-rank0.tar.xz").verdicts
    assert verdict.cost_ms_per_step is not None
    assert 1.4 < verdict.cost_ms_per_step < 2.4


def test_a_rank_that_needs_far_more_cpu_time_is_not_cleared() -> None:
    """Of two threads of one core healthy ranks differ by 30 %: one that needs 41 % more cannot be named surely."""
    (verdict,) = judged(OURS / "mpi-observed-unsure-rank2.tar.xz").verdicts
    assert (verdict.kind, verdict.confidence) == ("balanced", 0.5)
    assert "Rank 2" in verdict.evidence[0]


def test_ranks_that_are_slow_in_turn_are_each_named_for_turns_of_their_own() -> None:
    """Ranks 2 and 3 compute longer for 80 steps each, from step 181 on; it ends soon after the sixth turn began."""
    verdicts = judged(OURS / "ddp-observed-slow-in-turn.tar.xz").verdicts
    assert {verdict.ranks for verdict in verdicts} == {(2,), (3,)}
    for one in verdicts:
        first = (one.since_step or 0) - 181 - 80 * (one.ranks[0] - 2)
        assert one.cause == "compute"
        assert min(first % 160, -first % 160) <= 3
        assert one.until_step is not None or (one.since_step or 0) >= 498
        assert one.until_step is None or abs(one.until_step - (one.since_step or 0) - 80) <= 3


def test_all_ranks_alike_removes_more_than_one_fault() -> None:
    """Delays that no verdict names are in the replay of like ranks, and in no cost."""
    report = judged(recording("ddp-observed-slow-compute-rank1"))
    (verdict,), step, ideal = report.verdicts, report.what_if.step_ms, report.what_if.ideal_step_ms
    assert (step, ideal) == (pytest.approx(21.0, abs=0.1), pytest.approx(20.1, abs=0.1))
    assert ideal < step - verdict.cost_ms_per_step


def test_rank_numbers_are_those_of_the_job_s_own_records() -> None:
    """The steps of a rank and the operations of its process go together: both show the slow one."""
    run = load(OURS / "ddp-slow-compute-rank1.tar.xz")
    forward = {rank: run.steps["gpu_forward_ns"][run.steps["rank"] == rank][20:].mean() for rank in range(4)}
    waited = {rank: run.collectives["duration_ns"][run.collectives["rank"] == rank][500:].mean() for rank in range(4)}
    assert max(forward, key=lambda rank: forward[rank]) == 1
    assert min(waited, key=lambda rank: waited[rank]) == 1


@pytest.mark.parametrize(
    ("name", "kind", "ranks", "slowdown"), [("AR", "straggler", (0,), 1.9730), ("ST", "uneven_workload", (), 1.1787)]
)
def test_a_graph_of_operations_is_replayed(name: str, kind: str, ranks: tuple[int, ...], slowdown: float) -> None:
    """The slowed worker is named, for the heavy stage none is, and the slowdown is that published within 0.1 %."""
    path = STUDY / f"trace-{name}.parquet"
    if not path.exists():
        pytest.skip(f"needs recordings outside this repository: {path.name} in HINDMOST_STRAGGLER_ANALYSIS ({STUDY})")
    report = judge(load(path))
    assert [(verdict.kind, verdict.ranks) for verdict in report.verdicts] == [(kind, ranks)]
    assert report.what_if.slowdown == pytest.approx(slowdown, rel=0.001)
    assert f"S = {report.what_if.slowdown:.3f}" in report.notes[0]
