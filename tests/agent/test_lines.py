"""Chosen lines of a kernel file: what is missing or torn is missing, and takes nothing else with it."""

import math
from pathlib import Path

import pytest
from hindmost_agent.kernel_files import File, Lines


@pytest.mark.parametrize("torn", ["pgfault 1x2\npgmajfault 7\n", "pgfault -\npgmajfault 7\n"])
def test_a_torn_number_is_missing_and_the_others_are_there(tmp_path: Path, torn: str) -> None:
    """Also where the names still stand where they stood; the next whole file has all of them again."""
    path = tmp_path / "vmstat"
    path.write_text("pgfault 12\npgmajfault 7\n")
    lines = Lines(File(path), (b"pgfault", b"pgmajfault", b"oom_kill"))
    assert lines.read()[:2] == [12, 7]
    path.write_text(torn)
    fault, major, kill = lines.read()
    assert math.isnan(fault)
    assert major == 7
    assert math.isnan(kill)
    path.write_text("pgfault 13\npgmajfault 8\n")
    assert lines.read()[:2] == [13, 8]


def test_a_file_that_ends_after_a_name_lacks_its_number(tmp_path: Path) -> None:
    """A name without a number is a missing value, at the first reading and at a later one."""
    path = tmp_path / "vmstat"
    path.write_text("pgfault 12\npgmajfault")
    lines = Lines(File(path), (b"pgfault", b"pgmajfault"))
    for _ in range(2):
        fault, major = lines.read()
        assert fault == 12
        assert math.isnan(major)
