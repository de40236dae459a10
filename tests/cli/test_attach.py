"""Looking into running processes: whom, by what, and how sure. test_attach_live.py looks into real ones."""

import dataclasses
import os
import sys
from pathlib import Path

import pytest
from hindmost import ring
from hindmost.errors import HindmostError, UsageError
from hindmost.identity import Identity
from hindmost_agent import stacks
from hindmost_cli.attach import phases as sampling
from hindmost_cli.attach import phases as table
from hindmost_cli.attach import target
from hindmost_cli.attach.injected import Folded
from hindmost_cli.attach.phases import Frame, Shares

from tests.commands import Says
from tests.ring_records import Tables


def stack(*files: str) -> list[Frame]:
    return [Frame("function", file, 1) for file in files]


@pytest.mark.parametrize(
    ("files", "phase"),
    [
        (("train.py", "torch/utils/data/dataloader.py", "torch/nn/modules/module.py"), "input"),
        (("train.py", "torch/nn/modules/module.py", "torch/nn/modules/linear.py"), "forward"),
        (("train.py", "torch/_tensor.py", "torch/autograd/graph.py"), "backward"),
        (("train.py", "torch/nn/parallel/distributed.py", "torch/distributed/distributed_c10d.py"), "comm"),
        (("train.py", "torch/optim/optimizer.py", "torch/nn/modules/module.py"), "forward"),
        (("train.py", "torch/optim/optimizer.py", "torch/optim/adam.py"), "optimizer"),
        (("train.py", "torch/serialization.py"), "checkpoint"),
        (("train.py", "horovod/torch/mpi_ops.py"), "comm"),
        (("train.py",), "other"),
        (("train.py", "<frozen importlib._bootstrap>", "torch/__init__.py", "torch/_dynamo/__init__.py"), "other"),
        (("train.py", "torch/_dynamo/eval_frame.py"), "forward"),
    ],
)
def test_a_stack_is_in_one_phase(files: tuple[str, ...], phase: str) -> None:
    """The loader anywhere means input; else the innermost frame that is known decides."""
    assert sampling.classify(stack(*files)) == phase


@pytest.mark.parametrize(
    ("line", "phase"),
    [("comm.Allreduce(a, b)", "comm"), ("x = comm.bcast(x, root=0)", "comm"), ("y = numpy.add.reduceat(x)", "other")],
)
def test_a_c_function_is_known_by_the_line_that_calls_it(tmp_path: Path, line: str, phase: str) -> None:
    """mpi4py's calls have no frame: the source line of the innermost frame tells."""
    (tmp_path / "train.py").write_text(f"\n{line}\n")
    assert sampling.classify([Frame("train", str(tmp_path / "train.py"), 2)]) == phase


def test_only_the_main_thread_counts() -> None:
    """Other threads' samples are left out, a main thread without a name is not."""
    seen = sampling.shares(
        [
            "thread (7): MainThread;train (train.py:1);forward (/x/torch/nn/modules/module.py:5) 3",
            "thread (8): Thread-1;pin (/x/torch/utils/data/_utils/pin_memory.py:5) 90",
            "thread (7);train (train.py:1) 1",
        ]
    )
    assert seen.samples == 4
    assert seen.share["forward"] == 0.75


def test_the_error_shrinks_with_the_samples_and_is_never_nothing() -> None:
    """Half of a share's interval falls with the root of the samples, and 0 of n is not surely 0."""
    hundred, many = Shares({"input": 0.5}, 100), Shares({"input": 0.5}, 10_000)
    assert 0.09 < hundred.error("input") < 0.11
    assert 9 < hundred.error("input") / many.error("input") < 11
    assert hundred.error("comm") > 0.01
    assert Shares({"input": 0.5}, 0).error("input") == 0.0


def rank(number: int) -> target.Target:
    return target.Target(100 + number, number, 3, "train.py", "/usr/bin/python3", 12)


def share(samples: int = 1000, **phases: float) -> Shares:
    return Shares({phase: phases.get(phase, 0.0) for phase in sampling.PHASES}, samples)


def test_the_rank_that_does_more_of_its_own_stands_out() -> None:
    """The largest extra time against the others' median is named with its phase, not the waiting of the others."""
    ranks = [rank(0), rank(1), rank(2)]
    seen = [share(input=0.1, comm=0.6), share(input=0.5, comm=0.1), share(input=0.12, comm=0.6)]
    excess = table.largest_excess(ranks, seen)
    assert excess is not None
    assert (excess.rank, excess.phase) == (1, "input")
    assert "rank 1 stands out: 50 ± 3 % of its time is input, the others' median 11 %" in table.render(
        ranks, seen, "sampled", 10
    )


@pytest.mark.parametrize("ranks", [1, 3])
def test_where_phases_say_no_more_than_other_the_command_for_lines_is_given(ranks: int) -> None:
    """A loop that marks no phases is all `other`: its stacks show where it is."""
    seen = [share(other=1.0), share(other=0.8, comm=0.2), share(other=0.8, comm=0.2)][:ranks]
    shown = table.render([rank(number) for number in range(ranks)], seen, "sampled", 10)
    assert "its lines: `hindmost attach --stacks --pid 100`" in shown


def test_a_stopped_rank_is_named_with_what_lets_it_go_on() -> None:
    """All ranks are in a collective then, and none stands out by its phases."""
    ranks = [rank(0), dataclasses.replace(rank(1), stopped=True)]
    shown = table.render(ranks, [share(comm=1.0), share(comm=1.0)], "sampled", 10)
    assert "rank 1 is stopped by a signal: `kill -CONT 101` lets it go on" in shown
    assert "no rank stands out" not in shown


def test_a_lone_rank_leads_to_its_launcher() -> None:
    """All ranks of a launcher can be compared."""
    shown = table.render([rank(0)], [share(forward=1.0)], "sampled", 10, 4711)
    assert "no other rank to compare with\n`hindmost attach 4711`, its launcher, compares all ranks\n" in shown


def test_a_bare_number_is_a_pid(says: Says) -> None:
    """Also after an option. Two ways to say which process are an error."""
    for words in (["4194399"], ["--seconds", "3", "4194399"], ["4194399", "--stacks"]):
        assert "--pid 4194399: there is no such process" in says(2, ["attach", *words]).err
    assert "not allowed with argument" in says(2, ["attach", "4194399", "--job", "a"]).err


def test_a_rank_that_stays_at_one_line_of_no_phase_is_reported_with_it() -> None:
    """Where its peers wait for it, that line is what they wait for."""
    waits = "thread (7): MainThread;<module> (/x/train.py:8);allreduce (/x/mpi4py/MPI.py:1) 90"
    seen = [sampling.shares([waits]), sampling.shares(["thread (7): MainThread;<module> (/x/train.py:7) 90"])]
    seen = [seen[0]._replace(share={**seen[0].share, "other": 0.0, "comm": 1.0}), seen[1]]
    shown = table.render([rank(0), rank(1)], seen, "sampled", 10)
    assert "% of its time is in no phase, mostly at train.py:7, the others' median 0 %" in shown


def test_what_sampling_can_produce_is_not_named() -> None:
    """With few samples the same difference is noise, and no rank stands out."""
    ranks = [rank(0), rank(1), rank(2)]
    seen = [share(20, input=0.2), share(20, input=0.4), share(20, input=0.2)]
    assert table.largest_excess(ranks, seen) is None
    said = table.render(ranks, seen, "sampled", 1)
    assert "no rank stands out" in said
    assert "start the job with `hindmost run -- COMMAND`" in said


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_that_are_still_starting_are_not_said_to_be_alike(ranks: int) -> None:
    """Where samples show hardly any phase of training, nothing is known of who is slow, and that is said."""
    targets = [rank(number) for number in range(ranks)]
    starting = [share(100, other=0.98, comm=0.02), share(100, other=1.0)][:ranks]
    said = table.render(targets, starting, "sampled", 1)
    assert "these samples show no training" in said
    assert "--seconds" in said
    assert "no rank stands out" not in said
    training = [share(100, other=0.9, forward=0.1)] * ranks
    assert "these samples show no training" not in table.render(targets, training, "sampled", 1)
    measured = [share(0, other=0.98, comm=0.02)] * ranks
    assert "these samples show no training" not in table.render(targets, measured, table.MEASURED, 1)


def test_what_was_not_seen_is_null() -> None:
    """A process without samples has no shares, and JSON says null."""
    report = table.to_dict([rank(0)], [Shares({}, 0)], "sampled", 1)
    assert report["ranks"][0]["phases"]["input"] == {"share": None, "error": None}
    assert report["stands_out"] is None


def test_nested_phases_are_counted_once() -> None:
    """Of a ring's inclusive phases each keeps what nothing inside it took; measures are no time."""
    folded, tables = Folded(), Tables()
    named = {"kind": ring.PHASE, "flags": 0, "seq": 0, "peer": -1, "comm_id": 0, "value": 0}
    events = [
        ring.Event(name="input", start_ns=0, duration_ns=20, **named),
        ring.Event(name="sync", start_ns=50, duration_ns=30, **named),
        ring.Event(name="backward", start_ns=40, duration_ns=40, **named),
        ring.Event(name="cpu", start_ns=0, duration_ns=400, **named),
        ring.Event(ring.STEP, 0, "train", 0, 100, 1, -1, 0, 0),
    ]
    folded.add(tables.block(events), tables)
    seen = folded.shares().share
    assert (seen["input"], seen["comm"], seen["backward"], seen["other"]) == pytest.approx((0.2, 0.3, 0.1, 0.4))


def test_phases_between_steps_count_too() -> None:
    """From the first step on, without what is nested in them, and once, however the records come."""
    folded, tables = Folded(), Tables()
    phase = {"kind": ring.PHASE, "flags": 0, "seq": 0, "peer": -1, "comm_id": 0, "value": 0}
    for event in [
        ring.Event(name="checkpoint", start_ns=0, duration_ns=100, **phase),
        ring.Event(ring.STEP, 0, "train", 100, 100, 1, -1, 0, 0),
        ring.Event(name="sync", start_ns=300, duration_ns=200, **phase),
        ring.Event(name="checkpoint", start_ns=200, duration_ns=700, **phase),
        ring.Event(ring.STEP, 0, "train", 1000, 100, 2, -1, 0, 0),
    ]:
        folded.add(tables.block([event]), tables)
    seen = folded.shares().share
    assert (seen["checkpoint"], seen["comm"], seen["other"]) == pytest.approx((0.5, 0.2, 0.3))


def test_other_processes_are_refused_by_name(tmp_path: Path) -> None:
    """No such process, another user's, and one that runs no Python: each refusal says which and why."""
    with pytest.raises(UsageError, match="there is no such process"):
        target.by_pid(7, tmp_path)
    (tmp_path / "7").mkdir()
    for name, content in (("environ", b"A=1\0"), ("cmdline", b"sleep\x0060\0"), ("maps", b"/usr/lib/libc.so.6\n")):
        (tmp_path / "7" / name).write_bytes(content)
    (tmp_path / "7" / "exe").symlink_to("/usr/bin/sleep")
    with pytest.raises(UsageError, match="neither it nor a process that it started runs a Python 3"):
        target.by_pid(7, tmp_path)
    with pytest.raises(UsageError, match=r"^--job 99: no rank of yours .*; give --pid$"):
        target.by_job("99", tmp_path)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PermissionError(13, "Permission denied"), r"cannot be read \(Permission denied\): .*CAP_SYS_PTRACE"),
        (ProcessLookupError(3, "No such process"), "there is no such process"),
        (OSError(5, "Input/output error"), r"cannot be read \(Input/output error\)$"),
    ],
)
def test_unreadable_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, says: str) -> None:
    """The kernel keeps some processes from root too, such as a container's first: the refusal is quoted."""
    (tmp_path / "7").mkdir()

    def refused(_: Path) -> bytes:
        raise error

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(UsageError, match=says):
        target.by_pid(7, tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a process of another user")
def test_another_users_process_is_refused(tmp_path: Path) -> None:
    """Even root looks into its own processes only."""
    (tmp_path / "7").mkdir()
    os.chown(tmp_path / "7", 12345, -1)
    with pytest.raises(UsageError, match="belongs to user 12345"):
        target.by_pid(7, tmp_path)


def test_a_jobs_ranks_are_found_by_its_name(tmp_path: Path) -> None:
    """Ranks of the job are found in order; its launcher, its workers and other jobs are not."""
    job = b"SLURM_JOB_ID=42\0SLURM_STEP_ID=0\0SLURM_PROCID=%d\0SLURM_STEP_NUM_TASKS=2\0"
    processes = {
        10: (job % 1, b"python\0train.py\0"),
        11: (job % 0, b"python\0train.py\0"),
        12: (job % 0, b"python\0-m\0torch.distributed.run\0train.py\0"),
        13: (job % 0, b"python\0-c\0from multiprocessing.spawn import spawn_main\0"),
        14: (b"SLURM_JOB_ID=43\0PMIX_NAMESPACE=prterun-7@1\0RANK=0\0", b"python\0train.py\0"),
        15: (b"SLURM_JOB_ID=42\0", b"bash\0"),
    }
    for pid, (environ, cmdline) in processes.items():
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "environ").write_bytes(environ)
        (folder / "cmdline").write_bytes(cmdline)
        (folder / "exe").symlink_to("/usr/bin/python3.12")
    found = target.by_job("42", tmp_path)
    assert [(one.rank, one.pid, one.world_size, one.minor) for one in found] == [(0, 11, 2, 12), (1, 10, 2, 12)]
    with pytest.raises(UsageError, match=r"--job 41: no rank of yours .*; give one of 42, 43, or --pid$"):
        target.by_job("41", tmp_path)


@pytest.mark.parametrize("stacks", [True, False])
def test_a_compiled_program(monkeypatch: pytest.MonkeyPatch, says: Says, stacks: bool) -> None:
    """It has no Python stacks and no phases: where these are asked for, the remedy is what can be seen."""
    monkeypatch.setattr(target, "by_job", lambda job: [dataclasses.replace(rank(1), minor=target.COMPILED)])
    monkeypatch.setattr(target, "pending", lambda pid: ["waits for 7.0 s in allreduce number 3"])
    said = says((0 if stacks else 2), ["attach", "--job=42", *["--stacks"] * stacks])
    assert "`gdb -p 101 -batch" in said.out if stacks else "`hindmost attach --stacks --job 42`" in said.err
    assert ("allreduce number 3" in said.out) == stacks
    assert ("of a `hindmost run`" in said.err) != stacks  # of others no call is recorded


RANK = b"RANK=%d\0WORLD_SIZE=2\0TORCHELASTIC_RUN_ID=x\0"
#: pid: parent, environment, command line, binary.
LAUNCHED = {
    1: (0, b"", b"init\0", "init"),
    10: (1, b"", b"bash\0job.sh\0", "bash"),
    11: (10, b"", b"python\0-m\0torch.distributed.run\0train.py\0", "python3.12"),
    12: (11, RANK % 1, b"python\0train.py\0", "python3.12"),
    13: (11, RANK % 0, b"numactl\0python\0train.py\0", "numactl"),
    14: (13, RANK % 0, b"python\0train.py\0", "python3.12"),
    15: (14, RANK % 0, b"python\0-c\0from multiprocessing.spawn import spawn_main\0", "python3.12"),
    16: (14, RANK % 0, b"python\0tokenize.py\0", "python3.12"),
    17: (11, b"", b"python\0watch.py\0", "python3.12"),
    20: (1, b"", b"bash\0one.sh\0", "bash"),
    21: (20, b"", b"python\0train.py\0", "python3.12"),
    30: (1, b"", b"mpirun\0-np\x002\0solver\0", "mpirun"),
    31: (30, b"OMPI_COMM_WORLD_RANK=0\0", b"solver\0", "solver"),
    40: (1, b"", b"python\0/v/bin/torchrun\0train.py\0", "python3.12"),
    50: (1, b"", b"bash\0", "bash"),
    51: (50, b"", b"python\0/v/bin/hindmost\0run\0--\0python\0one.py\0", "python3.12"),
    52: (51, b"", b"python\0-m\0hindmost\0collector\0", "python3.12"),
    53: (51, b"", b"python\0-m\0hindmost\0agent\0", "python3.12"),
    54: (51, b"", b"python\0one.py\0", "python3.12"),
    60: (1, b"", b"prterun\0-np\x002\0stencil\0", "prterun"),
    61: (60, b"OMPI_COMM_WORLD_RANK=1\0OMPI_COMM_WORLD_SIZE=2\0", b"bash\0run.sh\0", "bash"),
    62: (61, b"OMPI_COMM_WORLD_RANK=1\0OMPI_COMM_WORLD_SIZE=2\0", b"stencil\0", "stencil"),
}


@pytest.mark.parametrize(
    ("pids", "found"),
    [
        ([11], [(0, 14), (1, 12)]),
        ([10], [(0, 14), (1, 12)]),
        ([12], [(1, 12)]),
        ([13], [(0, 14)]),
        ([17], [(-1, 17)]),
        ([20], [(-1, 21)]),
        ([50], [(-1, 54)]),
        ([12, 11, 14], [(1, 12), (0, 14)]),
        ([60], [(1, 62)]),
    ],
)
def test_ranks_below_a_launcher_are_looked_into(tmp_path: Path, pids: list[int], found: list[tuple[int, int]]) -> None:
    """--pid of torchrun, mpirun, or a shell that starts one: its ranks, and nothing that those start."""
    for pid, (parent, environ, cmdline, binary) in LAUNCHED.items():
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "stat").write_text(f"{pid} (a) b) S {parent} 0 0")
        (folder / "environ").write_bytes(environ)
        (folder / "cmdline").write_bytes(cmdline)
        (folder / "maps").write_text("/usr/lib/libmpi.so.40\n" if binary == "stencil" else "")
        (folder / "exe").symlink_to(f"/usr/bin/{binary}")
    assert [(one.rank, one.pid) for one in target.by_pids(pids, tmp_path)] == found
    assert target.launcher(12, tmp_path) == target.launcher(14, tmp_path) == 11
    assert not target.by_pid(12, tmp_path)[0].stopped
    (tmp_path / "12/stat").write_text("12 (a) T 11 0 0")
    assert target.by_pid(12, tmp_path)[0].stopped
    with pytest.raises(UsageError, match="--pid 30: neither it nor a process that it started"):
        target.by_pid(30, tmp_path)
    with pytest.raises(UsageError, match="--pid 40: this launcher has started no rank yet"):
        target.by_pid(40, tmp_path)
    with pytest.raises(UsageError, match="--pid 52: hindmost's own collector; give the PID of a rank"):
        target.by_pid(52, tmp_path)


@pytest.mark.parametrize(("tracer", "who"), [(4711, "process 4711"), (0, "a process that is not seen from here")])
def test_a_debugger_that_holds_a_rank_is_named(tmp_path: Path, tracer: int, who: str) -> None:
    """SIGCONT lets no such rank go on."""
    for name, content in {
        "stat": "7 (a) t 1 0 0",
        "environ": "",
        "cmdline": "x",
        "maps": "/usr/lib/libmpi.so.40",
    }.items():
        (tmp_path / "7").mkdir(exist_ok=True)
        (tmp_path / "7" / name).write_text(content)
    (tmp_path / "7/status").write_text(f"Name:\tx\nTracerPid:\t{tracer}\n")
    (found,) = target.by_pid(7, tmp_path)
    assert found.stopped
    assert found.stop() == f"process 7 is stopped by a debugger, {who}: detach the debugger"


def test_what_a_rank_waits_in_is_read_from_its_rings(tmp_path: Path) -> None:
    """A rank's open collective is said with number, communicator and age; without a ring there is nothing to say."""
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "environ").write_bytes(f"HINDMOST_RING_DIR={tmp_path}\0".encode())
    who = Identity("job", 1, 2, 1, "node", "python", "train.py")
    writer = ring.Writer.create(tmp_path, who, "py")
    comm = writer.communicator(0xABC, 1, 2, "world")
    writer.enter(0, ring.COLLECTIVE, writer.name("all_reduce"), 1_000_000_000, seq=41, comm=comm)
    writer.enter(1, ring.PHASE, writer.name("forward"), 500_000_000)
    (made,) = tmp_path.glob("*.ring")
    made.rename(tmp_path / "1.py.7.ring")
    assert target.pending(7, tmp_path, now_ns=3_500_000_000) == [
        "waits for 2.5 s in all_reduce number 41 of communicator 0xabc"
    ]
    (folder / "environ").write_bytes(b"A=1\0")
    assert target.pending(7, tmp_path) == []
    assert target.pending(8, tmp_path) == []


def test_py_spy_is_found_where_it_was_installed_as_a_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``pip install --target DIR`` puts programs into DIR/bin, which is not on the PATH; PYTHONPATH names DIR."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "site")])
    with pytest.raises(HindmostError, match="not installed"):
        stacks.py_spy()
    program = tmp_path / "site/bin/py-spy"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    assert stacks.py_spy() == str(program)
