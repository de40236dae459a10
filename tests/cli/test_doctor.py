"""``hindmost doctor`` tells what is seen, what is not, and never fails."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hindmost import requirements
from hindmost.native import build
from hindmost_agent import stacks
from hindmost_cli import doctor, main
from hindmost_cli.doctor import Finding, Machine

from tests.commands import Says
from tests.programs import shell_program

STATES = {"yes", "part", "no"}
KFD = "sys/class/kfd/kfd/topology/nodes"
_PROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text()
#: The extras as the project declares them, each line of which is one requirement.
EXTRAS = {
    extra: re.findall(r'"([^"]+)"', re.search(rf"(?ms)^{extra} = \[(.*?)\]", _PROJECT)[1])  # type: ignore[index]
    for extra in ("agent", "collector")
}


def applies(requirement: str) -> bool:
    """Whether this interpreter needs it: tomli is in the standard library from 3.11 on."""
    return "python_version" not in requirement or sys.version_info < (3, 11)


@pytest.fixture
def bare(tmp_path: Path) -> Machine:
    """A machine without anything: no /proc, no programs."""
    return Machine(root=tmp_path, environ={"PATH": str(tmp_path)})


def write(machine: Machine, path: str, text: str) -> None:
    """Put a file below the machine's root."""
    file = machine.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def without_py_spy(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where neither the interpreter nor the modules have a py-spy."""
    monkeypatch.setattr(sys, "executable", str(machine.root / "python"))
    monkeypatch.setattr(sys, "path", [one for one in sys.path if not Path(one, "bin/py-spy").exists()])


def test_a_bare_machine_is_described(bare: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be seen every check still answers, and says what is lost by it."""
    without_py_spy(bare, monkeypatch)
    findings = doctor.examine(bare)
    assert list(findings) == list(doctor.CHECKS)
    assert {finding.state for finding in findings.values()} <= STATES
    unseen = ("mpi", "compiler", "gpu", "shared memory", "cgroup", "pressure", "run queue", "stacks")
    if sys.version_info >= (3, 14):
        unseen = unseen[:-1]
    for name in unseen:
        assert findings[name].state == "no", name
        assert findings[name].lost, name


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python needs no py-spy")
def test_py_spy_is_found_where_attach_finds_it(bare: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """``pip install --target DIR`` puts it outside the PATH; attach runs it all the same, and doctor says so."""
    without_py_spy(bare, monkeypatch)
    monkeypatch.setattr(sys, "path", [*sys.path, str(bare.root / "site")])
    program = bare.root / "site/bin/py-spy"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    assert stacks.py_spy(str(bare.root)) == str(program)
    assert doctor.stacks(bare).state == "yes"


def test_a_check_that_fails_is_an_answer(bare: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that raises is reported as not found out, by the error's own words."""

    def broken(_: Machine) -> None:
        raise RuntimeError("struck by lightning")

    monkeypatch.setattr(doctor, "CHECKS", {"gpu": broken})
    assert "struck by lightning" in doctor.examine(bare)["gpu"].found


@pytest.mark.parametrize(
    ("check", "files", "state", "says"),
    [
        (doctor.cgroup, {"sys/fs/cgroup/cgroup.controllers": "cpu"}, "yes", "v2, no limit"),
        (
            doctor.cgroup,
            {
                "sys/fs/cgroup/cgroup.controllers": "cpu",
                "proc/self/cgroup": "0::/job\n",
                "sys/fs/cgroup/job/cpu.max": "200000 100000\n",
            },
            "yes",
            "cpu 200000 100000",
        ),
        (doctor.cgroup, {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n"}, "yes", "CPU quota 50000 us"),
        (doctor.pressure, {"proc/pressure/cpu": "some avg10=0.00"}, "yes", "pressure"),
        (doctor.run_queue, {"proc/self/schedstat": "12 3 4\n"}, "yes", "run-queue"),
        (doctor.run_queue, {"proc/self/schedstat": "0 0 0\n"}, "no", "is empty"),
    ],
)
def test_what_files_say(
    bare: Machine, check: Callable[[Machine], doctor.Finding], files: dict[str, str], state: str, says: str
) -> None:
    """Each check reads the kernel's own files, below the root it is given."""
    for path, text in files.items():
        write(bare, path, text)
    finding = check(bare)
    assert finding.state == state
    assert says in finding.found


@pytest.mark.parametrize(
    ("said", "state", "names"),
    [("mpirun (Open MPI) 4.1.4", "yes", "Open MPI 4.1.4"), ("what is --version?", "part", "unknown kind")],
)
def test_the_kind_of_mpi_is_named(bare: Machine, said: str, state: str, names: str) -> None:
    """The MPI on PATH is named with its version; one of unknown kind says what that costs."""
    shell_program(bare.root / "mpirun", f"echo '{said}'")
    finding = doctor.mpi(bare)
    assert (finding.state, names in finding.found) == (state, True)


def test_python_without_mpi4py_is_named_with_effect_and_remedy(bare: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled programs need it not, so that it is no failure of MPI."""
    monkeypatch.setattr(Machine, "versions", lambda *_: {})
    shell_program(bare.root / "mpirun", "echo 'mpirun (Open MPI) 5.0.8'")
    finding = doctor.mpi(bare)
    assert (finding.state, finding.remedy) == ("part", "pip install mpi4py")
    assert "no mpi4py" in finding.found
    assert "Python" in finding.lost


def test_an_interpreter_that_is_too_old(bare: Machine) -> None:
    """Jobs of an interpreter that the probe does not support are said to be invisible."""
    old = shell_program(bare.root / "python", "echo 3.6.8")
    finding = doctor.python(Machine(root=bare.root, python=str(old), environ=bare.environ))
    assert finding.state == "no"
    assert "3.6.8" in finding.found


@pytest.mark.parametrize(
    ("says", "cc", "state", "found"),
    [
        ("True", True, "yes", "in C"),
        ("False", True, "part", "with the GIL"),
        ("True", False, "part", "there is no C compiler"),
    ],
)
def test_where_hooks_run_in_python_is_said(bare: Machine, says: str, cc: bool, state: str, found: str) -> None:
    """In C they serve any CPython that has the GIL, where there is a compiler; the slower twin's cost is stated."""
    python = bare.root / "python"
    for program in [python, bare.root / "cc"][: 1 + cc]:
        shell_program(program, f"echo {says}")
    finding = doctor.hooks(Machine(root=bare.root, python=str(python), environ=bare.environ))
    assert (finding.state, found in finding.found) == (state, True)
    assert ("ten times" in finding.lost) is (state == "part")


@pytest.mark.parametrize("extra", ["agent", "collector"])
def test_every_requirement_of_a_part_is_checked(bare: Machine, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever distribution of an extra is missing, doctor names it and the command that installs it."""
    here = {one.name for one in requirements.required(extra)}
    assert here == {re.match(r"[\w-]+", line)[0] for line in EXTRAS[extra] if applies(line)}  # type: ignore[index]
    check = getattr(doctor, extra)
    monkeypatch.setattr(Machine, "ask", lambda *_: "")  # it can be loaded all the same
    for name in here:
        monkeypatch.setattr(requirements, "installed", lambda asked, gone=name: "" if asked == gone else "999")
        finding = check(bare)
        assert (finding.state, finding.found) == ("part", f"{name} is not installed")
        assert f"-m pip install '{name}" in finding.remedy


def test_a_requirement_that_is_too_old_is_named(bare: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version below the least that the metadata allows is no match, whatever its digits sort like."""
    monkeypatch.setattr(requirements, "installed", lambda name: "1.9.2" if name == "grpcio" else "999")
    assert doctor.collector(bare).found.startswith("grpcio 1.9.2 is older than 1.")


def test_a_part_that_cannot_be_loaded_is_not_complete(bare: Machine) -> None:
    """All is installed, and importing fails: the error is the finding."""
    broken = bare.root / "hindmost_agent"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('libz.so.1: no such file')")
    machine = Machine(root=bare.root, environ={**bare.environ, "PYTHONPATH": str(bare.root)})
    assert doctor.agent(machine) == doctor.Finding(
        "no",
        "hindmost_agent.daemon cannot be loaded: ImportError: libz.so.1: no such file",
        doctor.agent(machine).lost,
        "pip install --force-reinstall '.[agent]' in a clone of hindmost",
    )


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "no NVIDIA or AMD GPU driver"),
        ({"dev/kfd": ""}, "an AMD driver, and no GPU visible"),
        ({"dev/kfd": "", f"{KFD}/0/gpu_id": "0\n", f"{KFD}/1/gpu_id": "48213\n"}, "1 AMD GPUs; amdsmi"),
    ],
)
def test_an_amd_node_gets_no_line_about_nvidia(bare: Machine, files: dict[str, str], says: str) -> None:
    """Which vendor's driver is loaded decides what is asked and which package is missing."""
    for path, text in files.items():
        write(bare, path, text)
    finding = doctor.gpu(bare)
    assert (finding.state, finding.found.startswith(says)) == ("no", True)
    assert ("NVIDIA" in finding.found + finding.remedy) is (not files)


def test_a_wheel_needs_no_compiler(bare: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a wheel brought the native parts, they are prebuilt, and a missing compiler costs nothing."""
    monkeypatch.setattr(build, "wheel_has_all", lambda: True)
    found = {
        check.__name__: check(Machine(root=bare.root, environ=bare.environ))
        for check in (doctor.hooks, doctor.compiler)
    }
    assert {name: finding.state for name, finding in found.items()} == {"hooks": "yes", "compiler": "yes"}
    assert all("prebuilt" in finding.found for finding in found.values())


def test_json_for_programs(says: Says) -> None:
    """--format json holds the same findings, a key a check."""
    said = json.loads(says(0, ["doctor", "--format", "json"]).out)
    assert list(said) == list(doctor.CHECKS)
    assert said["python"]["state"] == "yes"


def launcher(folder: Path, *lines: str) -> list[str]:
    """A launcher that says this of its nodes, whatever it is asked to start."""
    return [str(shell_program(folder / "srun", "\n".join(["cat <<'END'", *lines, "END"]))), "--nodelist=n[1-4]"]


def test_what_each_node_of_a_cluster_lacks_is_one_table(tmp_path: Path, says: Says) -> None:
    """Each finding once, with its nodes; and who did not answer. Launchers label lines, and print others."""
    gpu, full = (
        Finding("no", "no driver", "no clocks", "load it"),
        Finding("part", "1 MiB free", "no rings", "free some"),
    )
    fine = Finding("yes", "all there")
    said = [
        doctor.as_line({"gpu": gpu, "shared memory": fine}, "n1"),
        "1: " + doctor.as_line({"gpu": gpu, "shared memory": full}, "n2.example"),
        "[n3] " + doctor.as_line({"gpu": fine, "shared memory": fine}, "n3"),
        'a banner {"doctor": that is none',
    ]
    lines = says(0, ["doctor", "--cluster", *launcher(tmp_path, *said)]).out.splitlines()
    assert lines[0] == "3 nodes answered"
    assert "no    gpu            n1, n2.example: no driver" in lines
    assert "part  shared memory  n2.example: 1 MiB free" in lines
    assert lines[-1].startswith("no answer: n4;")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sh", "-c", "echo denied >&2; exit 3"], "ended with 3: denied"),
        (["no-such-launcher"], "No such file or directory: give a launcher"),
        ([], "give a launcher"),
    ],
)
def test_a_silent_cluster_is_one_line(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    """It has the launcher's own last words."""
    assert main(["doctor", "--cluster", *words]) != 0
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
