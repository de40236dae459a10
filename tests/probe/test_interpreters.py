"""Which interpreters the probe gets into, by which way: the table of docs/reference/coverage.md, cell by cell."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import hindmost
import pytest
from hindmost import ring
from hindmost.native import build
from hindmost_cli.run import environment
from hindmost_cli.run.environment import kept_out

PACKAGE = Path(hindmost.__file__).parent

#: What a training script shows of its interpreter; it ends with a code of its own.
SCRIPT = """
import json, sys
print(json.dumps([sys.path[1:], sys.prefix, sys.argv[1:], sys.flags.isolated, sorted(sys.warnoptions)]))
sys.exit(3)
"""

#: How the script is started: options of the interpreter, and what stands before them in a wrapper script.
WAYS = {
    "python": ("", ""),
    "-s": ("-s", ""),
    "-E": ("-E", ""),
    "-I": ("-I", ""),
    "-S": ("-S", ""),
    "PYTHONPATH set anew": ("", "export PYTHONPATH=/opt/ours"),
    "PYTHONPATH unset": ("", "unset PYTHONPATH"),
}
IGNORED = {"-E", "-I", "PYTHONPATH set anew", "PYTHONPATH unset"}


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment in which hindmost is not installed."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False, symlinks=True)
    return folder


@pytest.fixture
def without_sitecustomize(tmp_path: Path, python_314: str) -> Path:
    """A virtual environment whose Python brings no sitecustomize, as Debian's does: that one comes before a user's."""
    folder = tmp_path / "venv"
    subprocess.run([python_314, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder


@pytest.fixture(params=["by PYTHONPATH", pytest.param("by the shim", marks=pytest.mark.needs("cc")), "installed"])
def entry(request: pytest.FixtureRequest, interpreter: Path) -> str:
    """How the probe may come in; ``installed``: hindmost's .pth file is in that environment."""
    (site,) = interpreter.glob("lib/python*/site-packages")
    for path in site.glob("*.pth"):
        path.unlink()
    if request.param == "installed":
        (site / "a.pth").write_text(f"{PACKAGE.parent}\n")
        (site / "hindmost.pth").write_text((PACKAGE / "inject/hindmost.pth").read_text())
    return str(request.param)


def environ_of(tmp_path: Path, entry: str) -> dict[str, str]:
    """What ``hindmost run`` sets; the shim needs a compiler."""
    plain = {"PATH": os.environ["PATH"]}
    native = {"pmpi": build.library("pmpi")} if entry == "by the shim" else {}
    ours = environment.variables(
        plain, job="job", rings=tmp_path / "rings", collector="", launcher="mpirun", native=native
    )
    return plain | ours | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}


@pytest.mark.parametrize("way", WAYS)
def test_who_is_seen(tmp_path: Path, interpreter: Path, entry: str, way: str) -> None:
    """A rank has a ring or has none, as the table says."""
    options, before = WAYS[way]
    wrapper = tmp_path / "train.sh"
    script = _script(tmp_path, interpreter / "bin/python", "")
    wrapper.write_text(f'#!/bin/sh\n{before}\nexec {interpreter}/bin/python {options} {script} "$@"\n')
    wrapper.chmod(0o755)
    environ = environ_of(tmp_path, entry)
    seen = _is_seen(tmp_path, wrapper, environ)
    assert seen is (way != "-S" and (entry != "by PYTHONPATH" or way not in IGNORED))
    if options in {"-I", "-E", "-S"}:
        said = kept_out([str(interpreter / "bin/python"), options, "train.py"], environ)
        assert (said is None) is seen


@pytest.mark.needs("cc")
@pytest.mark.parametrize("options", ["", "-I"])
@pytest.mark.parametrize("system_site_packages", [False, True])
def test_a_script_that_names_its_interpreter_is_seen(tmp_path: Path, options: str, system_site_packages: bool) -> None:
    """By its first line, in virtual environments that see the system's packages and in those that do not."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False, symlinks=True, system_site_packages=system_site_packages)
    script = _script(tmp_path, folder / "bin/python", options)
    assert _is_seen(tmp_path, script, environ_of(tmp_path, "by the shim"))


def _is_seen(folder: Path, command: Path, environ: dict[str, str]) -> bool:
    """Whether a rank left its ring. What it prints and how it ends is as without hindmost.

    But for ``-S``, where PYTHONPATH's entry stays: nothing runs that would take it away.
    """
    argv = [str(command), "--lr", "0.1"]
    bare = subprocess.run(argv, env={"PATH": environ["PATH"]}, capture_output=True, check=False)
    done = subprocess.run(argv, env=environ, capture_output=True, check=False)
    ours = f'"{PACKAGE / "inject"}", '.encode()
    stdout = done.stdout.replace(ours, b"") if b" -S " in command.read_bytes() else done.stdout
    assert (done.returncode, stdout, done.stderr) == (bare.returncode, bare.stdout, bare.stderr)
    assert (done.returncode, done.stderr) == (3, b"")
    return bool(list((folder / "rings").glob("*.ring")))


def _script(folder: Path, python: Path, options: str) -> Path:
    script = folder / "train.py"
    script.write_text(f"#!{python} {options}\n{SCRIPT}")
    script.chmod(0o755)
    return script


@pytest.mark.parametrize("options", [[], ["-I"]], ids=["plain", "isolated"])
@pytest.mark.parametrize("raises", [False, True])
def test_the_users_own_sitecustomize_runs_as_ever(
    tmp_path: Path, without_sitecustomize: Path, options: list[str], raises: bool
) -> None:
    """Once, under its name, after the probe; what it raises, Python tells as it does without hindmost."""
    (site,) = without_sitecustomize.glob("lib/python*/site-packages")
    own = site / "sitecustomize.py"
    own.write_text("import sys\nprint('own', __name__, 'hindmost' in sys.modules)\n" + "1 / 0\n" * raises)
    command = [str(without_sitecustomize / "bin/python"), *options]
    command += ["-c", "import sys; print(getattr(sys.modules.get('sitecustomize'), '__file__', None))"]
    bare = subprocess.run(command, env={}, capture_output=True, text=True, check=False)
    environ = environ_of(tmp_path, "by the shim")
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert bare.stdout.splitlines()[0] == "own sitecustomize False"
    assert done.stdout == bare.stdout.replace("False", "True", 1)
    assert (done.returncode, done.stderr) == (bare.returncode, bare.stderr)
    assert ("ZeroDivisionError" in done.stderr) is raises
    assert len(list((tmp_path / "rings").glob("*.ring"))) == 1


def test_interpreters_within_an_interpreter_start_as_ever(tmp_path: Path, python_314: str) -> None:
    """Python 3.14's own further interpreters import sitecustomize too; the ring stays the first one's."""
    script = """
from concurrent import interpreters
inner = interpreters.create()
inner.exec("import sys; print('inner', 'sitecustomize' in sys.modules)")
inner.close()
"""
    environ = environ_of(tmp_path, "by the shim")
    done = subprocess.run(
        [python_314, "-I", "-c", script], env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "inner True\n", "")
    (path,) = (tmp_path / "rings").glob("*.ring")
    assert ring.Reader(path).header.rank == 0


@pytest.mark.needs("cc")
def test_programs_that_are_no_python_are_left_alone(tmp_path: Path) -> None:
    """The shim looks for Python's functions by name, and starts nothing where the program is called otherwise."""
    renamed = tmp_path / "trainer"
    renamed.symlink_to(sys.executable)
    environ = environ_of(tmp_path, "by the shim") | {"HINDMOST_PROBE": "0"}
    ask = "import json, sys; print(json.dumps('sitecustomize' in sys.builtin_module_names))"
    for program, expected in ((sys.executable, True), (str(renamed), False)):
        done = subprocess.run([program, "-c", ask], env=environ, capture_output=True, check=True)
        assert json.loads(done.stdout) is expected
    assert subprocess.run(["/bin/true"], env=environ, capture_output=True, check=True).stderr == b""


ROOT = Path(__file__).parents[2]
TESTS = ("test_torch_copies.py", "test_guarded_functions.py")


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="they are run by this Python itself")
def test_hooks_in_functions_and_watched_copies(python_314: str) -> None:
    """Tests of hooks that stand in the functions themselves, and of copies that ``sys.monitoring`` tells of, hold."""
    packages = [str(ROOT / part) for part in ("agent", "collector", "proto", ".")] + [
        str(Path(pytest.__file__).parents[1])
    ]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(packages), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    tests = [str(ROOT / "tests/probe" / name) for name in TESTS]
    # Not with tests/conftest.py: hypothesis is compiled for this Python.
    line = [python_314, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--confcutdir={ROOT / 'tests/probe'}", *tests]
    done = subprocess.run(line, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout.splitlines()[-1]
