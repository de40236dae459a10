"""Verdicts on a job as a whole: its hosts, its input, all ranks or most of them."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hindmost_collector.recordings import tables
from hindmost_collector.recordings.load import load
from hindmost_collector.report import text
from hindmost_collector.report.verdict_lines import of_verdict
from hindmost_collector.simulate import Fault, Noise, Scenario, simulate
from hindmost_judge.detect import Case
from hindmost_judge.detect import host_bound as host_bound_of
from hindmost_judge.judge import judge
from hindmost_judge.model import FINISHED, RUNNING, TABLES, VANISHED, Run, Table, empty
from hindmost_judge.settings import DEFAULT
from hindmost_judge.verdict import all_slower
from hindmost_judge.verdict.schema import Report, Slowed, Verdict

from tests.runs import blocks_of, named, only_verdict, with_rows
from tests.scenarios.loads import Load, counters, make, metrics


def steps(run: Run, **columns: Any) -> Run:
    return replace(run, steps=run.steps | columns)


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("layout", ["dp", "fsdp", "tp_dp"])
def test_sequences_of_uneven_length_are_no_rank_s_fault(layout: str, counted: bool) -> None:
    """Whether tokens were counted or only the GPU's time tells: the work is uneven, and no rank is named."""
    run = simulate(Scenario(seed=7, layout=layout, tensor=2, varying_lengths=0.15)).run
    run = run if counted else steps(run, work=np.zeros_like(run.steps["work"]))
    assert named(run) == [("uneven_workload", (), "workload")]
    assert judge(run).verdicts[0].confidence == (0.95 if counted else 0.7)


@pytest.mark.parametrize("fault", [Fault("compute", (3,), 0.25, onset=50), Fault("checkpoint", (5,), 0.12)])
def test_a_slow_rank_is_found_where_uneven_work_was_not_counted(fault: Fault) -> None:
    """What comes and goes in the GPU's time is work, and what stays is the rank's own, at what its repair saves."""
    made = simulate(Scenario(6, 120, 11, "fsdp", step_ms=50, varying_lengths=0.2, faults=(fault,)))
    run = steps(made.run, work=np.zeros_like(made.run.steps["work"]))
    (named,) = [verdict for verdict in judge(run).verdicts if verdict.ranks]
    assert named.ranks == fault.ranks
    saved = (made.truth.total_ns - made.truth.repaired_ns) / 1e6 / (120 - fault.onset)
    assert named.cost_ms_per_step == pytest.approx(saved, rel=0.2)


def test_a_rank_that_may_have_longer_batches_by_chance_is_neither_named_nor_cleared() -> None:
    """Of 4 ranks whose work was not counted one takes longer by 12 %, which may be chance."""
    slow = Fault("gpu_contention", (2,), 0.12)
    made = simulate(Scenario(4, 120, 9853868, step_ms=50, varying_lengths=0.2, faults=(slow,)))
    report = judge(steps(made.run, work=np.zeros_like(made.run.steps["work"])))
    (verdict,) = report.verdicts
    assert (verdict.kind, verdict.ranks) == ("uneven_workload", ())
    assert "no rank is slow" not in " ".join(text.render(report.to_dict(), width=400).split())


@pytest.mark.parametrize("seed", range(3))
def test_no_rank_is_named_among_few_with_uncounted_work(seed: int) -> None:
    """With very uneven work of four ranks one has more of it for some steps, by chance."""
    run = simulate(Scenario(4, 80, seed, varying_lengths=0.3)).run
    assert not [
        verdict for verdict in judge(steps(run, work=np.zeros_like(run.steps["work"]))).verdicts if verdict.ranks
    ]


def test_a_rank_that_always_has_more_work_is_late_for_it() -> None:
    """A tenth more tokens in each step and a tenth more time: the cause is the work."""
    run = simulate(Scenario(seed=7, faults=(Fault("compute", (3,), 0.1),))).run
    assert named(run) == [("straggler", (3,), "compute")]
    assert named(steps(run, work=np.where(run.steps["rank"] == 3, 4505, 4096))) == [("straggler", (3,), "workload")]


def host_bound(ended_ms: float, forward: float, step_ms: float = 100, resident: float | None = None) -> Run:
    """A clean job whose hosts end each step so long before its GPUs, and take a share of the GPU's forward. A kernel is
    ``resident`` on its GPUs for that share of the time, by default all of it."""
    run = simulate(Scenario(seed=7, step_ms=step_ms)).run
    if resident is not None:
        value = np.where(run.metrics["name"] == "hindmost_gpu_utilization_ratio", resident, run.metrics["value"])
        run = replace(run, metrics=run.metrics | {"value": value})
    stop = run.collectives["start_ns"] + run.collectives["duration_ns"]
    last = np.zeros((8, 100), np.int64)
    np.maximum.at(last, (run.collectives["rank"], run.collectives["step"]), stop)
    ended = last[run.steps["rank"], run.steps["step"]] - int(ended_ms * 1e6)
    took = np.full(len(ended), int(1_080_000 * step_ms))
    host = (run.steps["gpu_forward_ns"] * forward).astype(np.int64)
    return steps(run, start_ns=ended - took, duration_ns=took, forward_ns=host)


@pytest.mark.parametrize(
    ("ended_ms", "forward", "kind"), [(0, 1.0, "host_bound"), (60, 1.0, "balanced"), (0, 0.4, "balanced")]
)
def test_hosts_set_the_pace_where_nothing_is_queued_and_gpus_follow(ended_ms: float, forward: float, kind: str) -> None:
    """Queued work means a busy GPU; so does a forward that takes the GPU longer than its host, in a loop that waits."""
    (verdict,) = judge(host_bound(ended_ms, forward)).verdicts
    assert (verdict.kind, verdict.ranks) == (kind, ())


def test_hosts_launch_for_no_more_than_all_of_a_step() -> None:
    """Hosts are ahead of their GPUs: now and then a host's step takes half as long again as the job's."""
    run = host_bound(0, 1.0)
    took = run.steps["duration_ns"] * 3 // 2
    blocks = blocks_of(steps(run, duration_ns=took, start_ns=run.steps["start_ns"] - took // 3))
    (found,) = host_bound_of.verdicts(Case(run, blocks, DEFAULT))
    assert "CPUs launch kernels for 99 % of the step" in found.evidence


@pytest.mark.parametrize(
    ("forward", "resident", "kind"),
    [(1.0, 0.7, "host_bound"), (0.4, 0.7, "balanced"), (1.0, 0.99, "balanced"), (1.0, None, "balanced")],
)
@pytest.mark.parametrize("ended_ms", [-3, 0, 3])
def test_of_short_steps_both_clocks_must_show_it(ended_ms: float, forward: float, resident: float, kind: str) -> None:
    """Steps of 4 ms, the clock of the GPU as far off: its forward follows the host's, and it idles in between."""
    (verdict,) = judge(host_bound(ended_ms, forward, 4, resident)).verdicts
    assert (verdict.kind, verdict.ranks) == (kind, ())
    assert kind == "balanced" or verdict.cost_ratio == pytest.approx(0.3)


@pytest.mark.parametrize(("late", "said"), [(False, True), (True, False)])
def test_what_makes_one_rank_late_does_not_make_a_job_host_bound(late: bool, said: bool) -> None:
    """Nothing is queued from step 40 on; where a rank is late since then that is its doing."""
    busy, idle = host_bound(60, 1.0), host_bound(0, 1.0)
    start = np.where(busy.steps["step"] < 40, busy.steps["start_ns"], idle.steps["start_ns"])
    run = steps(idle, start_ns=start)
    blocks = blocks_of(run)
    named = (Verdict("straggler", (1,), cause="gc", since_step=40),) if late else ()
    assert bool(host_bound_of.verdicts(Case(run, blocks, DEFAULT, named))) == said


def memory(pressure: float, faults: dict[int, float]) -> Table:
    """Ten seconds of a node that stands still for memory, and of page faults of its ranks."""
    name = "hindmost_node_pressure_waiting_seconds_total"
    waits = [(name, '{"resource": "memory"}', second, pressure * second) for second in range(10)]
    return metrics([*waits, *counters("major_page_faults", faults, range(10))])


def test_a_rank_that_reads_its_pages_from_disk_waits_for_memory() -> None:
    """Pressure of the node in about the size of the delay, and page faults of one rank: that is the cause."""
    run = make(Load(steps=150, faults=[{"rank": 1, "blocked": 4.0}]))
    assert named(run) == [("straggler", (1,), "unknown")]
    thrashing = replace(run, metrics=memory(0.33, {0: 0.1, 1: 300.0, 2: 0.0, 3: 0.2}))
    assert named(thrashing) == [("straggler", (1,), "memory")]
    alike = replace(run, metrics=memory(0.33, dict.fromkeys(range(4), 300.0)))
    assert named(alike) == [("straggler", (1,), "unknown")]


@pytest.mark.parametrize(("life", "kind"), [(RUNNING, "straggler"), (FINISHED, "balanced")])
def test_a_finished_rank_holds_no_rank_up_any_more(life: int, kind: str) -> None:
    """Live, a rank that left a job whose others run on is no straggler of now."""
    run = make(Load(faults=[{"rank": 2, "compute": 3.0}]))
    lives = np.array([RUNNING, RUNNING, life, RUNNING])
    states = tables.table("rank_states", rank=np.arange(4), life=lives, time_ns=0)
    assert only_verdict(replace(run, rank_states=states)).kind == kind


def test_a_job_that_goes_on_with_fewer_ranks_is_judged_by_periods() -> None:
    """The slow process was rank 2 of three, and is rank 1 of two since rank 0 died: both are reported."""
    first = make(Load(kind="torch", ranks=3, steps=60, faults=[{"rank": 2, "compute": 5.0}]))
    second = make(Load(kind="torch", ranks=2, steps=80, names=[1, 2], faults=[{"rank": 0, "compute": 5.0}]))
    later = int((first.steps["start_ns"] + first.steps["duration_ns"]).max()) + 10**9
    steps, calls = (
        table | {"start_ns": table["start_ns"] + later, "step": table["step"] + 60}
        for table in (second.steps, second.collectives)
    )
    states = tables.table("rank_states", rank=range(3), life=[VANISHED, FINISHED, FINISHED], time_ns=0)
    calls |= {"comm": calls["comm"] + np.uint64(1)}
    report = judge(with_rows(first, steps=steps, collectives=calls, rank_states=states))
    found = {(verdict.kind, verdict.ranks, verdict.until_step) for verdict in report.verdicts}
    assert found == {("straggler", (1,), None), ("straggler", (2,), 59)}
    assert report.notes[0] == "3 ranks until step 59, 2 since then: each part is judged separately"


@pytest.mark.parametrize(
    ("framework", "do"),
    [
        ("torch", "use more DataLoader workers"),
        ("", "use more DataLoader workers"),
        ("mpi4py", "load batches ahead in a"),
    ],
)
def test_how_to_load_ahead_is_said_for_the_loader_that_there_is(framework: str, do: str) -> None:
    """A program without torch has no DataLoader; a trace that names no framework is of torch."""
    run = simulate(Scenario(4, 60, input_share=0.6)).run
    (verdict,) = judge(replace(run, ranks=run.ranks | {"framework": np.full(4, framework)})).verdicts
    assert verdict.kind == "input_bound"
    assert verdict.advice[0].startswith(do)


@pytest.mark.parametrize(("workers", "waits"), [(4, 40.0), (8, 80.0)])
def test_input_of_workers_that_deliver_in_turn_limits_the_job(workers: int, waits: float) -> None:
    """All are as slow: their rank waits for the first of each turn. All ranks lose 10 ms a step."""
    turns = [{"rank": rank, "input": waits, "every": workers} for rank in range(2)]
    (limited,) = judge(make(Load(kind="torch", ranks=2, steps=200, compute=4.0, faults=turns))).verdicts
    assert limited.kind == "input_bound"
    assert limited.cost_ms_per_step == pytest.approx(10.0, rel=0.05)
    assert re.match(r"the typical rank waits (9.9|10.\d) ms of 14.\d ms per step for input", limited.evidence[0])


@pytest.mark.parametrize("stalls", [1, 2])
def test_input_that_stalls_once_or_twice_limits_no_job(stalls: int) -> None:
    """2 s in one of 200 steps is half of their time, and no loader that is too slow."""
    once = [
        {"rank": rank, "input": 2000.0, "from": step, "until": step + 1}
        for rank in range(4)
        for step in (80, 150)[:stalls]
    ]
    run = make(Load(kind="torch", ranks=4, steps=200, compute=20.0, faults=once))
    assert "input_bound" not in [kind for kind, _, _ in named(run)]


def test_a_long_input_is_no_want_of_a_cpu() -> None:
    """Where ranks share CPUs, a rank that waits in its own marked input is late for that."""
    run = make(Load(ranks=3, steps=120, cpus=2, faults=[{"rank": 1, "blocked": 26.0}]))
    assert named(run) == [("insufficient_data", (), None)]
    marked = make(Load(kind="torch", ranks=3, steps=120)).steps
    begin = run.collectives["start_ns"] - run.collectives["self_ns"]
    late = np.where(run.collectives["rank"] == 1, 30_000_000, 4_000_000)
    period = run.collectives["self_ns"] + run.collectives["duration_ns"]
    phases = {"start_ns": begin, "duration_ns": period, "input_ns": late}
    phases |= {"forward_ns": np.full(360, -1), "backward_ns": np.full(360, -1)}
    assert named(replace(run, steps=marked | phases)) == [("straggler", (1,), "input")]


def test_a_late_rank_that_computes_more_is_named_on_shared_cpus_too() -> None:
    """Without the MPI shim the CPU time of the step tells, of a rank that is late: one that waits may spin for it."""
    run = make(Load(kind="torch", steps=120, faults=[{"rank": 1, "blocked": 60.0}]))
    cpus = make(Load(steps=3, cpus=2)).metrics
    mine = run.steps["rank"] == 1

    def with_cpu(late_ms: float, others_ms: float, queued_ms: float) -> Run:
        cpu, queue = np.where(mine, late_ms, others_ms), np.where(mine, queued_ms, 1.0)
        reported = {"cpu_ns": (cpu * 1e6).astype(np.int64), "runqueue_ns": (queue * 1e6).astype(np.int64)}
        return replace(steps(run, **reported), metrics=cpus)

    assert named(with_cpu(28.0, 6.0, 45.0)) == [("straggler", (1,), "compute")]
    assert named(with_cpu(6.0, 6.0, 60.0)) == [("balanced", (), None)]
    assert named(with_cpu(6.0, 50.0, 60.0)) == [("balanced", (), None)]


def starvation(cpu_ms: float) -> Run:
    """Rank 1 is late by 5 of 13 ms; its main thread queues for 0.1 ms of them, its threads for 0.5 s a second."""
    run = make(Load(kind="torch", steps=120, faults=[{"rank": 1, "blocked": 5.0}]))
    mine = run.steps["rank"] == 1
    cpu = np.where(mine, int(cpu_ms * 1e6), 8_000_000)
    queued = np.where(mine, 100_000, 0)
    who = [f'"job": "made", "rank": "{rank}"' for rank in range(4)]
    groups = [(f'{{{one}, "threads": "{name}"}}', 0.25) for one in who for name in ("python", "pt_autograd")]
    rows = [
        (f"hindmost_process_{name}runqueue_seconds_total", labels, tick, tick * rate * (who[1] in labels))
        for name, each in (("thread_group_", groups), ("", [(f"{{{one}}}", 0.3) for one in who]))
        for labels, rate in each
        for tick in range(3)
    ]
    return replace(steps(run, cpu_ns=cpu, runqueue_ns=queued), metrics=metrics(rows))


def test_threads_of_an_oversubscribed_rank_wait_for_a_cpu_too() -> None:
    """The main thread waits in backward for a thread without a CPU; but a rank that computes more also queues more."""
    assert named(starvation(4.0)) == [("straggler", (1,), "cpu_contention")]
    assert named(starvation(16.0)) == [("straggler", (1,), "compute")]


def _job(cause: str, onset: int, layout: str = "dp", end: int | None = None) -> Scenario:
    return Scenario(8, 160, 3, layout, tensor=2, faults=(Fault(cause, (0, 1, 2, 3, 4, 5), 0.2, onset, end),))


@pytest.mark.parametrize("cause", ["compute", "input"])
def test_most_ranks_slow_from_the_start_are_no_all_clear(cause: str) -> None:
    """Whether two ranks have less to do or six are slow is unknown: the report says so, and names no rank."""
    report = judge(simulate(_job(cause, 0)).run)
    (verdict,) = report.verdicts
    assert (verdict.kind, verdict.ranks) == ("balanced", ())
    assert verdict.evidence[0].startswith("ranks 6 and 7 are ")
    assert "faster than the other 6: they have less work, or these are slow" in verdict.evidence[0]
    assert not any("costs nothing" in note for note in report.notes)
    assert of_verdict(report.to_dict()["verdicts"][0]).head == "UNSURE"


def test_a_rank_that_may_wait_for_its_peers_makes_no_rank_slow() -> None:
    """Of a pair that shares tensors one becomes slow and the other waits for it, in unmarked steps."""
    job = Scenario(8, 104, 1, "tp_dp", tensor=2, faults=(Fault("compute", (3,), 0.06, 80),))
    run = simulate(job).run
    unmarked = {**run.collectives, "step": np.full(len(run.collectives["rank"]), -1)}
    (verdict,) = judge(replace(run, collectives=unmarked, steps=empty(TABLES["steps"]))).verdicts
    assert set(verdict.ranks) <= {3}


_ALL = tuple(range(8))


def _report(*faults: Fault, steps: int = 150, **more: object) -> Report:
    return judge(simulate(Scenario(8, steps, 77, faults=faults, **more)).run)  # type: ignore[arg-type]


@pytest.mark.parametrize("end", [None, 110])
def test_a_slowdown_of_all_ranks_is_reported_with_its_onset(end: int | None) -> None:
    """The verdict names no rank; the note and the JSON say since when, how much longer, and which phases grew."""
    report = _report(Fault("compute", _ALL, 0.2, 60, end))
    (verdict,) = report.verdicts
    assert (verdict.kind, verdict.ranks) == ("balanced", ())
    shown = text.render(report.to_dict(), width=200)
    assert ("SLOW   all ranks, since step 60" in shown) == (end is None)
    assert ("NOTE   steps 60 to 110 took 1" in shown) == (end is not None)
    assert ("ms on every rank; longer: GPU backward" in shown) == (end is not None)
    assert "longer: GPU backward 12" in shown
    reported = report.to_dict()["job"]["slowed"]
    assert (reported["since_step"], reported["until_step"]) == (60, end)
    assert reported["step_ms"] / reported["was_ms"] == pytest.approx(1.19, abs=0.02)
    assert set(reported["phases_ms"]) >= {"gpu_forward", "gpu_backward"}


@pytest.mark.parametrize(
    ("fault", "do"),
    [("runqueue", "find what has used the CPUs since step 60"), ("blocked", "find what changed at step 60: data")],
)
def test_a_rank_that_began_to_wait_for_a_cpu_is_no_matter_of_data(fault: str, do: str) -> None:
    """What to look for is what was measured."""
    (found,) = judge(make(Load(ranks=1, steps=150, faults=[{"rank": 0, fault: 4.0, "from": 60}]))).verdicts
    assert found.advice[0].startswith(do)


def test_a_job_of_one_rank_that_became_slower_is_told_when_by_how_much_and_in_what() -> None:
    """It has no peer, and its own past: that is what the report is about."""
    report = judge(make(Load(kind="torch", ranks=1, steps=150, faults=[{"rank": 0, "compute": 4.0, "from": 60}])))
    shown = text.render(report.to_dict(), width=200)
    assert "SLOW   since step 60: steps take" in shown
    assert "WHY    longer: backward 2" in shown
    assert "DO     find what changed at step 60: data, clocks, other jobs on the nodes" in shown
    assert not report.notes
    assert judge(make(Load(kind="torch", ranks=1, steps=150))).job.slowed is None


def test_what_grew_is_called_as_in_evidence() -> None:
    """A key of the JSON is no word for a reader."""
    slowed = Slowed(488, 590, 8.3, 11.9, {"device_copy": 1.7, "gpu_backward": 0.5})
    (note,) = all_slower.slowed_note(slowed, [])
    assert note.endswith("; longer: copy call 1.7 ms, GPU backward 0.5 ms")


def test_a_rank_that_became_slow_is_no_slow_down_of_all() -> None:
    """Its verdict says what the steps became longer by."""
    report = _report(Fault("compute", (3,), 0.2, 60))
    assert report.verdicts[0].ranks == (3,)
    assert report.job.slowed is None


def test_where_verdicts_cost_more_than_steps_take_nothing_is_left_to_have_slowed_down() -> None:
    """A mean cost of few long stalls is more than most steps take: "-42046 % longer" is no answer."""
    run = simulate(Scenario(8, 150, 77, faults=(Fault("compute", _ALL, 0.2, 60),))).run
    built = blocks_of(run)
    assert all_slower.find_slowed(built, []) is not None
    stalls = replace(judge(run).verdicts[0], kind="intermittent", since_step=0, cost_ms_per_step=1000.0)
    assert all_slower.find_slowed(built, [stalls]) is None


@pytest.mark.parametrize("seed", range(2))
def test_a_calm_or_a_wandering_job_did_not_become_slow(seed: int) -> None:
    """Neither noise, nor sequence lengths that vary, nor checkpoints are a slow-down of all."""
    noise = Noise(wandering=0.03, wandering_memory=0.99) if seed % 2 else Noise()
    job = Scenario(8, 200, seed, noise=noise, varying_lengths=0.2 * (seed % 3 == 0), checkpoint_every=50)
    assert judge(simulate(job).run).job.slowed is None


def test_what_rises_slowly_has_no_onset() -> None:
    """A ramp is longer in its second half, but since no step; a step of the same height is."""
    ramp, sharp = 1.0 + np.linspace(0, 0.4, 200), np.where(np.arange(200) < 80, 1.0, 1.2)
    assert all_slower.slowed_period(ramp) is None
    assert all_slower.slowed_period(sharp) == slice(80, 200)


@pytest.mark.parametrize(("longer", "reported"), [(0.03, False), (0.07, True)])
def test_some_per_cent_longer_are_no_slow_down(longer: float, reported: bool) -> None:
    """Clocks and neighbours make that of a healthy job: it is reported from a twentieth on."""
    period = np.where(np.arange(200) < 80, 1.0, 1.0 + longer)
    assert all_slower.slowed_period(period) == (slice(80, 200) if reported else None)


@pytest.mark.parametrize(("every", "reported"), [(14, True), (7, False)])
def test_steps_that_are_as_long_now_and_then_are_a_slow_down_s_like(every: int, reported: bool) -> None:
    """Where more than a tenth of the steps before was as long, as a regular part of the job, it did not become slow."""
    period = np.where(np.arange(200) < 80, 1.0, 1.2)
    period[3:80:every] = 1.25
    assert all_slower.slowed_period(period) == (slice(80, 200) if reported else None)


BEGIN_NS, STEP_NS = 1_795_225_915_000_000_000, 10_000_000


def _judged(folder: Path, forward_ms: list[float], optimizer_ms: list[float]) -> Verdict:
    """Of 40 steps of 10 ms, in which each rank's GPU takes so long over its phases, and the rest over backward."""
    for rank, (forward, optimizer) in enumerate(zip(forward_ms, optimizer_ms, strict=True)):
        lines = []
        for step in range(40):
            start = BEGIN_NS + step * STEP_NS
            host = {"step": step, "t_start": start, "t_data": start + 10_000, "t_end": start + STEP_NS - 10_000}
            gpu = {"fwd_ms": forward + 0.01 * (step % 3), "bwd_ms": 9.9 - forward - optimizer, "opt_ms": optimizer}
            lines.append(json.dumps({**host, **gpu}) + "\n")
        (folder / f"steps.{rank}.jsonl").write_text("".join(lines))
    return judge(load(folder)).verdicts[0]


@pytest.mark.parametrize(
    ("forward", "kind", "ranks"),
    [([7.0, 7.0, 7.0, 7.0], "insufficient_data", ()), ([7.0, 7.0, 7.9, 7.0], "straggler", (2,))],
)
def test_uneven_work_is_judged_as_such(tmp_path: Path, forward: list[float], kind: str, ranks: tuple[int, ...]) -> None:
    """What one has more of no other has less of elsewhere."""
    verdict = _judged(tmp_path, forward, [1.5, 1.5, 1.5, 1.5])
    assert (verdict.kind, verdict.ranks) == (kind, ranks)
    assert "and less in" not in verdict.evidence[0]
