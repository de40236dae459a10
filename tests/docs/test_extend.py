"""The guide's examples are followed to the letter: new files, a line at most, and everything knows them."""

from __future__ import annotations

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
    """A copy of what the example needs of this repository, with the two files of the guide in it."""
    copy = tmp_path_factory.mktemp("repository")
    for name in ("agent", "collector", "proto", "docs", "tests/agent", "tests/golden"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    blocks = BLOCK.findall(GUIDE)
    assert [path for path, _ in blocks] == [
        "agent/hindmost/probes/drill.py", "tests/probe/test_drill.py",
        "agent/hindmost_agent/samplers/open_files.py", "tests/agent/samplers/test_open_files.py",
        "collector/hindmost_judge/detect/collecting.py", "tests/judge/detect/test_collecting.py",
    ]  # fmt: skip
    for path, code in blocks:
        assert not (copy / path).exists()
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_text(code, encoding="utf-8")
    (line,) = re.findall(r"```python\n(    \"drill\": .*\n)```", GUIDE)
    watched = copy / "agent/hindmost/probes/__init__.py"
    before, after = watched.read_text(encoding="utf-8").split("WATCHED = {\n")
    watched.write_text(f"{before}WATCHED = {{\n{line}{after}", encoding="utf-8")
    return copy


def python(tree: Path, *args: str) -> str:
    """Run this interpreter in the copy; its output. Fails with what it printed."""
    path = os.pathsep.join(str(tree / part) for part in ("agent", "collector", "proto"))
    environ = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, *args], cwd=tree, env=environ, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_examples_tests_pass(tree: Path) -> None:
    """The examples' own tests, under pytest with this repository's settings: the new detector's verdict is reported."""
    tests = [path for path, _ in BLOCK.findall(GUIDE) if path.startswith("tests/")]
    assert "5 passed" in python(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)


def test_the_examples_are_clean(tree: Path) -> None:
    """The linter and the formatter have nothing to say."""
    files = [path for path, _ in BLOCK.findall(GUIDE)]
    assert "All checks passed" in python(tree, "-m", "ruff", "check", "--no-cache", *files)
    assert "already formatted" in python(tree, "-m", "ruff", "format", "--no-cache", "--check", *files)


def test_everything_knows_the_new_sampler(tree: Path) -> None:
    """The guide's command adds it to the page; the scrape and the broken files are tested with it."""
    python(tree, "-m", "docs.generate")
    page = (tree / "docs/reference/metrics.md").read_text(encoding="utf-8")
    assert "## open_files" in page
    assert "| `hindmost_node_open_files` | gauge |" in page
    tests = [f"tests/agent/samplers/test_{name}.py" for name in ("declarations", "broken_files", "scrape")]
    chosen = "open_files or sampler_says or scrape_is"
    ran = python(tree, "-m", "pytest", "-v", "-p", "no:cacheprovider", *tests, "-k", chosen)
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
