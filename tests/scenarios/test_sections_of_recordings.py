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


@cache
def report(path: Path) -> dict[str, Any]:
    found = recordings.judged(path)
    plain = found.to_dict()
    return sections.added(plain, section_rows.of(recordings.recorded(path), plain, found.overview))


def test_wall_clock_adds_up() -> None:
    """Within 1 % of the time from the job's start to its end."""
    for path in ALL:
        *parts, whole = report(path)["sections"]["wall_clock"]["parts"] or [{"seconds": 0.0}]
        assert sum(part["seconds"] for part in parts) == pytest.approx(whole["seconds"], rel=0.01), path


def test_efficiencies_multiply() -> None:
    """Each is a share of time; the product of the parts is the whole."""
    for lane in (lane for path in PATHS for lane in report(path)["sections"]["efficiency"]["lanes"]):
        known = {name: value for name, value in lane.items() if name != "lane" and value is not None}
        assert all(0 <= value <= 1 + NEARLY for value in known.values())
        if "parallel" in known:
            whole = known["load_balance"] * known["communication"] * known.get("orchestration", 1.0)
            assert known["parallel"] == pytest.approx(whole)
        if "transfer" in known:
            assert known["communication"] == pytest.approx(known["serialisation"] * known["transfer"])


def test_nothing_made_free_makes_a_step_longer() -> None:
    """Nor shorter than nothing."""
    for path in PATHS:
        found = report(path)["sections"]["limits"]["if_free"]
        assert all(row["saved"] is None or -0.001 <= row["saved"] < 1 for row in found), path


def test_no_amount_is_below_nothing_and_no_share_above_all() -> None:
    """Whatever the source: a counter that began again, a clock that was set."""
    for path in PATHS:
        for name, section in sections.SECTIONS.items():
            for key, table in section.tables.items():
                units = {column.key: column.unit for column in table.columns if column.unit != "text"}
                for row in report(path)["sections"][name][key]:
                    for column, unit in units.items():
                        value = row[column]
                        assert value is None or value >= 0 or column == "saved", (path, name, key, column)
                        assert value is None or unit != "ratio" or value <= 1 + NEARLY, (path, name, key, column)


def test_all_sections_fit_a_terminal() -> None:
    """Of 80 columns, and no number in them is cut. A command that is longer has a line of its own."""
    for path in PATHS:
        shown = text.render(report(path), 80, wanted=tuple(sections.SECTIONS)).splitlines()
        assert [line for line in shown if len(line) > 80 and not re.fullmatch(r" *`[^`]+`\S*", line)] == [], path
