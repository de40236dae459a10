"""How each launcher is recognised, and how it is made to carry variables to other hosts."""

import socket
from pathlib import Path

import pytest
from hindmost_cli import launchers
from hindmost_cli.launchers import mpirun, srun

from tests.programs import shell_program
from tests.waiting import PATIENCE_S

NAMES = ["HINDMOST_JOB_ID", "PYTHONPATH"]
VERSIONS = {
    "mpirun (Open MPI) 5.0.11": "openmpi",
    "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/": "openmpi",
    "orterun (OpenRTE) 4.1.4": "openmpi",
    "prterun (PRRTE) 3.0.11": "openmpi",
    "PMIx Reference RunTime Environment 1.0": "openmpi",
    "HYDRA build details:\n    Version:                                 4.0.2": "mpich",
    "Intel(R) MPI Library for Linux* OS, Version 2021.14 Build 20241121": "intel",
    "mpiexec 1.2.9 of something else": "unknown",
}


@pytest.fixture
def fake_mpirun(tmp_path: Path):
    """Makes an mpirun that prints this for ``--version``."""
    return lambda version: str(shell_program(tmp_path / "mpirun", f"cat <<'END'\n{version}\nEND"))


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("mpirun -np 4 python train.py", "mpirun"),
        ("/opt/mpi/bin/mpiexec.hydra -n 2 ./a.out", "mpirun"),
        ("env OMP_NUM_THREADS=1 mpirun -np 4 python train.py", "mpirun"),
        ("numactl -N 0 torchrun --nproc-per-node 4 train.py", "torchrun"),
        ("python -m torch.distributed.run train.py", "torchrun"),
        ("accelerate launch train.py", "accelerate"),
        ("python3 -m horovod.runner.launch -np 2 python train.py", "horovodrun"),
        ("horovodrun -np 2 python train.py", "horovodrun"),
        ("srun -N 2 python train.py", "srun"),
        ("python mpirun.py", "python"),
        ("python train.py mpirun", "python"),
        ("bash launch.sh", "python"),
    ],
)
def test_the_launcher_of_a_command(command: str, name: str) -> None:
    """A command line belongs to the launcher that it runs, behind wrappers or not, not to one in its arguments."""
    assert name == launchers.find(command.split()).NAME


@pytest.mark.parametrize(("said", "kind"), VERSIONS.items())
def test_the_kind_of_an_mpirun(fake_mpirun, said: str, kind: str) -> None:
    """An mpirun is recognised by what it prints for --version, not by its name."""
    assert mpirun.kind([fake_mpirun(said)], {}) == kind


def test_open_mpi_gets_each_name_in_each_context(fake_mpirun) -> None:
    """Open MPI passes to other hosts only what -x names, in every application context; the rest stays as written."""
    program = fake_mpirun("mpirun (Open MPI) 5.0.11")
    argv = [program, "-np", "1", "a", "-x", ":", "-np", "3", "b"]
    added = ["-x", "HINDMOST_JOB_ID", "-x", "PYTHONPATH"]
    assert mpirun.carry(argv, NAMES, {}) == [program, *added, *argv[1:5], ":", *added, *argv[6:]]


def test_open_mpi_keeps_the_users_own_x(fake_mpirun) -> None:
    """A variable that the user passes is not passed twice; a search path with a value of theirs gets ours in front."""
    program = fake_mpirun("mpirun (Open MPI) 4.1.4")
    words = "--mca btl self -x PYTHONPATH=/theirs -x HINDMOST_JOB_ID a -x PYTHONPATH=/b"
    argv = [program, *words.split()]
    environ = {"PYTHONPATH": "/ours:/before"}
    expected = [*argv[:5], "PYTHONPATH=/ours:/theirs", *argv[6:]]
    assert mpirun.carry(argv, NAMES, environ) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-n", "2", "a", "-genvnone"], ["-n", "2", "a", "-genvnone"]),
        (["-genvnone", "-n", "2", "a"], ["-genvlist", "HINDMOST_JOB_ID,PYTHONPATH", "-n", "2", "a"]),
        (["-genvlist", "HOME", "-n", "2", "a"], ["-genvlist", "HOME,HINDMOST_JOB_ID,PYTHONPATH", "-n", "2", "a"]),
    ],
)
def test_hydra_passes_all_unless_a_list_says_which(fake_mpirun, arguments: list[str], expected: list[str]) -> None:
    """MPICH's launcher is left alone, except that a list of variables gets ours too."""
    program = fake_mpirun("HYDRA build details:")
    assert mpirun.carry([program, *arguments], NAMES, {}) == [program, *expected]


def test_an_unknown_mpirun_is_left_alone(fake_mpirun) -> None:
    """What we do not know we do not rewrite."""
    argv = [fake_mpirun("something"), "-np", "2", "a"]
    assert mpirun.carry(argv, NAMES, {}) == argv


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        (["srun", "a"], {}, ["srun", "a"]),
        (["srun", "--export=ALL,A=1", "a"], {}, ["srun", "--export=ALL,A=1", "a"]),
        (["srun", "--export=HOME", "a"], {}, ["srun", "--export=HOME,HINDMOST_JOB_ID,PYTHONPATH", "a"]),
        (["srun", "--export=NONE", "a"], {}, ["srun", "--export=HINDMOST_JOB_ID,PYTHONPATH", "a"]),
        (["srun", "--export", "HOME", "a"], {}, ["srun", "--export", "HOME,HINDMOST_JOB_ID,PYTHONPATH", "a"]),
        (["srun", "a"], {"SLURM_EXPORT_ENV": "HOME"}, ["srun", "--export=HOME,HINDMOST_JOB_ID,PYTHONPATH", "a"]),
    ],
)
def test_srun_exports_our_names_too(arguments: list[str], environ: dict[str, str], expected: list[str]) -> None:
    """srun passes everything unless a list says which; then the list gets ours."""
    assert srun.carry(arguments, NAMES, environ) == expected


def test_a_slurm_that_does_not_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside an allocation Slurm is asked for its nodes; the job starts without the answer of a busy controller."""
    shell_program(tmp_path / "sinfo", "sleep 3600 &\nwait")
    assert srun.ANSWER_S <= 2
    monkeypatch.setattr(srun, "ANSWER_S", 0.2)
    assert srun.remote_hosts(["srun", "a"], {"PATH": f"{tmp_path}:/usr/bin:/bin"}) == []
    shell_program(tmp_path / "sinfo", "echo n1\necho n2")
    monkeypatch.setattr(srun, "ANSWER_S", PATIENCE_S)
    assert srun.remote_hosts(["srun", "a"], {"PATH": f"{tmp_path}:/usr/bin:/bin"}) == ["n1", "n2"]


def test_remote_hosts_of_an_mpirun(tmp_path: Path) -> None:
    """Hosts come from --host and host files, without slots, without this machine; else from the batch allocation."""
    listed = tmp_path / "hosts"
    listed.write_text("# ours\nn1 slots=4\nn2:8\n\n")
    command = ["mpirun", "--host", f"{socket.gethostname()}:2,n7:2", "--hostfile", str(listed), "python", "-H", "no"]
    assert mpirun.remote_hosts(command, {"SLURM_JOB_NODELIST": "unused"}) == ["n7", "n1", "n2"]
    assert mpirun.remote_hosts(["mpirun", "a"], {"SLURM_JOB_NODELIST": "n[1-2]"}) == ["n1", "n2"]
    assert mpirun.remote_hosts(["mpirun", "-np", "4", "a"], {}) == []
    of_ipv6 = ["mpirun", "--host", "[2001:db8::1]:2,2001:db8::2,n3:4", "a"]
    by_rsh = ["mpirun", "-launcher", "ssh", "-launcher-exec", "/opt/rsh", "-hosts", "n1,n2:2", "a", "-hosts", "no"]
    assert mpirun.remote_hosts(by_rsh, {}) == ["n1", "n2"]
    assert mpirun.remote_hosts(of_ipv6, {}) == ["2001:db8::1", "2001:db8::2", "n3"]


@pytest.mark.parametrize(
    ("compressed", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3,07],login", ["n1", "n2", "n3", "n07", "login"]),
        ("rack[08-10]-ib", ["rack08-ib", "rack09-ib", "rack10-ib"]),
        ("", []),
    ],
)
def test_a_slurm_node_list(compressed: str, hosts: list[str]) -> None:
    """Slurm's compressed node list is expanded with its leading zeros."""
    assert launchers.expand(compressed) == hosts
