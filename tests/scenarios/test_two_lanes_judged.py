"""Jobs of the second simulator, whose hosts and GPUs are lanes of their own, are judged as what they are."""

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hindmost_judge.judge import judge

from tests.runs import named, only

from .expected import not_explained

BENCH = Path(__file__).parents[2] / "bench/accuracy"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The simulator's modules."""
    monkeypatch.syspath_prepend(str(BENCH))
    return lambda name: importlib.import_module(f"two_lanes{name}")


@pytest.mark.parametrize(
    ("family", "seed"),
    [
        ("host-bound, copy", 1003),  # of three hosts one 1 ms slower, in steps of 19 ms; clocks are off by up to 4
        ("host-bound, step", 1003),
        ("host-bound, copy", 21003),
        ("host-bound, copy", 32020014),  # hosts wait in a copy that drains their GPUs; launches are not recorded
        ("host-bound, step", 11003),  # of two hosts; GPUs take as long as their hosts' optimizers and inputs
        ("host-bound, step", 11006),  # slower in what is seen as two phases
        ("host-bound, never", 1003),  # the others' hosts wait in the same phase, in all steps
        ("host-bound, never", 1007),  # … in all steps but the first few
        ("host-bound, never", 5001),  # … until a few launches before their GPUs reach the last collective
        ("host-bound, never", 5020),  # clean; one of 64 hosts drifts by 1 %, as others do
        ("host-bound, collective", 35023),  # hosts wait for each collective; launches are not recorded
        ("rare long stalls", 225010),  # the same, and one stops before every eighteenth step
        ("rare long stalls", 3025),  # the first one computes longer in every twenty-fourth step, which is no saving
        ("experts", 155006),  # optimizers wait for gradients that overlap with backward
        ("input-bound, workers", 7070022),  # one rank waits, in every fourth step; no other's workers are waited for
        ("input-bound, workers", 7070025),
        ("input-bound, workers", 6058),  # since step 0: only the first batches show how fast the others' workers are
        ("input-bound, workers", 7070057),
        ("input-bound, workers", 21070002),  # of two ranks one; each batch takes longer or shorter by an eighth
        ("input-bound, workers", 34070018),  # first batches show what is usual; later only long ones are waited for
        ("input-bound, workers", 34070026),  # the slow loader, in 64 ranks, never has a batch ready
        ("input-bound, workers", 34070028),  # clean; of two loaders, that of which little is known seems 4 % faster
        ("input-bound, workers", 71080),  # clean
        ("input-bound, workers", 3407020),  # clean; hosts wait for one rank's workers more often than for others'
        ("sharded", 2035),  # hosts wait for their GPUs before a third gather: all launch at the pace of the slow GPU
        ("sharded", 2069),
        ("accumulation", 61100002),  # the others wait in several phases; most work is before the first launch
        ("shared CPUs", 3537014),  # of 64 hosts one; ranks wait ten times as long for whose CPU is taken just then
        ("two jobs on a node", 24210000),  # clean; one rank works 5 % longer next to the other job
        ("two jobs on a node", 34210004),  # clean; all ranks of one node are slow together, then those of the other
        ("two jobs on a node", 34210027),  # as well, and one of 32 hosts is slow
        ("two jobs on a node", 61210007),  # 4 ms since the first step, next to the other job for 12 steps 9 ms
        ("uneven work", 3517001),  # its batches are by chance 1.7 % larger, which explains no delay of 16 %
        ("uneven work", 3517002),  # hosts wait for each collective, and a larger batch waits less in each
        ("input-bound, workers", 7070032),  # clean; one rank's workers are waited for, which are no slower
        ("input-bound, copy", 21060000),  # clean; hosts wait right after their input, as far as clocks tell at its end
        ("input-bound, never", 27040001),  # the others wait in several phases, but in none for their input
        ("input-bound, never", 27040003),  # the other is ahead, and waits in a phase in which no wait is found
        ("input-bound, never", 1000),  # clean; GPUs take 4 ms longer for a backward than their hosts
    ],
)
def test_exactly_the_slow_hosts_are_named(bench: Any, family: str, seed: int) -> None:
    """Ranks that cost 3 % of a step or more, and no others, at about what they cost."""
    found = bench(".grade").grade(family, seed)
    assert found["must"] == found["named"]
    assert found["once"]
    assert found["cost"] is None or found["cost"] == pytest.approx(1.0, rel=0.25)


@pytest.mark.parametrize("seed", [1002, 1005])
def test_long_stalls_of_a_host_that_is_slightly_slower_are_named(bench: Any, seed: int) -> None:
    """A slowdown that costs too little to act on hides none."""
    asked, fault = bench(".families").job("host-bound, step", seed), bench(".job").Fault
    who = asked.faults[0].ranks
    slower, stalls = (fault("host", "forward", who, share * asked.host) for share in (0.04, 4.0))
    asked = replace(asked, faults=(slower, replace(stalls, onset=2, every=11)))
    simulated = bench("").simulate(asked)
    found = judge(simulated.run).verdicts[0]
    assert (found.kind, found.ranks) == ("intermittent", who)
    true = (simulated.truth.total - simulated.truth.each[1]) / asked.steps
    assert found.cost_ms_per_step == pytest.approx(true, rel=0.1)


@pytest.mark.parametrize(
    ("family", "seed"), [("host-bound, step", 11005), ("host-bound, step", 32010005), ("input-bound, copy", 61005)]
)
def test_a_slow_host_behind_a_slower_one_is_named_too(bench: Any, family: str, seed: int) -> None:
    """It is ahead, and waits for a part of what it is slower by: both together cost what the job takes longer."""
    found = bench(".grade").grade(family, seed)
    assert found["named"] == found["may"]
    assert found["cost"] == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize(
    ("family", "seed"),
    [
        ("pipeline", 25160002),  # hosts launch six steps before their GPUs compute the first
        ("experts", 25150002),  # in a fifth of the steps calls of two groups change places
    ],
)
def test_a_slow_gpu_is_slow_since_its_own_step(bench: Any, family: str, seed: int) -> None:
    """Its collectives have the number of the step in which its host launched them."""
    found = bench(".grade").grade(family, seed)
    assert abs(found["late"]) <= 3
    assert found["cause"] == "right"
    assert found["cost"] == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(
    ("seed", "slower", "share", "times"),
    [
        (6010, 3.0, 1.0, 1.0),  # caches are cold: first batches say nothing of how fast the others' workers are later
        (6030, 1.5, 0.5, 1.5),  # healthy in the second half, in which the job is faster than first batches say
        (6061, 1.0, 1.0, 1.0),  # another rank's loader is nearly as slow: a repair of one saves little
    ],
)
def test_a_slow_loader_costs_no_more_than_its_repair_saves(
    bench: Any, monkeypatch: pytest.MonkeyPatch, seed: int, slower: float, share: float, times: float
) -> None:
    """Its batches take so many ``times`` the fault's ms longer, in the first ``share`` of the steps."""
    asked, draw = bench(".families").job("input-bound, workers", seed), bench(".noise").draw
    end = int(share * asked.steps)
    faults = tuple(replace(fault, ms=fault.ms * times, onset=0, end=end) for fault in asked.faults)

    def drawn(job: Any) -> Any:
        draws = draw(job)
        draws.queued[: job.workers] += slower - 1
        return draws

    monkeypatch.setattr(bench(""), "draw", drawn)
    asked = replace(asked, faults=faults)
    made = bench("").simulate(asked)
    found = bench(".grade").compared(asked, made.truth, judge(made.run).verdicts)
    assert found["exact"]
    assert found["cost"] < 1.25


SHORTER = 10


@pytest.mark.parametrize("seed", [5000, 5001, 5003, 5004, 5006])
def test_in_short_steps_a_host_costs_what_its_phases_are_longer_by(bench: Any, seed: int) -> None:
    """Launches are not recorded, and the others' hosts are ahead: their GPUs wait a whole step for a healthy one."""
    asked = bench(".families").job("host-bound, never", seed)
    faults = tuple(replace(fault, ms=fault.ms / SHORTER) for fault in asked.faults)
    times = {name: getattr(asked, name) / SHORTER for name in ("host", "gpu", "transfer")}
    asked = replace(asked, written="run", steps=3 * asked.steps, faults=faults, **times)
    made = bench("").simulate(asked)
    found = bench(".grade").compared(asked, made.truth, judge(made.run).verdicts)
    assert found["must"] == found["named"]
    assert found["cost"] is None or found["cost"] == pytest.approx(1.0, rel=0.25)


@pytest.mark.parametrize(
    ("seed", "last", "named"),
    [
        (8810001, 14, [(6, "input")]),
        (8810004, 22, []),  # one host is a step late, and works as long as the others
    ],
)
def test_after_a_few_steps_a_host_is_named_by_its_work(bench: Any, seed: int, last: int, named: list[Any]) -> None:
    """Who comes last then may only have started later: it costs the others nothing in the steps that follow."""
    run = bench("").simulate(bench(".families").job("input-bound, never", seed)).run
    begins = run.steps["start_ns"][run.steps["step"] == last + 1].min()
    seen = {name: run.tables()[name]["start_ns"] < begins for name in ("steps", "collectives", "intervals")}
    verdicts = judge(only(run, **seen)).verdicts
    assert [(rank, verdict.cause) for verdict in verdicts for rank in verdict.ranks] == named


def test_a_forward_that_is_slow_before_each_gather_costs_all_of_that(bench: Any) -> None:
    """One rank as late at all places of a step is no sign that a single delay is carried on: the others' noise is."""
    job, grade = bench(".job"), bench(".grade")
    fault = job.Fault("gpu", "forward", (0,), 17.0, 42)
    shape = {"shape": "fsdp", "ranks": 3, "steps": 145, "blocks": 5, "written": "run"}
    asked = job.Job(6103, host=25.6, gpu=51.4, transfer=4.1, faults=(fault,), **shape)
    simulated = bench("").simulate(asked)
    found = grade.compared(asked, simulated.truth, judge(simulated.run).verdicts)
    assert found["named"] == [0]
    assert found["cost"] == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize(
    ("written", "synchronises", "ranks"),
    [("traces", "step", 8), ("traces", "never", 4), ("run", "step", 8), ("run", "never", 4), ("run", "never", 8)],
)
def test_sharded_jobs_hosts_are_judged_by_their_work(bench: Any, written: str, synchronises: str, ranks: int) -> None:
    """GPUs wait 40 ms a step for the slow host's launches, where the others' hosts are steps ahead: it costs 11."""
    job, grade = bench(".job"), bench(".grade")
    fault = job.Fault("host", "forward", (1,), 12.0, 50)
    shape = {"shape": "fsdp", "steps": 145, "blocks": 5, "written": written, "synchronises": synchronises}
    asked = job.Job(77 + ranks, ranks, host=50.0, gpu=18.0, transfer=4.0, faults=(fault,), **shape)
    simulated = bench("").simulate(asked)
    report = judge(simulated.run)
    first, *others = report.verdicts
    assert (first.ranks, abs((first.since_step or 0) - 50) <= 3) == ((1,), True)
    found = grade.compared(asked, simulated.truth, [first])
    assert found["cost"] == pytest.approx(1.0, rel=0.15)
    assert sum(one.cost_ratio or 0.0 for one in others if one.ranks) < 0.02  # what hosts differ by


@pytest.mark.parametrize(("cpu", "cause"), [(1.0, "compute"), (0.0, "unknown")])
def test_a_host_that_stalls_in_no_phase_computes_if_its_process_used_cpu(bench: Any, cpu: float, cause: str) -> None:
    """Over the whole run: no step with a stall had its CPU time measured. Without the samples it is unknown."""
    run = bench("").simulate(bench(".families").job("rare long stalls", 225_010)).run
    (found,) = (verdict for verdict in judge(replace(run, metrics=scaled(run.metrics, cpu))).verdicts if verdict.ranks)
    assert (found.kind, found.cause) == ("intermittent", cause)


def scaled(metrics: Any, by: float) -> Any:
    """The same, with processes that used so many times as much CPU time."""
    used = metrics["name"] == "hindmost_process_cpu_seconds_total"
    return {**metrics, "value": np.where(used, by * metrics["value"], metrics["value"])}


@pytest.mark.parametrize("seed", [1_000, 40_003, 40_006, 34_190_007])
def test_more_samples_lengthen_what_the_host_does_too(bench: Any, seed: int) -> None:
    """So its GPU also idles longer; the cause is the work, as far as the samples differ, also of an untimed GPU."""
    job = bench(".families").job("unequal on purpose", seed)
    (found,) = judge(bench("").simulate(job).run).verdicts
    assert (found.ranks, found.cause, found.advice) == (
        (0,),
        "workload",
        ("give rank 0 as much work per step as its peers",),
    )


def test_a_rank_last_in_most_collectives_at_a_cost_is_suspected(bench: Any) -> None:
    """Its workers are slow in too few steps to name it; its typical step is as early as the others'."""
    (found,) = judge(bench("").simulate(bench(".families").job("input-bound, workers", 33_070_005)).run).verdicts
    assert (found.kind, found.confidence) == ("balanced", 0.5)
    assert found.evidence[0].startswith("rank 0 is suspected: it is last in 63 % of collectives; others wait 13.2 ms")


@pytest.mark.parametrize("family", ["host-bound, never", "host-bound, collective", "input-bound, step", "hidden"])
def test_the_verdict_explains_the_table_of_a_simulated_job(bench: Any, family: str) -> None:
    """Wherever hosts wait for their GPUs, of small jobs with a fault."""
    small = next(one for seed in range(1, 99) if (one := bench(".families").job(family, seed)).ranks <= 4)
    assert not_explained(judge(bench("").simulate(small).run)) == []


@pytest.mark.parametrize(
    ("family", "seed", "logged", "of_others"),
    [
        ("input-bound, never", 9017, 0, 0),
        ("input-bound, never", 9021, 0, 0),
        ("input-bound, never", 9022, 0, 0),
        ("host-bound, never", 9015, 10, 10),
        ("host-bound, never", 9005, 10, 1000),
        ("input-bound, never", 9014, 0, 0),  # clocks of host and GPU seem 3.2 to 4.3 ms apart
        ("input-bound, step", 9014, 10, 1000),
    ],
)
def test_a_host_that_is_not_ahead_is_not_slow(bench: Any, family: str, seed: int, logged: int, of_others: int) -> None:
    """Clean jobs with so many ``logged`` steps of rank 0, and ``of_others``: late for its host names no rank."""
    job = replace(bench(".families").job(family, seed), written="traces", faults=())
    run = bench("").simulate(job).run
    keeps = run.steps["step"] < np.where(run.steps["rank"] == 0, logged, of_others)
    assert [ranks for _, ranks, _ in named(only(run, steps=keeps)) if ranks] == []
