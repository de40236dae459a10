"""Where a run is kept and what it is called."""

import shlex
import socket
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hindmost.errors import HindmostError, UsageError
from hindmost_cli.run import environment


@pytest.mark.parametrize(
    ("command", "environ", "start"),
    [
        ("mpirun -np 4 python examples/train_mpi.py --steps 3", {}, "train_mpi-"),
        ("horovodrun --host-discovery-script hosts.sh python train.py", {}, "train-"),
        ("./a.out", {}, "a-"),
        ("python -m pkg.train --config a.py", {}, "pkg-train-"),
        ("python 'my job.py'", {}, "my-job-"),
        ("srun a", {"SLURM_JOB_ID": "4711"}, "4711-"),
        ("srun sh -c 'RANK=$SLURM_PROCID exec python train.py --steps 3'", {}, "train-"),
        ("sh -c 'for i in 0 1; do RANK=$i python a/train.py& done; wait'", {}, "train-"),
        ("sh -c 'RANK=0 ./a.out'", {}, "sh-"),
        ("bash -c true", {"PBS_JOBID": "12.head.example"}, "12-head-example-"),
    ],
)
def test_a_job_is_called_after_its_script_or_batch_job(command: str, environ: dict[str, str], start: str) -> None:
    """A job that is given no id gets one that a person recognises and that is a file name and a label."""
    found = environment.job_id(None, shlex.split(command), environ)
    assert found.startswith(start)
    assert environment.JOB_ID.fullmatch(found)


@pytest.mark.parametrize("asked", ["", "a b", "../x", "-x", "x" * 64])
def test_an_impossible_job_id_is_refused(asked: str) -> None:
    """An id that cannot be a file name and a ring's 63 bytes is refused by name."""
    with pytest.raises(UsageError, match="--job-id"):
        environment.job_id(asked, ["a"], {})


def test_the_run_directory_is_the_one_asked_for(tmp_path: Path) -> None:
    """A directory that can be written is made, with its parents, and nothing is said."""
    assert environment.run_directory(tmp_path / "a" / "b", "job") == (tmp_path / "a" / "b", None)
    assert (tmp_path / "a" / "b" / "logs").is_dir()


@pytest.mark.parametrize("trouble", ["file", "holds a run"])
def test_a_useless_directory_loses_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    """A run whose directory cannot be used is kept elsewhere, and one sentence says why and where."""
    monkeypatch.setattr(environment.tempfile, "tempdir", str(tmp_path))
    wanted = tmp_path / "out"
    if trouble == "file":
        wanted.write_text("in the way")
    else:
        (wanted / "segments").mkdir(parents=True)
    found, note = environment.run_directory(wanted, "job")
    assert found.is_dir()
    assert found != wanted
    assert note is not None
    why = "File exists" if trouble == "file" else "contains a run"
    assert note == f"{wanted}: {why}; recording into {found}"


def test_a_full_disk_leaves_nothing_that_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where the run was to be nor in the temporary directory; a folder that was there stays."""
    monkeypatch.setattr(environment.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(environment, "ROOM", 1 << 60)
    (tmp_path / "mine").mkdir()
    with pytest.raises(HindmostError, match=f"runs/job: .*; {tmp_path}: "):
        environment.run_directory(tmp_path / "mine/runs/job", "job")
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


def test_other_files_of_a_directory_stay_as_they_are(tmp_path: Path) -> None:
    """A run's report.html does not replace the one that is there; the run is next to it."""
    (tmp_path / "report.html").write_text("mine")
    found, note = environment.run_directory(tmp_path, "job")
    assert found == tmp_path / "job"
    assert note == f"{tmp_path}: contains other files; recording into {found}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job", "report.html"]


def test_rings_of_another_user_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring directory that another user made in our name is not trusted."""
    monkeypatch.setattr(environment.os, "getuid", lambda: 12345)
    with pytest.raises(HindmostError, match="belongs to user"):
        environment.ring_directory("job", tmp_path)


def test_rings_are_ours_alone(tmp_path: Path) -> None:
    """Ring directories are for one user; what is left is removed, and another job's rings stay."""
    one, two = environment.ring_directory("one", tmp_path), environment.ring_directory("two", tmp_path)
    assert one.stat().st_mode & 0o077 == 0
    (one / "agent.lock").touch()
    environment.remove_rings(one)
    assert not one.exists()
    assert two.exists()


def test_nothing_of_the_users_environment_is_lost(tmp_path: Path) -> None:
    """Search paths keep what the user had, behind ours, once; so does NCCL's one slot for a profiler."""
    theirs = {"PYTHONPATH": "/a:/b", "LD_PRELOAD": "/x.so", "NCCL_PROFILER_PLUGIN": "theirs"}
    libraries = {"pmpi": tmp_path / "p.so", "nccl": tmp_path / "n.so"}

    def ours(environ: dict[str, str]) -> dict[str, str]:
        return environment.variables(
            environ, job="j", rings=tmp_path, collector="h:1", launcher="mpirun", native=libraries
        )

    once = ours(theirs)
    assert once["PYTHONPATH"] == f"{environment.INJECT}:/a:/b"
    assert once["LD_PRELOAD"] == f"{tmp_path / 'p.so'}:/x.so"
    assert (once["NCCL_PROFILER_PLUGIN"], once["HINDMOST_NCCL_NEXT"]) == (str(tmp_path / "n.so"), "theirs")
    assert ours({**theirs, **once}) == once
    assert ours({**theirs, **once, "NCCL_PROFILER_PLUGIN": "another"})["HINDMOST_NCCL_NEXT"] == "another"


def test_what_a_cluster_proves_to_its_own_collector_is_not_proved_to_this_one() -> None:
    """A task prolog gives each job authority and token, with which no agent of a run reaches the run's collector."""
    names = ("TLS_CA", "TLS_CERT", "TLS_KEY", "TOKEN", "TOKEN_FILE", "FINGERPRINT")
    theirs = {f"HINDMOST_{name}": "x" for name in names}
    assert environment.without_credentials({"HINDMOST_PROBE": "1", **theirs}) == {"HINDMOST_PROBE": "1"}


def test_ranks_on_other_hosts_learn_what_all_pods_of_the_job_share(tmp_path: Path) -> None:
    """The namespace, what made them and the queue; the launcher's own name is not that of the workers."""
    shared = {"HINDMOST_POD_NAMESPACE": "a", "HINDMOST_WORKLOAD": "MPIJob/train", "HINDMOST_QUEUE": "gold"}
    environ = {**shared, "HINDMOST_POD_NAME": "train-launcher", "HINDMOST_POD_UID": "u"}
    ours = environment.variables(environ, job="j", rings=tmp_path, collector="h:1", launcher="mpirun", native={})
    assert {name: value for name, value in ours.items() if name in environ} == shared


@pytest.mark.parametrize(("theirs", "said"), [("none", 1), ("None", 1), ("", 0), ("mine.so", 0)])
def test_a_profiler_can_be_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: str, said: int) -> None:
    """``NCCL_PROFILER_PLUGIN=none`` stays, and a sentence says what is lost by it."""
    monkeypatch.setattr(environment.build, "library", lambda kind, *_: tmp_path / kind)
    environ = {"NCCL_PROFILER_PLUGIN": theirs}
    native, notes = environment.native_libraries(["nccl", "ring"], environ, tmp_path)
    ours = environment.variables(environ, job="j", rings=tmp_path, collector="h:1", launcher="torchrun", native=native)
    assert len(notes) == said
    assert all(f"NCCL_PROFILER_PLUGIN={theirs}; unset it" in note for note in notes)
    assert ("NCCL_PROFILER_PLUGIN" in ours) == (not said)


def test_without_a_compiler_all_that_is_lost_is_listed_at_once(tmp_path: Path) -> None:
    """What is not seen and what costs more, in one sentence, with the one reason and its remedy."""
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    found, (note,) = environment.native_libraries(["pmpi", "nccl", "ring"], environ, tmp_path)
    assert found == {}
    assert all(what in note for what in environment.MISSING.values())
    assert "run in Python, which slows steps more" in note
    assert note.count("there is no C compiler") == 1


def test_loopback_unless_another_host_is_named() -> None:
    """Agents get the loopback address where every rank is here, or where no named host is known."""
    assert environment.address([]) == "127.0.0.1"
    assert environment.address(["no-such-host.invalid"]) == "127.0.0.1"


class Routes(socket.socket):
    """Datagram sockets of a host that reaches others by these addresses alone."""

    own: ClassVar[dict[socket.AddressFamily, str]] = {}

    def connect(self, address: Any) -> None:
        if self.family not in self.own:
            raise socket.gaierror(socket.EAI_ADDRFAMILY, "no address of this family")

    def getsockname(self) -> Any:
        return self.own[socket.AddressFamily(self.family)], 9


@pytest.mark.parametrize(
    ("own", "address"),
    [
        ({socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}, "192.0.2.1"),
        ({socket.AF_INET6: "2001:db8::1"}, "2001:db8::1"),
        ({socket.AF_INET: "127.0.1.1", socket.AF_INET6: "2001:db8::1"}, "2001:db8::1"),
        ({socket.AF_INET6: "fe80::1%eth0"}, "127.0.0.1"),
    ],
)
def test_agents_elsewhere_get_the_address_on_the_way_to_them(
    monkeypatch: pytest.MonkeyPatch, own: dict[socket.AddressFamily, str], address: str
) -> None:
    """Of IPv6 where there is none of IPv4; never one that has no meaning on another host."""
    monkeypatch.setattr(Routes, "own", own)
    monkeypatch.setattr(socket, "socket", Routes)
    assert environment.address(["node7"]) == address


def test_an_unusable_listen_address_is_named() -> None:
    """A port in use and a host that is none are each named by the option that asked for them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(HindmostError, match=f"--listen {taken}: Address already in use"):
            environment.must_be_free(taken)
    with pytest.raises(HindmostError, match="no such host"):
        environment.must_be_free("no-such-host.invalid:1")
    environment.must_be_free("127.0.0.1:0")
