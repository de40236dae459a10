"""``make`` looks for some marks in their folders only: a test that bears one elsewhere would never run."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FOLDERS = {"torch": {"torch"}, "clickhouse": {"clickhouse"}, "kubernetes": {"kubernetes"}}


@pytest.mark.parametrize("mark", FOLDERS)
def test_a_mark_is_used_where_it_is_looked_for(mark: str) -> None:
    """Each folder that ``make`` names for a mark has tests that bear it, and no other has."""
    bears = re.compile(rf"\bpytest\.mark\.{mark}\b")
    found = {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py") if bears.search(path.read_text())}
    assert found == FOLDERS[mark]
