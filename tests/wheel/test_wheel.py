"""The wheels: what they hold, and that a user without a compiler loses nothing."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hindmost.native import build

from tests.wheel.conftest import Installed

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(500)]

ROOT = Path(__file__).parents[2]
MACHINES = ("x86_64", "aarch64")
#: Pythons whose environments run the demo's job; `make test-pythons` names all.
PYTHONS = os.environ.get("HINDMOST_TEST_PYTHONS", "3.10 3.13").split()
OLDEST = "3.10"
#: Measured where a sample happens to fall into a rank's reading or writing; and what agents read from /proc without a
#: compiled part, of which a job of seconds on a busy machine may have too few samples.
SAMPLED = {
    "phases_ms.file_read",
    "phases_ms.file_write",
    "phases_ms.file_sync",
    "cpu_ratio",
    "runqueue_ratio",
    "rss_bytes",
}
RECORDED_DEMO = ROOT / "tests/fixtures/recordings/mpi-observed-demo-slow-rank2.tar.xz"
#: What is written in C here includes nothing else: no header of MPI, CUDA, NCCL or Python.
SYSTEM_HEADERS = re.compile(r"#\s*include\s*<(?!mpi|Python|cuda|nccl)((sys|linux)/)?[a-z0-9]+\.h>")


def wheel_of(machine: str) -> Path:
    """The one that `make wheel` put into dist."""
    (found,) = (ROOT / "dist").glob(f"hindmost-*_{machine}.whl")
    return found


@pytest.mark.parametrize("machine", MACHINES)
def test_every_library_is_prebuilt_from_these_sources(machine: str) -> None:
    """A wheel holds each library under the name that hindmost looks for, and nothing else is compiled in it."""
    names = zipfile.ZipFile(wheel_of(machine)).namelist()
    wanted = {build.prebuilt_name(kind, flags, machine) for kind, flags in build.variants()}
    assert len(wanted) == 5
    assert {Path(name).name for name in names if name.endswith(".so")} == wanted


@pytest.mark.parametrize("machine", MACHINES)
def test_auditwheel_passes(machine: str) -> None:
    """The symbols that the libraries need are those of manylinux_2_17, as the wheel's name says."""
    tag = f"manylinux_2_17_{machine}"
    line = [str(Path(sys.executable).parent / "auditwheel"), "show", str(wheel_of(machine))]
    said = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert f'the following platform tag: "{tag}"' in " ".join(said.split())
    assert wheel_of(machine).name.endswith(f"-py3-none-{tag}.whl")


def test_no_foreign_header_is_included() -> None:
    """Only headers of the C library and the compiler, and our own, are needed to compile."""
    lines = [line for path in build.SOURCES.glob("*.[ch]") for line in path.read_text().splitlines()]
    foreign = [line for line in lines if "include" in line and "<" in line and not SYSTEM_HEADERS.match(line)]
    assert foreign == []
    assert any(SYSTEM_HEADERS.match(line) for line in lines)


def report(installed: Installed, folder: Path, *job: str, **environ: str) -> dict[str, Any]:
    """The report of a job run under hindmost."""
    line = ("hindmost", "run", "--out", str(folder / "run"), "--", *job)
    done = installed.run(*line, cwd=folder, **environ)
    assert done.returncode == 0, done.stdout + done.stderr
    said = installed.run("hindmost", "report", str(folder / "run"), "--format", "json", cwd=folder)
    found: dict[str, Any] = json.loads(said.stdout)
    return found


def demo(installed: Installed, folder: Path) -> dict[str, Any]:
    """The report of `make demo`'s job, made shorter."""
    train = str(ROOT / "examples/train_mpi.py")
    job = ("mpirun", "--bind-to", "none", "-np", "4", "python", train, "--slow-rank", "2", "--slow-ms", "6")
    return report(installed, folder, *job, "--steps", "250")


def filled(row: dict[str, Any], prefix: str = "") -> set[str]:
    """The names of columns that hold a value."""
    found = set()
    for name, value in row.items():
        if isinstance(value, dict):
            found |= filled(value, f"{prefix}{name}.")
        elif value is not None:
            found.add(prefix + name)
    return found


@pytest.fixture(scope="session")
def with_compiler(from_source: Installed, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The demo's report from an installation that compiles its libraries."""
    return demo(from_source, tmp_path_factory.mktemp("demo"))


def longest_on_a_cpu(found: dict[str, Any]) -> int:
    """The rank that computed most between collectives. Other work on the machine does not change which one that is."""
    rank: int = max(found["ranks"], key=lambda row: row["phases_ms"]["self_cpu"])["rank"]
    return rank


@pytest.mark.parametrize("version", PYTHONS)
def test_without_a_compiler_the_columns_are_the_same(
    install: Callable[..., Installed], with_compiler: dict[str, Any], tmp_path: Path, version: str
) -> None:
    """Of the demo's job, each rank has the columns that a compiler gives, and the slow rank's CPU time is measured."""
    found = demo(install(version), tmp_path)
    assert [row["rank"] for row in found["ranks"]] == [0, 1, 2, 3]
    for row, reference in zip(found["ranks"], with_compiler["ranks"], strict=True):
        assert filled(row) - SAMPLED == filled(reference) - SAMPLED
    assert longest_on_a_cpu(found) == longest_on_a_cpu(with_compiler) == 2


@pytest.mark.parametrize("version", PYTHONS)
def test_without_a_compiler_the_verdict_is_the_same(
    install: Callable[..., Installed], from_source: Installed, tmp_path: Path, version: str
) -> None:
    """The wheel judges a recording of the demo's job as this tree does, with the packages of that Python."""
    line = ("hindmost", "report", str(RECORDED_DEMO), "--format", "json")
    found, reference = (
        json.loads(one.run(*line, cwd=tmp_path).stdout)["verdicts"] for one in (install(version), from_source)
    )
    assert [(one["kind"], one["ranks"], one["cause"]) for one in found] == [("straggler", [2], "compute")]
    for name in ("evidence", "advice", "until_step"):
        assert found[0][name] == reference[0][name]


@pytest.mark.parametrize("version", PYTHONS)
def test_every_library_is_used_prebuilt(install: Callable[..., Installed], tmp_path: Path, version: str) -> None:
    """`native build` finds all prebuilt, doctor misses no compiler, hooks load in C, and no cache is made."""
    installed = install(version)
    said = installed.run("hindmost", "native", "build", cwd=tmp_path, HOME=str(tmp_path))
    assert (said.returncode, said.stdout.count(", prebuilt: ")) == (0, 3), said.stdout + said.stderr
    findings = json.loads(installed.run("hindmost", "doctor", "--format", "json", cwd=tmp_path).stdout)
    for check in ("compiler", "hooks"):
        assert (findings[check]["state"], "prebuilt" in findings[check]["found"]) == ("yes", True)
    module = re.search(r"/\S+/ring-abi3-\w+\.so", said.stdout)
    assert module is not None
    line = [installed.python, "-c", "from hindmost.ring import native; print(native.load().__file__)"]
    loaded = installed.run(*line, cwd=tmp_path, HINDMOST_RING_MODULE=module[0])
    assert loaded.stdout.strip() == module[0], loaded.stderr
    assert list(tmp_path.iterdir()) == []


class Mpi(NamedTuple):
    """An MPI: how programs are compiled for it beforehand, its mpirun, and the shim that fits."""

    name: str
    compiler: list[str]
    launcher: Path
    shim: str


BIN = Path(sys.executable).parent
#: Open MPI keeps its ABI from 4 to 5: Debian's 4 is linked by its library's path, and needs no headers of its own.
OPEN_MPI_4 = ["cc", f"-I{BIN.parent / 'include'}", f"/usr/lib/{platform.machine()}-linux-gnu/libmpi.so.40"]
MPIS = [
    Mpi("Open MPI 5", [str(BIN / "mpicc")], BIN / "mpirun", "persistent"),
    Mpi("Open MPI 4", OPEN_MPI_4, Path("/usr/bin/mpirun.openmpi"), "basic"),
    Mpi("MPICH 4", [str(ROOT / ".cache/mpich/bin/mpicc")], ROOT / ".cache/mpich/bin/mpirun", "persistent_large"),
]


@pytest.mark.needs("cc")
@pytest.mark.parametrize("its", MPIS, ids=lambda its: its.name)
def test_a_program_in_c_is_seen(install: Callable[..., Installed], tmp_path: Path, its: Mpi) -> None:
    """Of a C program that was compiled beforehand, the prebuilt shim of its MPI sees the slow rank's collectives."""
    if not its.launcher.exists():
        pytest.skip(f"needs {its.name}")
    source = str(Path(__file__).with_name("slow_rank.c"))
    subprocess.run([its.compiler[0], "-O1", source, "-o", str(tmp_path / "slow_rank"), *its.compiler[1:]], check=True)
    installed = install(OLDEST)
    said = installed.run("hindmost", "native", "build", "pmpi", "--mpirun", str(its.launcher), cwd=tmp_path)
    assert f"/pmpi-{its.shim}-" in said.stdout, said.stdout + said.stderr
    found = report(installed, tmp_path, str(its.launcher), "-np", "4", str(tmp_path / "slow_rank"))
    assert [row["rank"] for row in found["ranks"]] == [0, 1, 2, 3]
    assert longest_on_a_cpu(found) == 2
    assert found["job"]["steps"] >= 200


#: Tests of the native parts, which then run with the prebuilt ones.
NATIVE_TESTS = (
    "native/test_nccl_profiler.py",
    "probe/test_ring.py",
    "probe/test_ring_refused.py",
    "probe/test_torch_steps.py",
    "probe/test_torch_hooks.py",
    "probe/test_guarded_functions.py",
    "probe/test_python_abi.py",
)


@pytest.mark.needs("cc")
def test_the_parts_pass_their_own_tests(install: Callable[..., Installed], tmp_path: Path) -> None:
    """The NCCL plugin under a program that plays NCCL, the ring and the hooks: their tests, without a compiler."""
    nccl_host = str(ROOT / "tests/native/nccl_host.c")
    line = [
        "cc",
        "-O2",
        "-rdynamic",
        f"-I{build.SOURCES}",
        nccl_host,
        "-o",
        str(tmp_path / "nccl_host"),
        "-ldl",
        "-pthread",
    ]
    subprocess.run(line, check=True)
    packages = ("pytest", "pytest-timeout", "hypothesis")
    installed = install(OLDEST, *packages)
    uv = shutil.which("uv", path=str(Path(sys.executable).parent))
    assert uv is not None
    subprocess.run([uv, "pip", "install", "-q", "--python", installed.python, *packages], check=True)
    tests = [str(ROOT / "tests" / name) for name in NATIVE_TESTS]
    done = installed.run(
        installed.python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *tests,
        cwd=ROOT,
        HINDMOST_TEST_PROGRAMS=str(tmp_path),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout.splitlines()[-1] or " 0 skipped" in done.stdout
    assert platform.machine() in MACHINES


@pytest.mark.needs("cc")
def test_the_task_prolog_gives_the_wheels_parts(install: Callable[..., Installed], tmp_path: Path) -> None:
    """Slurm's TaskProlog hands a job the prebuilt libraries of the installation, with nothing in its cache."""
    installed = install(OLDEST)
    (tmp_path / "settings").write_text("HINDMOST_COLLECTOR=collector.example.org:9460\n")
    given = {"HINDMOST_VENV": str(installed.bin.parent), "HINDMOST_SETTINGS": str(tmp_path / "settings")}
    prolog = str(ROOT / "deploy/slurm/task-prolog.sh")
    said = installed.run("bash", prolog, cwd=tmp_path, SLURM_JOB_ID="77", **given).stdout
    for variable, part in (("LD_PRELOAD", "pmpi"), ("NCCL_PROFILER_PLUGIN", "nccl"), ("HINDMOST_RING_MODULE", "ring")):
        assert re.search(rf"export {variable}=\S+/native/prebuilt/{part}-\S+\.so", said), said
