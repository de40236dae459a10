"""Ranks that wait for a CPU: by a quota, by peers, by other programs."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_judge.causes import cpu_sharing, cpu_wait
from hindmost_judge.causes.cpu_wait import cpus, delay_in_collectives, oversubscribed, share_by_peers
from hindmost_judge.causes.loading import shares
from hindmost_judge.judge import judge
from hindmost_judge.model import UNMEASURED, Run
from hindmost_judge.types import Floats
from hindmost_judge.verdict import advice
from hindmost_judge.whatif.savings import StepTimeChange

from tests.runs import blocks_of, only
from tests.scenarios.loads import Load, counters, held_up, make, metrics, own_times

STEPS, STOPPED_MS = 240, 70.0


def throttled(counted: bool) -> Run:
    """Rank 1 is stopped for 70 ms in every twelfth step before the all-reduce, and in every eighth inside of it. What
    an agent ``counted`` once a second is that it waits for a CPU meanwhile."""
    run = make(Load(ranks=3, steps=STEPS, faults=[{"rank": 1, "blocked": STOPPED_MS, "every": 12}]))
    run = held_up(run, STOPPED_MS * (np.arange(STEPS) % 8 == 5))
    seconds = int(run.collectives["start_ns"].max()) / 1e9
    queued = STOPPED_MS / 1e3 * (STEPS / 12 + STEPS / 8) / seconds
    samples = counters("runqueue_seconds", {0: 0.0, 1: queued, 2: 0.0}, range(int(seconds) + 1))
    return replace(run, metrics=metrics(samples)) if counted else run


def test_transfers_that_a_rank_without_cpus_holds_up_are_part_of_its_cost() -> None:
    """The kernel charged none of it to the gaps between collectives; the whole process is known to have waited."""
    (verdict,) = judge(throttled(True)).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("intermittent", (1,), "cpu_contention")
    assert verdict.cost_ms_per_step == pytest.approx(STOPPED_MS * (1 / 12 + 1 / 8), rel=0.1)
    assert any("while it waits for a CPU" in line for line in verdict.evidence)


def test_transfers_belong_to_no_rank_where_none_is_known_to_wait() -> None:
    """Then a long transfer may be the network's, and the rank costs its delay."""
    (verdict,) = judge(throttled(False)).verdicts
    assert (verdict.ranks, verdict.cause) == ((1,), "unknown")
    assert verdict.cost_ms_per_step == pytest.approx(STOPPED_MS / 12, rel=0.1)


@pytest.mark.parametrize(("outside", "usual"), [(20, 1.0), (12, 2.0)])
def test_what_transfers_usually_take_is_known_of_twenty_steps_without_the_fault(outside: int, usual: float) -> None:
    """Of fewer, a start or an end perhaps, it is not: then what most steps with the fault show is."""
    transfer = np.append(np.full(100 - outside, 2.0), np.full(outside, 1.0))
    assert cpu_wait.usual_transfer(transfer, np.arange(100 - outside)) == usual


@pytest.mark.parametrize(
    ("saved", "waited", "others", "cost"),
    [
        (60.0, 80.0, 0.0, 50.0),  # waiting ranks cool down: a repair saves no more than what the onset took
        (48.0, 80.0, 0.0, 48.0),  # alike within the error
        (20.0, 80.0, 0.0, 50.0),  # the others wait for it wherever the replay does not look
        (20.0, 30.0, 0.0, 30.0),  # and no longer than that
        (20.0, 80.0, 25.0, 25.0),  # all ranks' work grew
        (20.0, 80.0, None, 20.0),  # whether it did is unknown
    ],
)
def test_an_onset_took_what_a_repair_saves(saved: float, waited: float, others: float | None, cost: float) -> None:
    """As far as the job waited for the rank, and no other rank's work grew meanwhile."""
    assert StepTimeChange(longer=50.0, noise=2.0, steps=np.arange(9)).cost(saved, waited, others) == cost


#: Gaps between collectives of a step, and in how many of them one is a pause by a quota, of so many ms.
GAPS, EVERY, PAUSE_MS = 5, 7, 40.0


def paused_in_turn(unmeasured: int | None = None) -> Run:
    """Rank 1 is out of its quota in every seventh gap of steps of five, so in another place of each step; some step has
    none. The gap of this place is ``unmeasured`` in each step."""
    fault = {"rank": 1, "runqueue": PAUSE_MS, "every": EVERY}
    run = make(Load(ranks=2, steps=GAPS * STEPS, compute=4.0, faults=[fault]))
    calls = run.collectives
    known = calls["seq"] % GAPS != unmeasured
    gaps = {name: np.where(known, calls[name], UNMEASURED) for name in ("cpu_ns", "runqueue_ns")}
    return replace(run, collectives=calls | gaps | {"step": calls["seq"] // GAPS})


def test_waits_for_a_cpu_count_wherever_in_a_step_they_are() -> None:
    """No place of the step has one in most steps; the kernel counted them, and without them steps are that shorter."""
    (verdict,) = judge(paused_in_turn()).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (1,), "cpu_contention")
    assert verdict.cost_ms_per_step == pytest.approx(PAUSE_MS * GAPS / EVERY, rel=0.1)


@pytest.mark.parametrize(("ranks", "mean"), [(2, 12.0), (4, 6.0), (4, 12.0)])
def test_waits_by_chance_that_all_ranks_have_are_no_part_of_a_cost(ranks: int, mean: float) -> None:
    """Each rank waits for a CPU in half of its steps, and rank 1 for 8 ms more in each: those are what a fix saves."""
    rng = np.random.default_rng(1)
    chance = rng.exponential(mean, (ranks, STEPS)) * (rng.random((ranks, STEPS)) < 0.5)
    faults = [
        {"rank": rank, "runqueue": wait, "from": step, "until": step + 1}
        for (rank, step), wait in np.ndenumerate(chance)
    ]
    late = {"rank": 1, "runqueue": 8.0}
    own, _ = own_times(Load(ranks=ranks, steps=STEPS, compute=20.0, faults=faults))
    without = own.max(axis=0).mean()
    own[1] += 8.0
    (verdict,) = judge(make(Load(ranks=ranks, steps=STEPS, compute=20.0, faults=[*faults, late]))).verdicts
    assert (verdict.ranks, verdict.cause) == ((1,), "cpu_contention")
    assert verdict.cost_ms_per_step == pytest.approx(own.max(axis=0).mean() - without, rel=0.05)


def test_a_step_of_which_most_was_measured_shows_what_its_rank_waits_for() -> None:
    """A single gap whose CPU time was not read leaves no step unknown."""
    (verdict,) = judge(paused_in_turn(unmeasured=2)).verdicts
    assert (verdict.ranks, verdict.cause) == ((1,), "cpu_contention")


@pytest.mark.parametrize(
    ("other", "stopped", "sampled", "raises"),
    [
        (None, 0.5, 2, True),
        (2.0, 0.5, 2, True),
        (0.5, 0.5, 2, False),
        (2.0, 0.1, 2, False),  # a limit that explains little
        (2.0, 0.5, 1, False),  # the other rank's limit is not known
    ],
)
def test_the_advice_is_to_raise_a_lower_quota(other: float | None, stopped: float, sampled: int, raises: bool) -> None:
    """The kernel says which control group each rank is in, how many CPUs that may use, and how long it was stopped."""
    run = paused_in_turn()
    limits = {"/slow": 0.5} | ({"/fast": other} if other else {})
    found = [
        ("hindmost_node_cgroup_cpu_limit_cores", f'{{"cgroup": "{group}"}}', 1, at) for group, at in limits.items()
    ]
    name = "hindmost_node_cgroup_cpu_throttled_seconds_total"
    found += [(name, '{"cgroup": "/slow"}', second, stopped * second) for second in (0, 2)]
    for rank, group in ((1, "/slow"), (0, "/fast"))[:sampled]:
        labels = f'{{"job": "made", "rank": "{rank}", "cgroup": "{group}"}}'
        found.append(("hindmost_process_cpu_cgroup_info", labels, 1, 1.0))
    (verdict,) = judge(replace(run, metrics=metrics(found))).verdicts
    assert verdict.cause == "cpu_contention"
    wanted = "raise the CPU quota of rank 1 on node0: its control group /slow may use 0.5 CPUs, others more ("
    assert verdict.advice[0].startswith(wanted) == (verdict.partial == "quota") == raises
    assert (verdict.evidence[0] == "its control group was stopped 50 % of the time by its CPU quota") == raises


@pytest.mark.parametrize(
    ("file", "lifts"),
    [
        ("cpu.max", "(`echo max > /sys/fs/cgroup/slow/cpu.max`, or what sets it: `resources"),
        ("cpu.cfs_quota_us", "(`echo -1 > /sys/fs/cgroup/cpu/slow/cpu.cfs_quota_us`, or what sets it: `resources"),
        ("", "others more (`resources"),  # in a container the path is the host's
    ],
)
def test_a_quota_is_raised_in_the_file_that_the_agent_read(file: str, lifts: str) -> None:
    quota = cpu_sharing.QuotaGroup("node0", "/slow", 0.5, (1,), 0.5, file)
    where = replace(advice.place(paused_in_turn(), (1,)), quota=quota)
    assert lifts in advice.of_cause("cpu_contention", where)


def test_a_rank_without_calls_in_a_step_shows_no_cpu_time() -> None:
    """Nothing was measured of it there, which is not none."""
    run = make(Load(ranks=4, steps=60, compute=20.0))
    calls = run.collectives
    lost = (calls["rank"] == 1) & (calls["seq"] >= 30) & (calls["seq"] < 34)
    found = blocks_of(only(run, collectives=~lost))
    shown = np.isnan(found.parts["self_cpu"][1])
    assert found.steps[shown].tolist() == [30, 31, 32, 33]


def test_cpu_time_that_was_not_read_is_not_guessed() -> None:
    """What a rank computed in its other gaps is the least that it computed in the step."""
    whole, part = (blocks_of(paused_in_turn(gap)) for gap in (None, 2))
    known = ~np.isnan(part.parts["self_cpu"])
    assert known.any()
    assert (part.parts["self_cpu"] <= whole.parts["self_cpu"])[known].all()
    assert (part.parts["self_runqueue"] <= whole.parts["self_runqueue"])[known].all()


WHOLE = 40


def whole_steps(ranks: int) -> Any:
    """Blocks without measurements between collectives, one step of one rank unknown."""
    random = np.random.default_rng(7)
    cpu, queue, wait, transfer = (random.uniform(1e6, 9e6, (ranks, WHOLE)) for _ in range(4))
    cpu[1, 3] = np.nan
    parts = {"cpu": cpu, "runqueue": queue}
    took = cpu + queue + wait / 2 + random.uniform(0, 4e6, (ranks, WHOLE))
    return SimpleNamespace(
        ranks=np.arange(ranks), steps=np.arange(WHOLE), parts=parts, took=took, wait=wait, transfer=transfer
    )


def test_of_all_ranks_it_is_what_it_is_of_each() -> None:
    """Each rank is compared with the others' usual values, without its own."""
    blocks = whole_steps(6)
    each = [cpu_wait.off_cpu_in_step(blocks, row, blocks.steps) for row in range(6)]
    np.testing.assert_array_equal(cpu_wait.off_cpu_in_whole_steps(blocks), np.stack(each))


def test_it_is_unknown_for_all_ranks_where_the_queue_was_not_measured() -> None:
    """No rank was seen off the CPU, and none on it."""
    blocks = whole_steps(6)
    del blocks.parts["runqueue"]
    assert np.isnan(cpu_wait.off_cpu_in_whole_steps(blocks)).all()


def test_twice_the_ranks_are_twice_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ranks share is looked through once, and not for each of them again."""
    seen: list[int] = []
    original = cpu_wait.median

    def counting(block: Floats, axis: int | None = None) -> Floats:
        seen.append(block.size)
        return original(block, axis)

    monkeypatch.setattr(cpu_wait, "median", counting)
    work = []
    for ranks in (64, 128):
        seen.clear()
        cpu_wait.off_cpu_in_whole_steps(whole_steps(ranks))
        work.append(sum(seen))
    assert work[1] == 2 * work[0]


def on(*allowed: str) -> dict[int, frozenset[int]]:
    """Ranks 0, 1, …, each bound to the CPUs of a list."""
    return {rank: cpus(listed) for rank, listed in enumerate(allowed)}


@pytest.mark.parametrize(
    ("allowed", "found"),
    [
        (("0", "0"), [((0, 1), cpus("0"))]),
        (("0-7", "0-7"), []),
        (("0", "1", "2-3", "2-3"), []),
        (("0", "0", "1", "1"), [((0, 1), cpus("0")), ((2, 3), cpus("1"))]),
        (("0-1", "0-1", "0", "4-7"), [((0, 1, 2), cpus("0-1"))]),
        (("0", "0-1", "0-1", "0"), [((0, 1, 2, 3), cpus("0-1"))]),
        (("", "0", "0"), [((1, 2), cpus("0"))]),
    ],
)
def test_ranks_with_fewer_cpus_are_oversubscribed(allowed: tuple[str, ...], found: list[Any]) -> None:
    """Hall's condition; the largest set holds the smaller ones, and a rank of unknown CPUs is in none."""
    assert oversubscribed(on(*allowed)) == found


def test_a_kernel_s_list_of_cpus_is_read_as_it_is_written() -> None:
    """Ranges and single CPUs; what is no list names none."""
    assert cpus("0-2,8,10-11") == {0, 1, 2, 8, 10, 11}
    assert cpus("") == cpus("all") == frozenset()


def test_ranks_queue_behind_each_other_for_no_longer_than_the_others_ran() -> None:
    """Of 0.7 s a second in the queue, a peer that ran for 0.3 s made no more than that."""
    queued, used = np.array([0.7, 0.2]), np.array([0.3, 0.3])
    assert share_by_peers(queued, used, 1) == pytest.approx([0.3 / 0.7, 1.0])
    assert share_by_peers(queued, np.full(2, np.nan), 1).tolist() == [1.0, 1.0]


def test_a_collective_is_held_up_by_the_rank_that_queues_least_in_it() -> None:
    """Queueing while later ranks are waited for costs nothing, and nothing costs more than the collective took."""
    queued, between, waited, transfer = (np.array(ns, float) for ns in ([20, 30], [5, 5], [0, 18], [12, 12]))
    assert delay_in_collectives(queued, between, waited, transfer) == 7
    assert delay_in_collectives(queued, between, np.zeros(2), transfer) == 12


def test_a_wait_is_made_of_what_those_waited_for_do() -> None:
    """Workers that are blocked for most of it; those that sleep for most of it leave most of it unexplained."""
    waited, storage, cpu = np.array([0.8, 0.8, 0.0]), np.array([1.6, 0.2, 0.0]), np.array([0.4, np.nan, 0.0])
    found = shares(waited, {"io": storage, "cpu": cpu})
    assert found["io"].tolist() == [0.8, 0.25, 0.0]
    assert found["cpu"].tolist() == [0.2, 0.0, 0.0]
