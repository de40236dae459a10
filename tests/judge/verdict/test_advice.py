"""What to do fits the machine: where ranks run, whether they have GPUs, whether they are Python."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import COLLECTIVES, STEPS, Run, empty
from hindmost_judge.verdict import advice
from hindmost_judge.verdict.schema import CAUSES, Verdict
from hindmost_judge.verdict.wording import SAVING

from tests.runs import with_job
from tests.scenarios import loads

RUN = simulate(Scenario(ranks=8, steps=4)).run


def at(nodes: list[str], *, gpus: bool = True, source: str = "hindmost") -> Run:
    """The same run on these nodes, one a rank."""
    run = with_job(replace(RUN, ranks=RUN.ranks | {"node": np.array(nodes)}), source=source)
    bare = {"steps": empty(STEPS), "collectives": empty(COLLECTIVES)}
    return run if gpus else replace(run, ranks=run.ranks | {"gpu_uuid": np.full(len(nodes), "")}, **bare)


@pytest.mark.parametrize("ranks", [(), (2,), (0, 1, 2, 3)])
def test_advice_on_one_node_names_no_network(ranks: tuple[int, ...]) -> None:
    """Within a node NVLink and PCIe are looked at, without GPUs memory and bindings: no NIC, no cable, no network."""
    with_gpus, without = (advice.of_transfers(at(["n0"] * 8, gpus=gpus), ranks) for gpus in (True, False))
    assert "within n0: `nvidia-smi nvlink -e`, PCIe width" in with_gpus
    assert "within n0: memory bandwidth, NUMA" in without
    assert not any(word in with_gpus + without for word in ("NIC", "cable", "switch port"))


def test_between_nodes_their_network_is_looked_at() -> None:
    """Ranks of several nodes share NICs, cables and a switch; members of one of these nodes do not."""
    run = at([f"n{rank // 4}" for rank in range(8)])
    said = "check the link of ranks 0 and 4 between n0, n1: NIC counters (`ethtool -S`), cables, the switch port"
    assert advice.of_transfers(run, (0, 4)) == said
    assert advice.of_transfers(run, ()).endswith("the switch port, other jobs")
    assert "within n1: `nvidia-smi nvlink" in advice.of_transfers(run, (5, 7))


@pytest.mark.parametrize("ranks", [(), (2, 3)])
def test_where_nodes_are_not_known_both_are_named(ranks: tuple[int, ...]) -> None:
    """A recording that does not say where ranks ran is not taken for one node, nor for several."""
    reported = advice.of_transfers(at([""] * 8, gpus=False, source="NCCL Inspector logs"), ranks)
    assert "in a node `nvidia-smi nvlink" in reported
    assert "between nodes NIC" in reported


@pytest.mark.parametrize(("ranks", "layout", "where"), [(8, "dp", "within node0000"), (16, "dp", "between node0000, ")])
def test_the_verdict_on_a_slow_network_says_so(ranks: int, layout: str, where: str) -> None:
    """The advice of a report is that of the nodes its ranks ran on."""
    fault = Fault("network", (1,), 0.2, onset=50)
    (verdict,) = judge(simulate(Scenario(ranks=ranks, steps=120, layout=layout, faults=(fault,))).run).verdicts
    assert (verdict.kind, verdict.cause) == ("slow_link", "network")
    (said,) = verdict.advice
    assert where in said


def late(cause: str, *, gpus: bool, framework: str, running: bool = False, slow: tuple[int, ...] = (2,)) -> str:
    """The advice on these ranks of 8: by default rank 2."""
    run = at(["n0"] * 8, gpus=gpus)
    ranks = {**run.ranks, "framework": np.full(8, framework), "pid": np.arange(100, 108)}
    command = "mpirun -np 8 python train.py" if framework in ("torch", "mpi4py") else "mpirun -np 8 ./solver"
    over = {} if running else {"ended_ns": 1, "exit_code": 0}
    run = with_job(replace(run, ranks=ranks), command=command, **over)
    return " ".join(advice.on(Verdict("straggler", ranks=slow, cause=cause), run).advice)


#: A deadlock is of a hang, which has its own advice.
CAUSES_OF_RANKS = [*(cause for cause in CAUSES if cause not in ("network", "deadlock")), advice.ON_HOST]


@pytest.mark.parametrize("gpus", [False, True])
@pytest.mark.parametrize("cause", CAUSES_OF_RANKS)
def test_advice_on_several_ranks_speaks_of_several(cause: str, gpus: bool) -> None:
    """No "ranks 2 and 5 reads", and nothing that is "its"."""
    run = at(["n0"] * 8, gpus=gpus)
    (said,) = advice.on(Verdict("straggler", ranks=(2, 5), cause=cause), run).advice
    assert not re.search(r"ranks 2 and 5 (reads|waits|runs|writes)|\bits\b|\bit stays\b|5's GPU\b|move it\b", said)
    assert not re.search(r"\b(GPU|link) of ranks", said)


@pytest.mark.parametrize(
    "cause", [one for one in CAUSES_OF_RANKS if one not in ("h2d", "gpu_contention", "gpu_throttle")]
)
@pytest.mark.parametrize("running", [False, True])
def test_without_gpus_advice_names_none(cause: str, running: bool) -> None:
    """A job on CPUs alone is not sent to nvidia-smi."""
    said = late(cause, gpus=False, framework="mpi4py", running=running)
    assert said
    assert "GPU" not in said
    assert "nvidia-smi" not in said


@pytest.mark.parametrize("framework", ["", "mpi", "nccl"])
@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("cause", ["compute", "unknown", "input", "cpu_contention", "io", "memory", "workload"])
def test_a_program_without_python_gets_no_python(cause: str, running: bool, framework: str) -> None:
    """A rank that is a C program has no DataLoader, and no Python stack."""
    said = late(cause, gpus=False, framework=framework, running=running)
    assert said
    assert not any(word in said for word in ("DataLoader", "hindmost.step", "hindmost attach", "python"))


@pytest.mark.parametrize("cause", ["unknown", "cpu_contention"])
def test_of_a_job_that_ended_no_process_is_named(cause: str) -> None:
    """Its PIDs are gone, or another program's: what to look at is in the next run."""
    said = late(cause, gpus=False, framework="torch")
    assert "102" not in said
    assert said.startswith("run the job again")


def test_of_several_programs_the_processes_are_named_too() -> None:
    """A job that runs gives the PIDs of its slow ranks; the PIDs of one that ended are gone."""
    said = late("unknown", gpus=False, framework="mpi", running=True, slow=(2, 5))
    assert said.endswith("`gdb -p PID` or `strace -f -p PID` (PIDs 102, 105)")
    assert "102" not in late("unknown", gpus=False, framework="mpi", slow=(2, 5))


def test_the_command_names_the_process_and_the_gpu() -> None:
    """What can be copied into a terminal is given with its arguments."""
    assert "`taskset -cp 102`" in late("cpu_contention", gpus=False, framework="torch", running=True)
    assert "`hindmost attach --stacks --pid 102`" in late("unknown", gpus=False, framework="torch", running=True)
    command = "nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE -i GPU-"
    assert command in late("gpu_throttle", gpus=True, framework="torch")
    assert "num_workers" in late("input", gpus=True, framework="torch")


@pytest.mark.parametrize(
    ("when", "said"), [({"every": 20}, f"if it saves checkpoints there, save {SAVING}"), ({}, "if that is loading")]
)
def test_off_the_cpu_a_rank_may_save_now_and_then_or_load_in_each_step(when: dict[str, int], said: str) -> None:
    """Neither was marked."""
    fault = {"rank": 2, "blocked": 70.0, **when}
    (found,) = judge(loads.make(loads.Load(ranks=4, steps=200, compute=10.0, faults=[fault]))).verdicts
    assert (found.ranks, found.cause) == ((2,), "unknown")
    assert [one.startswith(said) for one in found.advice] == [False, True]
