"""Ranks bound to too few CPUs: a verdict with its cost and the command that helps; none of them is slow."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hindmost_collector.report import columns, text
from hindmost_collector.report.verdict_lines import of_verdict
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.verdict import advice
from hindmost_judge.verdict.schema import Verdict

from tests.scenarios.loads import Load, make, metrics

QUEUE = "hindmost_process_runqueue_seconds_total"
CPU = "hindmost_process_cpu_seconds_total"


def bound(run: Run, cpus: dict[int, str], of: int = 8, used: float = 0.5, command: str = "mpirun -np 2 x") -> Run:
    """The same job on a node of so many CPUs, each of these ranks bound to some; each queues for half of the time."""
    samples: list[tuple[str, str, int, float]] = [("hindmost_node_cpus", "{}", 1000, float(of))]
    for rank, listed in cpus.items():
        who = {"job": "made", "rank": str(rank)}
        labels = json.dumps(who | {"cpus": listed})
        samples.append(("hindmost_process_affinity_info", labels, 1000, 1.0))
        for name, rate in ((QUEUE, 0.5), (CPU, used)):
            samples += [(name, json.dumps(who), second, rate * second) for second in (0, 1, 2)]
    return replace(run, metrics=metrics(samples), job=replace(run.job, command=command))


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


def test_ranks_with_a_cpu_each_are_not() -> None:
    """However long they queue, for other processes: the job's bindings are not why."""
    assert not of_kind(bound(shared(2, 0, 1), {0: "0", 1: "1"}), "oversubscribed")


def test_a_node_without_more_cpus_has_nothing_to_bind() -> None:
    """Two ranks on a node of one CPU: that they share it is known, and no binding helps."""
    assert not of_kind(bound(shared(2, 0, 1), {0: "0", 1: "0"}, of=1), "oversubscribed")


def test_of_some_ranks_on_one_cpu_none_is_the_straggler() -> None:
    """Ranks 0 and 1 are late for their binding; rank 5 is slow for its own work."""
    free = {rank: str(rank) for rank in range(2, 8)}
    run = bound(shared(8, 0, 1), {0: "0", 1: "0"} | free)
    assert [(verdict.kind, verdict.ranks) for verdict in judge(run).verdicts] == [("oversubscribed", (0, 1))]
    slow = make(
        Load(ranks=8, steps=150, faults=[*({"rank": r, "runqueue": 8.0} for r in (0, 1)), {"rank": 5, "compute": 5.0}])
    )
    found = judge(bound(slow, {0: "0", 1: "0"} | free)).verdicts
    assert {(one.kind, one.ranks, one.cause) for one in found} == {
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
    ended = replace(run, job=replace(run.job, exit_code=0))
    (found,) = of_kind(ended, "oversubscribed")
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
    more = metrics(rows)
    run = replace(run, metrics={name: np.concatenate([run.metrics[name], more[name]]) for name in more})
    found = of_kind(run, "oversubscribed")
    assert [one.ranks for one in found] == ([ranks] if ranks else [])
    for one in found:
        assert "2 ranks share a quota of 1 CPU" in one.evidence[0]
        assert one.advice[0].startswith("raise the CPU quota")


@pytest.mark.parametrize(("cpus", "quota", "others"), [("0-7", True, False), ("0-7", False, True), ("0", False, True)])
def test_other_processes_are_left_out_where_a_quota_holds_all_ranks(cpus: str, quota: bool, others: bool) -> None:
    """What these use is what the quota leaves; in a short job its stops are sampled once, which is no rate. CPUs of a
    binding are open to other processes, too."""
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
    more = metrics(rows)
    run = replace(run, metrics={name: np.concatenate([run.metrics[name], more[name]]) for name in more})
    limit = judge(run).job.bound
    assert limit is not None
    assert ("other processes use" in limit.evidence.lower()) == others


def test_the_report_reads_as_one_finding() -> None:
    """Head line, cost, the CPUs; and no line that calls it communication."""
    page = text.render(judge(bound(shared(2, 0, 1), {0: "0", 1: "0"})).to_dict(), width=120)
    assert "SLOW   ranks 0 and 1 on node0: share too few CPUs" in page
    assert "LIMITED BY" not in page


def test_more_ranks_than_cpus_come_first_where_no_rank_can_be_cleared() -> None:
    """Nothing but when ranks met was recorded: what is known is how many share the CPUs, and how to start fewer."""
    run = make(Load(ranks=4, steps=200, cpus=2, jostle=2.0, noise=1.0))
    unknown = np.full_like(run.collectives["cpu_ns"], -1)
    run = replace(run, collectives={**run.collectives, "cpu_ns": unknown, "runqueue_ns": unknown})
    report = judge(replace(run, job=replace(run.job, command="mpirun --oversubscribe -np 4 ./halo"))).to_dict()
    shown = text.render(report, width=200)
    assert "UNSURE cannot say" in shown
    assert "WHY    4 ranks share the 2 CPUs of node0, which can make any of them late" in shown
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
