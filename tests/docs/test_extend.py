"""The guide's examples are followed to the letter: new files, a panel's lines, and everything knows them."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/how-to/extend.md").read_text(encoding="utf-8")
#: A block of Python whose first line says which file it is.
BLOCK = re.compile(r"```python\n# (\S+\.py)\n(.*?)```", re.DOTALL)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the example needs of this repository, with the guide's files and lines in it."""
    copy = tmp_path_factory.mktemp("repository")
    for name in (
        "agent",
        "collector",
        "proto",
        "docs",
        "dashboards",
        "deploy/kubernetes",
        "tests/agent",
        "tests/golden",
        "tests/dashboards",
    ):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "tests/servers.py"):
        shutil.copy(ROOT / name, copy / name)
    blocks = BLOCK.findall(GUIDE)
    assert [path for path, _ in blocks] == [
        "agent/hindmost/probes/drill.py", "tests/probe/test_drill.py",
        "agent/hindmost_agent/samplers/open_files.py", "tests/agent/samplers/test_open_files.py",
        "collector/hindmost_judge/detect/collecting.py", "tests/judge/detect/test_collecting.py",
        "collector/hindmost_collector/formats/call_log.py", "tests/collector/formats/test_call_log.py",
    ]  # fmt: skip
    for path, code in blocks:
        assert not (copy / path).exists()
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_text(code, encoding="utf-8")
    gpus = copy / "dashboards/gpus.py"
    links = gpus.read_text(encoding="utf-8").partition("def links()")[2]
    put(gpus, links.partition("    return [\n")[0] + "    return [\n", excerpt("    _lowest("))
    return copy


def excerpt(begins: str) -> str:
    """The lines of the guide, meant for a file that is there, that begin so."""
    (found,) = re.findall(rf"```(?:python)?\n(    {re.escape(begins)}.*?)```", GUIDE, re.DOTALL)
    return found


def put(file: Path, after: str, lines: str) -> None:
    """Add these lines to a file."""
    text = file.read_text(encoding="utf-8")
    assert text.count(after) == 1
    file.write_text(text.replace(after, after + lines), encoding="utf-8")


def python(tree: Path, *args: str) -> str:
    """Run this interpreter in the copy; its output. Fails with what it printed."""
    path = os.pathsep.join(str(tree / part) for part in ("agent", "collector", "proto"))
    environ = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, *args], cwd=tree, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_examples_are_clean(tree: Path) -> None:
    """The linter and the formatter have nothing to say."""
    files = [path for path, _ in BLOCK.findall(GUIDE)]
    assert "All checks passed" in python(tree, "-m", "ruff", "check", "--no-cache", *files)
    assert "already formatted" in python(tree, "-m", "ruff", "format", "--no-cache", "--check", *files)


def test_the_examples_tests_pass_and_everything_knows_the_new_sampler(tree: Path) -> None:
    """Under pytest with this repository's settings; the scrape and the broken files are tested with the sampler."""
    python(tree, "-m", "docs.generate")
    page = (tree / "docs/reference/metrics.md").read_text(encoding="utf-8")
    assert "## open_files" in page
    assert "| `hindmost_node_open_files` | gauge |" in page
    own = [path for path, _ in BLOCK.findall(GUIDE) if path.startswith("tests/")]
    samplers = "tests/agent/samplers"
    broken, scrape = (f"{samplers}/test_{name}.py::test_" for name in ("broken_files", "scrape"))
    others = [f"{broken}broken_files_break_no_sampler[open_files]", f"{scrape}the_scrape_is_what_it_was"]
    ran = python(tree, "-m", "pytest", "-v", "-p", "no:cacheprovider", *own, *others)
    assert ran.count(" PASSED") == 7 + len(others)
    assert "test_broken_files_break_no_sampler[open_files] PASSED" in ran
    assert "test_the_scrape_is_what_it_was PASSED" in ran


def test_the_new_sampler_reads_this_machine(tree: Path) -> None:
    """Under the real runner, with every other sampler, over this machine's own files."""
    program = """
from hindmost_agent import samplers
from hindmost_agent.exposition import Exposition
from hindmost_agent.runner import NS, Runner
from hindmost_agent.sampler import Host
runner = Runner(samplers.load(), Host(), NS)
runner.run(0)
print(Exposition("n").render(runner.latest.values()).decode())
"""
    assert re.search(r'^hindmost_node_open_files\{node="n"\} [1-9]', python(tree, "-c", program), re.MULTILINE)


def test_the_new_format_is_named_among_those_that_are_read(tree: Path) -> None:
    """The error for a folder of unknown files lists it."""
    program = "from hindmost_collector.formats import registry; print([one.NAME for one in registry()])"
    assert "call log (calls.RANK.csv)" in python(tree, "-c", program)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs Python 3.11: grafana-foundation-sdk does")
def test_the_new_panel_is_in_the_dashboard_and_fits(tree: Path) -> None:
    """The guide's command writes it; the tests of the dashboards hold."""
    python(tree, "-m", "dashboards")
    assert '"title": "NVLinks up, the ' in (tree / "dashboards/hindmost-gpus.json").read_text(encoding="utf-8")
    assert " passed" in python(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/dashboards/test_files.py")
