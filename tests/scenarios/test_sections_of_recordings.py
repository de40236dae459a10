"""What the sections of a report say of real recordings can be: parts add up, and shares are shares."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hindmost_collector.report import section_rows, sections, text

from tests import recordings

ALL = sorted(recordings.OURS.glob("*.tar.xz"))
#: Every second: all kinds of sources are among them.
PATHS = ALL[::2]
#: What rounding, and clocks of ranks that differ by some us, may add to a share.
NEARLY = 0.02
each_recording = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name.partition(".")[0])


@cache
def report(path: Path) -> dict[str, Any]:
    """Its report with all sections."""
    found = recordings.judged(path)
    plain = found.to_dict()
    return sections.added(plain, section_rows.of(recordings.recorded(path), plain, found.overview))


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.name.partition(".")[0])
def test_wall_clock_adds_up(path: Path) -> None:
    """Within 1 % of the time from the job's start to its end."""
    *parts, whole = report(path)["sections"]["wall_clock"]["parts"] or [{"seconds": 0.0}]
    assert sum(part["seconds"] for part in parts) == pytest.approx(whole["seconds"], rel=0.01)


@each_recording
def test_efficiencies_multiply(path: Path) -> None:
    """Each is a share of time; the product of the parts is the whole."""
    for lane in report(path)["sections"]["efficiency"]["lanes"]:
        known = {name: value for name, value in lane.items() if name != "lane" and value is not None}
        assert all(0 <= value <= 1 + NEARLY for value in known.values())
        if "parallel" in known:
            whole = known["load_balance"] * known["communication"] * known.get("orchestration", 1.0)
            assert known["parallel"] == pytest.approx(whole)
        if "transfer" in known:
            assert known["communication"] == pytest.approx(known["serialisation"] * known["transfer"])


@each_recording
def test_nothing_made_free_makes_a_step_longer(path: Path) -> None:
    """Nor shorter than nothing."""
    found = report(path)["sections"]["limits"]["if_free"]
    assert all(row["saved"] is None or -0.001 <= row["saved"] < 1 for row in found)


@each_recording
def test_no_amount_is_below_nothing_and_no_share_above_all(path: Path) -> None:
    """Whatever the source: a counter that began again, a clock that was set."""
    for name, section in sections.SECTIONS.items():
        for key, table in section.tables.items():
            units = {column.key: column.unit for column in table.columns if column.unit != "text"}
            for row in report(path)["sections"][name][key]:
                for column, unit in units.items():
                    value = row[column]
                    assert value is None or value >= 0 or column == "saved", (name, key, column)
                    assert value is None or unit != "ratio" or value <= 1 + NEARLY, (name, key, column)


@each_recording
def test_all_sections_fit_a_terminal(path: Path) -> None:
    """Of 80 columns, and no number in them is cut. A command that is longer has a line of its own."""
    shown = text.render(report(path), 80, wanted=tuple(sections.SECTIONS))
    assert [line for line in shown.splitlines() if len(line) > 80 and not re.fullmatch(r" *`[^`]+`\S*", line)] == []
