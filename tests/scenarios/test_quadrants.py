"""What bounds a job on a GPU, and how fast it computed: five recordings of an H200, each bound by one thing. Made by
bench/gpu/quadrants.py of commit 6b99f251, whose loops count their own operations and bytes."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hindmost_collector.recordings.load import load
from hindmost_collector.report import section_rows
from hindmost_collector.report.text import render
from hindmost_judge.judge import judge

FOLDER = Path(__file__).resolve().parents[1] / "fixtures/quadrants"
#: By what each is bound, what to try first, and what its loop counted: operations and bytes a second.
LOOPS: dict[str, tuple[str, str | None, float | None, float | None]] = {
    "products": ("gpu_compute", "GPU clocks", 783.9e12, None),
    "copies": ("gpu_memory", None, None, 4.266e12),
    "kernels": ("host", "tiny kernels", None, None),
    "input": ("input", "DataLoader workers", None, None),
    "pageable": ("copies", "copies to the GPU", None, None),
}


@cache
def sections(name: str, flops_per_sample: float | None = None) -> dict[str, Any]:
    """Limits and advice of a recording."""
    run = load(FOLDER / f"{name}.tar.xz")
    found = judge(run)
    return section_rows.of(run, found.to_dict(), found.overview, ("limits", "advice"), flops_per_sample)


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_bound_by_what_it_was_made_to_be(name: str) -> None:
    """With the figures that show it; the setting that helps it comes first."""
    by, first, _, _ = LOOPS[name]
    (bound,) = sections(name)["limits"]["bound"]
    assert bound["by"] == by
    assert "%" in bound["evidence"] or "ms" in bound["evidence"]
    advised = [row["name"] for row in sections(name)["advice"]["settings"]]
    assert (advised[0] if advised else None) == first


@pytest.mark.parametrize(
    ("name", "key", "counted"),
    [("products", "flops", LOOPS["products"][2]), ("copies", "bytes_per_s", LOOPS["copies"][3])],
)
def test_what_a_gpu_achieved_is_what_its_loop_counted(name: str, key: str, counted: float) -> None:
    """Within 5 %."""
    (row,) = sections(name)["limits"]["achieved"]
    assert row[key] == pytest.approx(counted, rel=0.05)
    assert row[key] < row[f"peak_{key}"]


@pytest.mark.parametrize(
    ("name", "to_do"), [("copies", "move fewer bytes"), ("pageable", "`DataLoader(..., pin_memory=True)`")]
)
def test_what_helps_follows_what_limits_a_lone_rank(name: str, to_do: str) -> None:
    """Its setting, and not only where to look for one."""
    run = load(FOLDER / f"{name}.tar.xz")
    found = judge(run)
    report = found.to_dict()
    page = render(report | {"sections": section_rows.of(run, report, found.overview, ("limits", "advice"))})
    first, *_ = [line for line in page.splitlines() if line.startswith("DO")]
    assert to_do in first


def test_products_are_above_the_ridge() -> None:
    """So many operations a byte that memory is not their limit."""
    (row,) = sections("products")["limits"]["achieved"]
    assert row["intensity"] > 2 * row["ridge"]


def test_mfu_is_of_the_operations_that_were_given() -> None:
    """Those of a sample times the samples a second, of the peak of all GPUs."""
    work = sections("input")["limits"]["if_free"][0]["work_per_s"]
    (row,) = sections("input", 1e9)["limits"]["achieved"]
    assert row["mfu"] == pytest.approx(work * 1e9 / 989e12)
    assert sections("input")["limits"]["achieved"][0]["mfu"] is None


@pytest.mark.parametrize("name", LOOPS)
def test_what_if_has_its_four_rows_for_one_rank_too(name: str) -> None:
    """Communication and other ranks cost one rank nothing; what was not measured is missing, and never free."""
    rows = {row["without"]: row["saved"] for row in sections(name)["limits"]["if_free"]}
    assert list(rows) == [
        "nothing changes",
        "input were free",
        "copies to the GPU were free",
        "communication were free",
        "all ranks were like the median one",
    ]
    assert (rows["communication were free"], rows["all ranks were like the median one"]) == (0, 0)
    assert rows["input were free"] is None or name in ("input", "pageable")
