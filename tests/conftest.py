"""What holds for every test: what it needs of the machine, and the closing line."""

import asyncio
import gc
import inspect
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hindmost import daemon_process
from hypothesis import HealthCheck, settings

from tests import recordings
from tests.commands import Says
from tests.needs import CONDITIONS, FETCHED_PYTHON, need
from tests.programs import PACKAGES

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

ROOT = Path(__file__).parents[1]
#: What marks may name; mpirun comes with the virtual environment.
KNOWN = PACKAGES.keys() | CONDITIONS.keys() | {"mpirun"}
#: Folders whose files take long, and the share of the run by which the last of them begins.
WHOLE_SYSTEMS, BEGUN = {"browser", "cluster", "dashboards", "docs", "native", "scenarios"}, 0.8
#: Files that ask the same reports for different truths: one worker runs them, and judges each job once. Those with a
#: test for each report come first.
OF_THE_SAME_REPORTS = [
    f"tests/scenarios/test_{name}.py" for name in ("recordings", "scenarios", "sections_of_recordings", "plain_words")
]
#: The slowest tests of the last run.
SLOWEST = ROOT / ".cache" / "slowest-tests.txt"

# Ten thousand tests are found, and none of them is garbage before the run ends.
gc.disable()

# How long an example takes is not what any test says, and each run tries the same ones: none fails by chance.
settings.register_profile(
    "ours", max_examples=30, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ours")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs what this machine has not."""
    need(*sorted(names(item, "needs")))


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function, in an event loop of its own."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    asyncio.run(test(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}))
    return True


def names(item: pytest.Item, *marks: str) -> set[str]:
    """What these marks of a test name."""
    return {name for mark in marks for one in item.iter_markers(mark) for name in one.args}


@pytest.fixture(autouse=True, scope="session")
def priority_stays() -> Iterator[None]:
    """An agent or collector inside of a test would lower this process for good, and all that later tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(daemon_process, "lower_priority", lambda *_, **__: None)
        patch.setattr(daemon_process, "set_session_priority", lambda *_, **__: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def reports_are_shared(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Among the workers of this run, each of which has a folder of its own in one of the run's."""
    mine = tmp_path_factory.getbasetemp()
    recordings.shared[:] = [mine.parent if mine.name.startswith("popen-") else mine]


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Says:
    """``says(0, ["report", PATH]).out``."""
    return Says(capsys)


@pytest.fixture
def python_314() -> str:
    """A Python 3.14 or later, this one or another."""
    if sys.version_info >= (3, 14):
        return sys.executable
    need("python3.14")
    return str(FETCHED_PYTHON) if FETCHED_PYTHON.exists() else "python3.14"


@pytest.fixture(autouse=True)
def no_detector_fails() -> Iterator[None]:
    """A detector that fails costs a user's report its own verdict only; a test that it happens in, it fails."""
    yield
    detector = sys.modules.get("hindmost_judge.detect")
    failed = dict(detector.failures) if detector is not None else {}
    if detector is not None:
        detector.failures.clear()
    assert not failed, f"detectors failed: {failed}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """For `make test-without`, which hides these programs."""
    parser.addoption("--optional-programs", action="store_true", help="only files with tests that use such a program")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``--optional-programs``, of files in which nothing is marked, nor in their folder's fixtures."""
    if collection_path.is_dir() or not config.getoption("--optional-programs"):
        return None
    texts = [path.read_text() for path in (collection_path, collection_path.with_name("conftest.py")) if path.exists()]
    return None if any(re.search(r"mark\.(needs|uses)\(", text) for text in texts) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Spread the files of each folder of ``tests/`` evenly over the run: some wait for processes, others compute.
    Together they leave no core idle. Those of whole systems take longest, and begin before the rest runs out."""
    unknown = {name for item in items for name in names(item, "needs", "uses")} - KNOWN
    if unknown:
        raise pytest.UsageError(f"tests/programs.py and tests/needs.py do not know {', '.join(sorted(unknown))}")
    if config.getoption("--optional-programs"):
        using = {item.path for item in items if PACKAGES.keys() & names(item, "needs", "uses")}
        items[:] = [item for item in items if item.path in using]
    folders: dict[tuple[str, ...], list[Path]] = defaultdict(list)
    for path in sorted({item.path for item in items}):
        folders[path.relative_to(ROOT).parts[:2]].append(path)
    place = {
        path: (BEGUN if folder[-1] in WHOLE_SYSTEMS else 1.0) * (at + 0.5) / len(files)
        for folder, files in folders.items()
        for at, path in enumerate(files)
    }
    place |= {ROOT / name: at / 1e6 for at, name in enumerate(OF_THE_SAME_REPORTS)}
    items.sort(key=lambda item: (place[item.path], item.path))  # stable: within a file nothing is moved


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> "LoadFileScheduling":
    """A file's tests run in one worker, as by ``--dist loadfile``, and so do those of :data:`OF_THE_SAME_REPORTS`."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "the same reports" if file in OF_THE_SAME_REPORTS else file

    return Scheduling(config, log)


def pytest_collection_finish() -> None:
    """What is here now stays: no later garbage collection looks through it. Of what comes, little is garbage."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    gc.enable()


class ClosingLine:
    """Counts of the run, what skipped tests lacked, and where the slowest tests are listed."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.outcomes: Counter[str] = Counter()
        self.wanted: Counter[str] = Counter()
        self.took: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One phase of one test."""
        self.took[report.nodeid] += report.duration  # type: ignore[assignment]
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1
        if report.skipped and isinstance(report.longrepr, tuple):
            reason = re.match(r"Skipped: needs ([^:;]+)", report.longrepr[2])
            for what in reason[1].split(", ") if reason else ["what the skip's reason says"]:
                self.wanted[what] += 1

    def pytest_unconfigure(self) -> None:
        """Print it below everything else."""
        if not self.took:
            return
        SLOWEST.parent.mkdir(exist_ok=True)
        SLOWEST.write_text("".join(f"{s:8.2f} s  {test}\n" for test, s in self.took.most_common(25)))
        counts = ", ".join(f"{self.outcomes[one]} {one}" for one in ("passed", "failed", "skipped"))
        lines = [f"{counts} in {time.monotonic() - self.began:.0f} s; slowest tests: {SLOWEST.relative_to(ROOT)}"]
        for kind, remedy in ((True, " `make test-deps` installs these."), (False, "")):
            wants = [f"{what} ({count})" for what, count in self.wanted.most_common() if (what in PACKAGES) is kind]
            if wants:
                lines.append(f"Skipped tests need {', '.join(wants)}.{remedy}")
        sys.stdout.write("\n".join(lines) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """The closing line is printed where reports arrive: not in xdist's workers. Each worker begins to collect at
    another folder: what one has compiled, the others find."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(ClosingLine(), "closing_line")
    elif [Path(arg).name for arg in config.args] == config.getini("testpaths"):
        entries = {path.relative_to(ROOT / "tests").parts[0] for path in ROOT.glob("tests/**/test_*.py")}
        folders = sorted({f"tests/{name}" for name in entries} - set(config.getoption("ignore") or ()))
        begin = (
            len(folders) * int(config.workerinput["workerid"].removeprefix("gw")) // config.workerinput["workercount"]
        )
        config.args = [str(ROOT / folder) for folder in folders[begin:] + folders[:begin]]
