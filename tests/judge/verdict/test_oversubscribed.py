"""Ranks that share CPUs: who lacks one, who sleeps, and what to do."""

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hindmost_collector.recordings.tables import table
from hindmost_collector.report import columns, text
from hindmost_collector.report.verdict_lines import of_verdict
from hindmost_judge.encoding import chosen
from hindmost_judge.judge import judge
from hindmost_judge.model import FINISHED, METRICS, Run, Table, empty
from hindmost_judge.settings import DEFAULT
from hindmost_judge.verdict import advice, oversubscribed
from hindmost_judge.verdict.schema import AT_LEAST, Report, Verdict

from tests.runs import blocks_of, named, with_job, with_rows
from tests.scenarios.loads import Load, counters, make, metrics


def bound(run: Run, cpus: dict[int, str], of: int = 8, used: float = 0.5, command: str = "mpirun -np 2 x") -> Run:
    """The same job on a node of so many CPUs, each of these ranks bound to some; each queues for half of the time."""
    samples: list[tuple[str, str, int, float]] = [("hindmost_node_cpus", "{}", 1000, float(of))]
    for rank, listed in cpus.items():
        labels = json.dumps({"job": "made", "rank": str(rank), "cpus": listed})
        samples.append(("hindmost_process_affinity_info", labels, 1000, 1.0))
    for name, rate in (("runqueue", 0.5), ("cpu", used)):
        samples += counters(f"{name}_seconds", dict.fromkeys(cpus, rate), range(3))
    return with_job(replace(run, metrics=metrics(samples)), command=command)


def shared(ranks: int = 2, *crowded: int, **load: float) -> Run:
    """Ranks that compute for 8 ms; those that share a CPU queue for as long."""
    faults = [{"rank": rank, "runqueue": 8.0} for rank in crowded]
    return make(Load(ranks=ranks, steps=150, faults=faults, **load))  # type: ignore[arg-type]


def of_kind(run: Run, kind: str) -> list[Verdict]:
    return [verdict for verdict in judge(run).verdicts if verdict.kind == kind]


def test_two_ranks_on_one_cpu_are_told_with_their_cost() -> None:
    """Both queue for as long as they compute: with a CPU each a step takes half as long. No rank is slow."""
    (found,) = judge(bound(shared(2, 0, 1), {0: "0", 1: "0"})).verdicts
    assert (found.kind, found.ranks, found.cause) == ("oversubscribed", (0, 1), "cpu_contention")
    assert found.cost_ms_per_step == pytest.approx(8.0, rel=0.1)
    assert "2 ranks run only on CPU number 0 (node0 has 8 CPUs)" in found.evidence[0]
    page = text.render(judge(bound(shared(2, 0, 1), {0: "0", 1: "0"})).to_dict(), width=120)
    assert "SLOW   ranks 0 and 1 on node0: share too few CPUs" in page
    assert "LIMITED BY" not in page  # it is no communication


@pytest.mark.parametrize(("second", "of"), [("1", 8), ("0", 1)], ids=["a CPU each", "a node of one CPU"])
def test_ranks_that_no_binding_would_help_are_not(second: str, of: int) -> None:
    """However long they queue: for other processes, or since the node has no more CPUs."""
    assert not of_kind(bound(shared(2, 0, 1), {0: "0", 1: second}, of=of), "oversubscribed")


def test_of_some_ranks_on_one_cpu_none_is_the_straggler() -> None:
    """Ranks 0 and 1 are late for their binding; rank 5 is slow for its own work."""
    free = {rank: str(rank) for rank in range(2, 8)}
    run = bound(shared(8, 0, 1), {0: "0", 1: "0"} | free)
    assert named(run) == [("oversubscribed", (0, 1), "cpu_contention")]
    slow = make(
        Load(ranks=8, steps=150, faults=[*({"rank": r, "runqueue": 8.0} for r in (0, 1)), {"rank": 5, "compute": 5.0}])
    )
    assert set(named(bound(slow, {0: "0", 1: "0"} | free))) == {
        ("oversubscribed", (0, 1), "cpu_contention"),
        ("straggler", (5,), "compute"),
    }


def test_what_others_use_of_the_cpu_is_no_cost_of_the_binding() -> None:
    """A sibling that runs for a tenth of the time held a rank up for no longer, though it queued for half of it."""
    (found,) = of_kind(bound(shared(2, 0, 1), {0: "0", 1: "0"}, used=0.1), "oversubscribed")
    assert found.cost_ms_per_step == pytest.approx(8.0 / 5, rel=0.1)


@pytest.mark.parametrize(
    ("command", "do"),
    [
        (
            "taskset -c 0 mpirun -np 2 ./a",
            "start the job without `taskset -c 0`; `mpirun --map-by core --bind-to core`",
        ),
        ("mpirun -np 2 ./a", "`mpirun --map-by core --bind-to core` gives each rank a CPU of its own"),
        ("srun -n 2 ./a", "`srun --cpus-per-task=1 --cpu-bind=cores` gives each rank"),
        ("numactl -C 0 torchrun x.py", "start the job without `numactl`"),
        ("torchrun x.py", "find what binds the ranks: taskset, numactl, os.sched_setaffinity"),
    ],
)
def test_what_to_do_is_the_launcher_s_own_option(command: str, do: str) -> None:
    """The command that is true for how the job was started; torchrun has none."""
    (found,) = of_kind(bound(shared(2, 0, 1), {0: "0", 1: "0"}, command=command), "oversubscribed")
    assert found.advice[-1].startswith(do)


def test_more_ranks_than_the_node_has_cpus_are_not_each_given_one() -> None:
    """mpirun refuses to bind 4 ranks to 2 cores."""
    run = bound(shared(4, 0, 1, 2, 3), dict.fromkeys(range(4), "0"), of=2)
    (found,) = of_kind(run, "oversubscribed")
    assert not any("--bind-to core" in one for one in found.advice)


@pytest.mark.parametrize(
    ("command", "nodes", "do"),
    [
        ("mpirun --oversubscribe -np 8 ./a", 1, "`mpirun -np 2`"),
        ("mpirun --oversubscribe -np 8 ./a", 3, "`mpirun -np 6 --map-by ppr:2:node`"),
        ("mpiexec.hydra -n 8 ./a", 3, "`mpiexec.hydra -np 6 -ppn 2`"),
        ("mpirun -ppn 4 -n 8 ./a", 3, "`mpirun -np 6 -ppn 2`"),
        (
            "mpiexec -n 8 ./a",
            3,
            "`mpiexec -np 6 --map-by ppr:2:node` (Open MPI) or `mpiexec -np 6 -ppn 2` (MPICH, Intel MPI)",
        ),
        ("nice srun -N 3 ./a", 3, "`srun -n 6 --ntasks-per-node=2`"),
        ("torchrun --nproc-per-node 8 a.py", 1, "`torchrun --nproc-per-node 2`"),
        ("python -m torch.distributed.run a.py", 1, "`--nproc-per-node 2`"),
        ("horovodrun -np 8 python a.py", 1, "`horovodrun -np 2`"),
        ("accelerate launch a.py", 3, "`accelerate launch --num_processes 6`"),
        ("./start.sh", 1, ""),
        (None, 1, ""),
    ],
)
def test_fewer_ranks_are_started_in_the_launcher_s_words(command: str | None, nodes: int, do: str) -> None:
    """With both numbers where it takes both: mpirun refuses more ranks than so many per node make."""
    assert advice.of_ranks_per_node(command, 2, nodes) == do


MPICH = Path(__file__).parents[3] / ".cache/mpich/bin/mpirun"


@pytest.mark.parametrize(
    ("mpirun", "option"),
    [
        pytest.param("mpirun", "--allow-run-as-root", marks=pytest.mark.needs("mpirun")),
        pytest.param(MPICH, "-prepend-rank", marks=pytest.mark.skipif(not MPICH.exists(), reason="needs make mpich")),
    ],
)
@pytest.mark.parametrize("nodes", [1, 2])
def test_mpirun_starts_the_ranks_as_advised(mpirun: str, option: str, nodes: int) -> None:
    """Open MPI and MPICH take what is written for theirs, here for the one node that there is."""
    said = advice.of_ranks_per_node(f"{mpirun} {option} -np 8 x", 1, nodes).strip("`").replace("-np 2", "-np 1")
    command = [mpirun, option, *said.split()[1:], "echo", "started"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.count("started") == 1


def test_running_ranks_can_be_moved_at_once() -> None:
    """While they run: the command for the rank that has to leave, with its PID and a CPU that is free."""
    run = bound(shared(2, 0, 1), {0: "0", 1: "0"})
    run = replace(run, ranks={**run.ranks, "pid": np.array([70, 71])})
    (found,) = of_kind(run, "oversubscribed")
    assert found.advice[0] == "at once, on node0: `taskset -cp 1 71`"
    (found,) = of_kind(with_job(run, exit_code=0), "oversubscribed")
    assert not any("at once" in one for one in found.advice)


@pytest.mark.parametrize(
    ("stopped", "group", "ranks"),
    [(0.5, "/job/rank1", (0, 1)), (0.0, "/job/rank1", None), (0.5, "/jobs", None)],
)
def test_ranks_in_a_quota_of_fewer_cpus_share_it(stopped: float, group: str, ranks: tuple[int, ...] | None) -> None:
    """A container's --cpus: affinity names every CPU. A quota of one rank is not of both, nor one that stops none."""
    run = bound(shared(2, 0, 1), {0: "0-7", 1: "0-7"})
    info = "hindmost_process_cpu_cgroup_info"
    rows = [
        (info, json.dumps({"job": "made", "rank": str(r), "cgroup": g}), 1, 1.0) for r, g in enumerate(("/job", group))
    ]
    rows.append(("hindmost_node_cgroup_cpu_limit_cores", '{"cgroup":"/job"}', 1, 1.0))
    name = "hindmost_node_cgroup_cpu_throttled_seconds_total"
    rows += [(name, '{"cgroup":"/job"}', second, stopped * second) for second in (0, 2)]
    found = of_kind(with_rows(run, metrics=metrics(rows)), "oversubscribed")
    assert [one.ranks for one in found] == ([ranks] if ranks else [])
    for one in found:
        assert "2 ranks share a quota of 1 CPU" in one.evidence[0]
        assert one.advice[0].startswith("raise the CPU quota")


@pytest.mark.parametrize(("cpus", "quota", "others"), [("0-7", True, False), ("0-7", False, True), ("0", False, True)])
def test_other_processes_are_left_out_where_a_quota_holds_all_ranks(cpus: str, quota: bool, others: bool) -> None:
    """What these use is what the quota leaves; a single sample of its stops is no rate."""
    slow = make(Load(ranks=2, steps=150, faults=[{"rank": 0, "compute": 6.0}]))
    run = bound(slow, {0: cpus, 1: cpus}, of=2, used=0.05)
    info = "hindmost_process_cpu_cgroup_info"
    rows = [(info, json.dumps({"job": "made", "rank": str(r), "cgroup": "/job"}), 1, 1.0) for r in (0, 1)]
    if quota:
        rows.append(("hindmost_node_cgroup_cpu_limit_cores", '{"cgroup":"/job"}', 1, 1.0))
    busy = {"user": 2.0, "idle": 0.0}
    rows += [
        ("hindmost_node_cpu_seconds_total", json.dumps({"mode": mode}), second, rate * second)
        for mode, rate in busy.items()
        for second in (0, 1, 2)
    ]
    limit = judge(with_rows(run, metrics=metrics(rows))).job.bound
    assert limit is not None
    assert ("other processes use" in limit.evidence.lower()) == others


def test_more_ranks_than_cpus_come_first_where_no_rank_can_be_cleared() -> None:
    """Nothing but when ranks met was recorded: what is known is how many share the CPUs, and how to start fewer."""
    run = make(Load(ranks=4, steps=200, cpus=2, jostle=2.0, noise=1.0))
    unknown = np.full_like(run.collectives["cpu_ns"], -1)
    run = replace(run, collectives={**run.collectives, "cpu_ns": unknown, "runqueue_ns": unknown})
    report = judge(with_job(run, command="mpirun --oversubscribe -np 4 ./halo")).to_dict()
    shown = text.render(report, width=200)
    assert "UNSURE cannot say" in shown
    assert "WHY    4 ranks share the 2 CPUs of node0: any of them can be late by that" in shown
    assert "DO     start at most 2 ranks per node: `mpirun -np 2`" in shown
    assert shown.count("share the 2 CPUs") == 1
    report["job"]["bound"] = {"by": "cpu", "evidence": "the typical rank waits for a CPU 60 % of the time"}
    assert "LIMITED BY" in text.render(report, width=200).splitlines()[1]


def test_what_cpu_time_costs_on_shared_cpus_is_an_estimate() -> None:
    """From step 40 on rank 1 computes 4 ms more, and gets a CPU for half of the time: steps are 8 ms longer."""
    faults = [{"rank": rank, "runqueue": 8.0} for rank in range(4)] + [
        {"rank": 1, "compute": 4.0, "runqueue": 4.0, "from": 40}
    ]
    report = judge(make(Load(ranks=4, steps=200, cpus=2, noise=0.5, faults=faults)))
    (found,) = report.verdicts
    assert (found.ranks, found.cause) == ((1,), "compute")
    assert found.cost_ms_per_step == pytest.approx(8.0, rel=0.1)
    assert found.cost_is == "estimate"
    assert any(line.startswith("COST is an estimate: CPU time alone explains") for line in found.evidence)
    (note,) = report.notes
    assert note.endswith("ranks are compared by CPU time, not by who arrives last")
    titles, _ = columns.table(report.to_dict()["ranks"], 80, columns.deciding(report.to_dict()))
    assert titles[:2] == ["rank", "CPU time"]


def test_what_cpu_time_costs_from_the_first_step_on_is_the_least() -> None:
    """No step before shows how long it takes to get a CPU for 4 ms more: each may take 2 ms, as the others' do."""
    faults = [{"rank": rank, "runqueue": 8.0} for rank in range(4)] + [{"rank": 1, "compute": 4.0, "runqueue": 4.0}]
    (found,) = judge(make(Load(ranks=4, steps=200, cpus=2, noise=0.5, faults=faults))).to_dict()["verdicts"]
    assert (found["ranks"], found["cause"]) == ([1], "compute")
    assert found["evidence"][-1] == "COST is the least: on these full CPUs 1 ms of CPU time costs 1 to 2 ms"
    assert of_verdict(found | {"evidence": []}).cost.startswith("at least 3.6 of ")


CPUS = 2
LATE_MS = 30.0


def used_by(*ranks: dict[str, float]) -> Table:
    """A node of two CPUs, and what its ranks' processes use: by name of a counter, s/s."""
    rows = [("hindmost_node_cpus", "{}", 0, float(CPUS))]
    for rank, rates in enumerate(ranks):
        for name, rate in rates.items():
            rows += counters(f"{name}_seconds", {rank: rate}, range(6))
    return metrics(rows)


#: Of four processes all threads use 0.1 s/s.
THREADS_REST = used_by(*[{"cpu": 0.1}] * 4)


def crowded(
    queued_ms: float,
    process_cpu: float | None,
    spinning: bool = False,
    cpu_ms: float = 8.0,
    late: tuple[int, ...] = (1,),
    since: int = 0,
) -> Run:
    """Four ranks on two CPUs, rank 1 late by 30 ms a step of 38.3: what its main thread queued, what its process ran.
    Those that wait for it block, or, ``spinning``, run or queue all the time."""
    faults = [{"rank": rank, "blocked": LATE_MS, "from": since} for rank in late]
    run = make(Load(kind="torch", steps=120, faults=faults))
    mine = np.isin(run.steps["rank"], late)
    cpu = np.where(mine, cpu_ms, 20.0 if spinning else 8.0)
    queue = np.where(mine, queued_ms, 18.0 if spinning else 0.2)
    steps = run.steps | {"cpu_ns": (cpu * 1e6).astype(np.int64), "runqueue_ns": (queue * 1e6).astype(np.int64)}
    used = [] if process_cpu is None else [{"cpu": process_cpu if rank in late else 0.3} for rank in range(4)]
    return replace(run, steps=steps, metrics=used_by(*used))


def jostled(
    queued: float = 0.58, spun: float = 0.013, faults: tuple[dict[str, float], ...] = (), steps: int = 150
) -> Run:
    """Four ranks on two CPUs that others use as well: all sleep 2 ms a step, rank 1 sleeps 7, and then all are in the
    queue for a CPU, in a transfer of 7 ms; ``queued`` are the s/s that rank 1's process is, ``spun`` what it runs."""
    asleep = [{"rank": rank, "blocked": 7.0 if rank == 1 else 2.0} for rank in range(4)] + list(faults)
    other = {"runqueue": 0.83, "cpu": max(spun, 0.04)}
    used = used_by(other, {"runqueue": queued, "cpu": spun}, other, other)
    return replace(make(Load(steps=steps, compute=0.1, transfer=7.0, faults=asleep)), metrics=used)


def held_up(asleep: float, seed: int) -> Run:
    """Two ranks on two CPUs that others use, too: in each step each queues, 25 ms on average; rank 1 sleeps."""
    queued = np.random.default_rng(seed).exponential(25.0, (2, 200))
    faults = [
        {"rank": rank, "runqueue": each, "from": step, "until": step + 1}
        for (rank, step), each in np.ndenumerate(queued)
    ]
    asleep_too = [*faults, {"rank": 1, "blocked": asleep}]
    return replace(make(Load(ranks=2, steps=200, faults=asleep_too)), metrics=used_by(*[{"cpu": 0.2}] * 2))


def rank_1(run: Run, kind: str = "straggler") -> Verdict:
    """The only verdict: rank 1 is late, and why was not measured."""
    (found,) = judge(run).verdicts
    assert (found.kind, found.ranks, found.cause) == (kind, (1,), "unknown")
    return found


def unsure(run: Run) -> Report:
    """The report, which names no rank since too little was measured."""
    report = judge(run)
    (found,) = report.verdicts
    assert (found.kind, found.ranks) == ("insufficient_data", ())
    assert "rank 1 late, perhaps because of that" in report.notes[0]
    return report


@pytest.mark.parametrize("spinning", [True, False])
def test_a_rank_that_sleeps_is_late_for_no_want_of_a_cpu(spinning: bool) -> None:
    """It neither ran nor queued, nor did a thread of its process: it is named, and the evidence says so."""
    run = crowded(0.2, 0.21, spinning)
    evidence = rank_1(run).evidence
    assert any("slept or was blocked for 30" in one for one in evidence)
    assert "what it waited for off the CPU was not measured" in evidence
    by = "ranks are compared by time off the CPU, not by who arrives last"
    assert judge(run).notes == (f"4 ranks share the 2 CPUs of node0: {by}",)


def stacked(run: Run, *lines: str, rank: int = 1, since: int = 0) -> Run:
    """Stacks of a rank, one a step, each with its main thread as ``idle`` or ``active`` and the line where it was.
    Those ``in`` a line are taken in the middle of the step's call, others in the middle of the time before it."""
    calls = chosen(run.collectives, run.collectives["rank"] == rank)
    texts, times = [], []
    for at, (state, where, line) in enumerate((one.split() for one in lines), since + 1):
        begin, before = int(calls["start_ns"][at]), int(calls["start_ns"][at - 1] + calls["duration_ns"][at - 1])
        times.append(begin + int(calls["duration_ns"][at]) // 2 if where == "in" else (before + begin) // 2)
        texts.append(MAIN.format(state, line))
    return with_rows(run, stacks=table("stacks", rank=rank, time_ns=times, text=texts)) if lines else run


#: A process: the main thread, which has no name in some dumps.
MAIN = 'Thread 7 ({}): "MainThread"\n    sleep (/lib/python3/time.py:1)\n    load (train.py:{})\n'
POOL = "\nThread 8 (idle)\n    wait (mylib/pool.py:3)\n"


def test_where_a_rank_waits_off_the_cpu_is_shown_by_its_stacks() -> None:
    """The line of most stacks that have it off the CPU: those in which it computes do not count."""
    run = stacked(crowded(0.2, 0.21), *["active at 5"] * 3, *["idle at 9"] * 4, "idle at 7")
    (found,) = judge(run).verdicts
    assert found.evidence[1] == "rank 1 was off the CPU at train.py:9, in load() in 4 of 8 stacks"
    at = "train.py:9, in load() (4 of 8 stacks, stacks/1.txt)"
    assert found.advice[0] == f"see what rank 1 on node0 waits for at {at}"


@pytest.mark.parametrize(
    "seen",
    [
        (),
        ("idle at 9", *["active at 5"] * 7),
        ("active at 5", "active at 5"),
        ("idle at 9", "idle at 9", "idle at 7", "idle at 7"),
        (*["idle at 9"] * 5, *["active at 5"] * 11),
    ],
    ids=str,
)
def test_a_line_is_named_only_by_enough_stacks(seen: tuple[str, ...]) -> None:
    """A few, or as many at another line, may be chance; a third of all is no delay of three quarters of the step."""
    (found,) = judge(stacked(crowded(0.2, 0.21), *seen)).verdicts
    assert "stacks" not in " ".join(found.evidence)
    assert found.advice[0].startswith("see what rank 1 does on node0")


@pytest.mark.parametrize(("its", "line"), [(4, "train.py:9, in load() in 4 of 15 stacks"), (0, "")])
def test_a_line_at_which_all_ranks_sleep_is_not_where_one_is_late(its: int, line: str) -> None:
    """All sleep 60 ms at line 5, rank 1 another 50: as many of its stacks are there as of 60 in 110 ms."""
    asleep = [{"rank": rank, "blocked": 110.0 if rank == 1 else 60.0} for rank in range(4)]
    run = replace(make(Load(steps=120, compute=0.1, transfer=0.3, faults=asleep)), metrics=THREADS_REST)
    seen = [*["idle at 5"] * 9, *["active at 3"] * (7 - its), *["idle at 9"] * its]
    (found,) = judge(stacked(run, *seen)).verdicts
    assert (found.ranks, found.partial) == ((1,), "blocked")
    said = [one for one in found.evidence if "stacks" in one]
    assert said == ([f"rank 1 was off the CPU at {line}"] if line else [])


def test_the_parts_of_a_delay_off_the_cpu_are_off_the_cpu() -> None:
    """In its stalls a rank also computes and queues, which is no part of the 800 ms that it sleeps in each."""
    stall = {"rank": 1, "blocked": 800.0, "compute": 180.0, "runqueue": 350.0}
    faults = [stall | {"from": at, "until": at + 1} for at in range(20, 200, 25)]
    asleep = [{"rank": rank, "blocked": 80.0} for rank in range(4)]
    run = replace(make(Load(steps=200, compute=0.1, transfer=0.3, faults=asleep + faults)), metrics=THREADS_REST)
    found = rank_1(run, "intermittent")
    assert found.partial == "blocked"
    assert re.fullmatch(r"8\d\d ms delay in such a step, all of it off the CPU", found.evidence[1])
    assert any(re.search(r"was blocked for 8\d\d ms in such a step", one) for one in found.evidence)


def test_where_a_rank_waits_for_others_is_not_where_it_is_late() -> None:
    """More stacks have it inside of the all-reduce than where it loads."""
    (found,) = judge(stacked(crowded(0.2, 0.21), *["idle in 60"] * 9, *["idle at 9"] * 7)).verdicts
    assert found.evidence[1] == "rank 1 was off the CPU at train.py:9, in load() in 7 of 16 stacks"


def test_stacks_of_before_the_delay_say_nothing_about_it() -> None:
    """Rank 1 waited at line 5 in its first steps, and became slow at step 60."""
    run = crowded(0.2, 0.21, since=60)
    (found,) = judge(stacked(run, *["idle at 5"] * 16)).verdicts
    assert (found.since_step, "stacks" in " ".join(found.evidence)) == (60, False)
    (found,) = judge(stacked(stacked(run, *["idle at 5"] * 16), *["idle at 9"] * 8, since=70)).verdicts
    assert found.evidence[1] == "rank 1 was off the CPU at train.py:9, in load() in 8 of 8 stacks"


@pytest.mark.parametrize("name", ['"MainThread"', ""])
def test_a_thread_that_always_waits_is_not_where_a_rank_waits(name: str) -> None:
    """A library's idle pool, and a main thread that computes."""
    run = stacked(crowded(0.2, 0.21), *["active at 5"] * 4)
    texts = [text.replace(': "MainThread"', f": {name}" if name else "") + POOL for text in run.stacks["text"].tolist()]
    (found,) = judge(replace(run, stacks=run.stacks | {"text": np.array(texts)})).verdicts
    assert "pool.py" not in " ".join([*found.evidence, *found.advice])


def test_each_of_several_ranks_has_its_line_or_the_usual_advice() -> None:
    """Ranks 1 and 2 are late alike; of rank 2 there are no stacks."""
    run = stacked(crowded(0.2, 0.21, late=(1, 2)), *["idle at 9"] * 8)
    (found,) = judge(run).verdicts
    assert found.ranks == (1, 2)
    assert [line.partition(" on node0")[0] for line in found.advice[:2]] == [
        "see what rank 1",
        "see what rank 2 does",
    ]


@pytest.mark.parametrize(("queued_ms", "used", "cpu_ms", "slept_ms"), [(0.2, 0.3, 11.0, 27), (10.0, 0.21, 8.0, 20)])
def test_a_rank_costs_what_it_slept_of_its_delay(queued_ms: float, used: float, cpu_ms: float, slept_ms: float) -> None:
    """Of 30 ms it computed 3 more than its peers, or queued for 10: awake, it would have come so much sooner."""
    assert rank_1(crowded(queued_ms, used, cpu_ms=cpu_ms)).cost_ms_per_step == pytest.approx(slept_ms, abs=1)


@pytest.mark.parametrize("seed", range(2))
def test_a_rank_that_sleeps_is_named_where_other_programs_make_each_rank_late_in_turn(seed: int) -> None:
    """A node has a CPU for each rank, and other programs use them: what a rank does off the CPU is its own work."""
    asleep, awake = (judge(held_up(ms, seed)).job.step_ms["mean"] for ms in (10.0, 0.0))
    assert rank_1(held_up(10.0, seed)).cost_ms_per_step == pytest.approx(asleep - awake, rel=0.2)


@pytest.mark.parametrize("seed", range(4))
def test_where_none_sleeps_no_rank_is_named_for_a_queue_that_other_programs_make(seed: int) -> None:
    """They queue for 25 ms a step, now one for longer and now the other."""
    assert [verdict.ranks for verdict in judge(held_up(0.0, seed)).verdicts] == [()]


@pytest.mark.parametrize(
    ("others", "do"),
    [(1.9, "stop the other processes (the system's `top` lists them)"), (0.3, "start at most 1 rank per node")],
)
def test_what_to_do_follows_from_who_uses_the_cpus(others: float, do: str) -> None:
    """Where other processes use more of them than the 1.5 that ranks use, fewer ranks would not help."""
    run = crowded(0.2, 0.6)
    rates = {"user": 1.5 + others, "idle": 0.1}
    rows = [
        ("hindmost_node_cpu_seconds_total", f'{{"mode": "{mode}"}}', tick, rate * tick)
        for mode, rate in rates.items()
        for tick in range(6)
    ]
    run.metrics["value"][run.metrics["name"] == "hindmost_node_cpus"] = sum(rates.values())
    (verdict,) = judge(with_rows(run, metrics=metrics(rows))).verdicts
    assert (verdict.kind, verdict.advice[0][: len(do)]) == ("insufficient_data", do)


@pytest.mark.parametrize("process_cpu", [0.6, None])
def test_a_rank_that_may_have_waited_for_a_cpu_is_neither_named_nor_cleared(process_cpu: float | None) -> None:
    """Its other threads ran for long, or are unknown: ranks waited for it, for a reason that is unknown."""
    (verdict,) = unsure(crowded(0.2, process_cpu)).verdicts
    assert verdict.evidence[0].startswith("rank 1 is last to arrive in 100 % of the collectives: others wait 30")


@pytest.mark.parametrize(("cpu_ms", "what"), [(8.0, "off the CPU 22"), (30.0, "computing 22")])
def test_who_used_no_more_cpu_did_not_compute(cpu_ms: float, what: str) -> None:
    """It queued for 8 of 30 ms: its CPU time shows whether it computed or slept for the rest."""
    verdict = rank_1(replace(crowded(8.0, None, cpu_ms=cpu_ms), metrics=empty(METRICS)))
    assert any(line.startswith(f"30.0 ms delay per step: {what}") for line in verdict.evidence)


#: Now and then the others queue before the transfer for longer than rank 1 sleeps, and then it costs nothing.
QUEUEING = tuple(
    {"rank": rank, "runqueue": 8.0, "from": begin, "until": begin + 22} for rank in (0, 2, 3) for begin in (20, 60, 100)
)


@pytest.mark.parametrize(
    ("more", "cost_ms"),
    [
        pytest.param({}, 5.0, id="for as much of the transfer as its peers"),
        pytest.param({"spun": 0.12}, 5.0, id="and used 1.7 ms of CPU a step in it, as its peers did"),
        pytest.param({"faults": QUEUEING}, 5.0 * 84 / 150, id="and peers hide for a while who sleeps"),
        # a scheduler's doing is no computing
        pytest.param(
            {"faults": ({"rank": 3, "runqueue": 20.0, "compute": 0.1, "from": 100, "until": 126},)},
            5.0 * 124 / 150,
            id="and rank 3 queued for a while, and ran for 0.1 ms",
        ),
    ],
)
def test_where_all_queue_in_a_transfer_no_earlier_delay_is_a_missing_cpu(more: dict[str, Any], cost_ms: float) -> None:
    """Its process queued for 0.58 s/s: before the transfer the rank slept."""
    assert rank_1(jostled(**more)).cost_ms_per_step == pytest.approx(cost_ms, abs=0.3)


def test_who_sleeps_and_is_last_no_more_than_by_chance_is_hardly_surely_costly() -> None:
    """Each other rank queues for 15 ms in a quarter of the steps: 6 ms less would save as much."""
    asleep = {"rank": 1, "blocked": 6.0}
    in_turn = [
        {"rank": rank, "runqueue": 15.0, "from": begin, "until": begin + 20}
        for at, rank in enumerate((0, 2, 3))
        for begin in range(20 * at, 320, 80)
    ]
    for faults, sure in (([asleep], 0.99), ([asleep, *in_turn], 0.65)):
        run = make(Load(steps=320, compute=0.5, transfer=3.0, faults=faults))
        assert rank_1(replace(run, metrics=THREADS_REST)).confidence == sure


def test_a_process_that_queued_for_longer_than_its_transfers_take_may_have_been_late_for_it() -> None:
    """It queued for 0.9 s/s and was in transfers for half of its time, and its main thread slept: no line says that it
    waited for a CPU where another says that this is unknown."""
    report = unsure(jostled(0.9))
    lines = " ".join([*report.verdicts[0].evidence, *report.notes])
    assert "it may have waited for one threads of its process waited for a CPU, perhaps not while it was late" in lines
    assert "waiting for a CPU" not in lines


def test_a_rank_that_is_late_in_two_segments_is_listed_once() -> None:
    """The note says of whom it is unknown, not of how many slowdowns."""
    segments = [{"rank": 1, "blocked": 5.0, "from": first, "until": first + 60} for first in (0, 90)]
    load = Load(compute=0.1, transfer=7.0, faults=[*({"rank": rank, "blocked": 2.0} for rank in range(4)), *segments])
    (note,) = judge(replace(make(load), metrics=jostled(0.9).metrics)).notes
    assert ": rank 1 late, perhaps because of that" in note


def test_of_few_steps_a_late_rank_is_not_cleared_by_a_wait_that_was_not_measured() -> None:
    """Nothing says that rank 1 waited for a CPU: its delay is a third of a step, and no rank is cleared."""
    report = judge(jostled(0.9, steps=26))
    (verdict,) = report.verdicts
    late = "rank 1 is last to arrive in 100 % of the collectives; the cause was not measured"
    assert late in verdict.evidence
    assert (verdict.kind, verdict.confidence) == ("balanced", 0.5)
    assert of_verdict(report.to_dict()["verdicts"][0]).head == "UNSURE"
    assert "rank 1 late, perhaps because of that" in report.notes[0]


def test_a_rank_of_which_a_step_is_missing_is_not_the_one_that_is_waited_for_most() -> None:
    """Unknown time counts as no waiting: the rank with most CPU time that makes the others wait is still reported."""
    blocks = blocks_of(make(Load(compute=8.0, faults=[{"rank": 1, "compute": 4.0}])))
    caused = blocks.caused.copy()
    caused[3, 5] = np.nan
    reported = oversubscribed.asking_most(replace(blocks, caused=caused), DEFAULT)
    assert [one.ranks for one in reported] == [(1,)]


@pytest.mark.parametrize("steps", [26, 300])
def test_a_rank_seen_to_wait_for_a_cpu_is_reported_without_blame(steps: int) -> None:
    """The main thread queued for as long as it was late: that is measured, and the headline need not doubt it."""
    report = judge(make(Load(steps=steps, compute=3.0, cpus=CPUS, faults=[{"rank": 1, "runqueue": 5.0}])))
    (verdict,) = report.verdicts
    assert verdict.kind == "balanced"
    assert any("last to arrive in 100 % of the collectives, waiting for a CPU" in line for line in verdict.evidence)
    assert not any("not sure" in line or "not measured" in line for line in verdict.evidence)
    assert report.notes == ("4 ranks share the 2 CPUs of node0: rank 1 late, perhaps because of that",)


def test_a_rank_that_needs_much_more_on_full_cpus_is_suspected_of_few_steps() -> None:
    """4 ms are little of a step, but each takes 10 ms there: they are no negligible need."""
    faults = [{"rank": rank, "runqueue": 45.0 + 36.0 * (rank == 1)} for rank in range(3)]
    load = Load(ranks=3, steps=24, compute=5.0, transfer=160.0, cpus=CPUS, jostle=20.0)
    (verdict,) = judge(make(replace(load, faults=[*faults, {"rank": 1, "compute": 4.0}]))).verdicts
    assert (verdict.kind, verdict.confidence) == ("balanced", 0.5)
    assert "Rank 1 is suspected (CPU time 9.2 ms, others 5.2 ms)" in verdict.evidence[0]


def test_a_rank_that_sleeps_now_and_then_is_named_at_what_it_costs() -> None:
    """It sleeps 6 ms in some steps; where others are in the queue meanwhile, it costs as much less."""
    costs = []
    for queued_ms in (0.0, 3.0):
        queueing = [{"rank": rank, "runqueue": queued_ms, "every": 4} for rank in (0, 2, 3)]
        faults = [{"rank": 1, "blocked": 6.0, "every": 4}, *queueing]
        run = make(Load(steps=300, compute=0.5, transfer=3.0, faults=faults))
        costs.append(rank_1(replace(run, metrics=THREADS_REST), "intermittent").cost_ms_per_step)
    assert costs == [pytest.approx(6 / 4, abs=0.1), pytest.approx(3 / 4, abs=0.1)]


def test_a_rank_that_sleeps_long_a_few_times_is_named() -> None:
    """Seven stops of 250 ms are more than turns of a scheduler."""
    stops = {"rank": 1, "blocked": 250.0, "every": 25}
    run = make(Load(steps=180, compute=2.0, transfer=40.0, jostle=4.0, faults=[stops]))
    found = rank_1(replace(run, metrics=THREADS_REST), "intermittent")
    assert found.cost_ms_per_step == pytest.approx(250 / 25, rel=0.15)


def test_who_sleeps_while_all_others_queue_is_not_named() -> None:
    """No rank waits for it: its sleep is no more than a note."""
    faults = [{"rank": 1, "blocked": 6.0}, *({"rank": rank, "runqueue": 9.0} for rank in (0, 2, 3))]
    report = judge(replace(make(Load(steps=300, compute=2.0, faults=faults)), metrics=THREADS_REST))
    assert [verdict.kind for verdict in report.verdicts] == ["balanced"]
    assert "rank 1 slept 6.0 ms per step while others waited for a CPU: no cost" in report.notes


def test_an_unmeasured_interval_is_not_one_without_sleep() -> None:
    """In every other step rank 1's work is unknown: it sleeps in all known steps, not in half of all."""
    run = make(Load(steps=300, compute=2.0, faults=[{"rank": 1, "blocked": 6.0}]))
    unknown = (run.collectives["rank"] == 1) & (run.collectives["seq"] % 2 == 0) & (run.collectives["seq"] < 200)
    unmeasured = {name: np.where(unknown, -1, run.collectives[name]) for name in ("cpu_ns", "runqueue_ns")}
    assert rank_1(replace(run, collectives=run.collectives | unmeasured, metrics=THREADS_REST)).since_step == 0


def beside(slow_ms: float, *faults: dict[str, float]) -> Run:
    """Ranks 0 and 2 train in parallel with 1 and 3 on two CPUs; rank 2 is late by so much, 1 and 3 have ``faults``."""
    pair = make(Load(kind="torch", ranks=2, steps=80, names=[0, 2], faults=[{"rank": 1, "compute": slow_ms}]))
    other = make(Load(kind="torch", ranks=2, steps=80, names=[1, 3], seed=5, compute=6.0, faults=list(faults)))
    calls = other.collectives | {"comm": other.collectives["comm"] + np.uint64(1)}
    crowd = make(Load(steps=3, cpus=CPUS)).metrics  # they meet in the queue for a CPU, if nowhere else
    joined = with_rows(pair, ranks=other.ranks, steps=other.steps, collectives=calls)
    return with_job(replace(joined, metrics=crowd), world_size=4)


def test_of_two_sets_of_ranks_the_slower_ones_steps_are_the_jobs() -> None:
    """A rank of one set is named, and its cost set against that set's steps: never more than all of their time."""
    assert named(beside(30.0)) == [("straggler", (2,), "compute")]
    assert judge(beside(30.0)).verdicts[0].cost_ratio == pytest.approx(30 / 38.5, abs=0.02)
    assert named(beside(0.0)) == [("balanced", (), None)]


def test_a_rank_that_made_all_steps_has_not_left() -> None:
    """The faster set ends long before the other: the job is judged as one."""
    run = replace(beside(30.0), rank_states=table("rank_states", rank=range(4), life=FINISHED, time_ns=0))
    assert named(run) == [("straggler", (2,), "compute")]
    assert not any("each part" in note for note in judge(run).notes)


def test_a_rank_is_not_measured_by_the_one_peer_that_mirrors_it() -> None:
    """Rank 3 was late for a while, so that every rank is a suspect: rank 0 is as far ahead as rank 2 is behind."""
    run = beside(30.0, {"rank": 1, "compute": 2.0, "from": 40, "until": 48})
    assert named(run) == [("straggler", (2,), "compute")]


@pytest.mark.parametrize(("used", "named"), [(0.6, [1]), (0.42, []), (0.3, [])])
def test_samples_of_processes_show_the_rank_that_computes_longer(used: float, named: list[int]) -> None:
    """Messages have no CPU time between them; who is last and uses most in all has more work than those that wait."""
    run = make(Load(kind="edges", ranks=3, faults=[{"rank": 1, "compute": 4.0}]))
    found = judge(replace(run, metrics=used_by({"cpu": 0.4}, {"cpu": used}, {"cpu": 0.4}))).verdicts
    assert [rank for one in found for rank in one.ranks] == named
    assert not named or (found[0].cause, found[0].cost_is) == ("compute", AT_LEAST)
