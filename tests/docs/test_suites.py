"""The suites that .ci/run runs only where their files have changed, and the folders that marks are looked for in."""

import re
import subprocess
from pathlib import Path

import pytest

from tests import tiers

ROOT = Path(__file__).parents[2]
LINES = tiers.suites((ROOT / ".ci/tiers").read_text())


@pytest.mark.parametrize(("name", "paths"), [(name, paths) for name, _, *paths in LINES], ids=lambda one: str(one)[:12])
def test_a_suite_covers_files_that_exist_and_can_be_run(name: str, paths: list[str]) -> None:
    """A path that was renamed would hide changes: the suite would not be run for them."""
    assert f"\ntest-{name}:" in (ROOT / "Makefile").read_text()
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_hash_changes_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its content and its name, whether git has it already or not; not with what lies elsewhere."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.setattr(tiers, "ROOT", tmp_path)
    (tmp_path / "covered").mkdir()
    seen = [tiers.digest(["covered"])]
    for name, text in (("covered/a", "1"), ("covered/a", "2"), ("covered/b", "2")):
        (tmp_path / name).write_text(text)
        seen.append(tiers.digest(["covered"]))
    assert len(set(seen)) == 4
    (tmp_path / "elsewhere").write_text("3")
    assert tiers.digest(["covered"]) == seen[-1]


def test_one_hash_is_renewed() -> None:
    """Of the suite of that name: not of one whose name ends alike, nor a word of a comment."""
    text = "# mpi 0 is none\npmpi 0 a/mpi 0\nmpi 0 agent\nmpi2 0 agent\n"
    assert tiers.renewed(text, "mpi", "f") == text.replace("\nmpi 0", "\nmpi f")


TESTS = Path(__file__).parents[1]
FOLDERS = {name: {name} for name in ("torch", "clickhouse", "kubernetes", "browser")}
FOLDERS["cluster"] = {"cluster", "dashboards", "security"}


@pytest.mark.parametrize("mark", FOLDERS)
def test_a_mark_is_used_where_it_is_looked_for(mark: str) -> None:
    """Each folder that ``make`` names for a mark has tests that bear it, and no other has."""
    bears = re.compile(rf"\bpytest\.mark\.{mark}\b")
    found = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py") if bears.search(path.read_text())}
    assert found == FOLDERS[mark]
