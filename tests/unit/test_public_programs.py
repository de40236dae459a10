"""The bench of public programs: what is graded right, and the table in the page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench/strangers"))

from disturbances import DISTURBANCES  # noqa: E402 - lies in bench
from page import BEGIN, END, document, results  # noqa: E402
from truth import graded  # noqa: E402

RECORDINGS = ROOT / "tests/fixtures/recordings"


def row(program: str, disturbance: str, *graded: bool | None, cores: float = 0.5) -> dict[str, Any]:
    """One run, and whether its names and causes were right."""
    right = dict(zip(("names_right", "cause_right"), graded, strict=True))
    return {
        "program": program,
        "disturbance": disturbance,
        "verdicts": [],
        "said": None,
        "other_work_cores": cores,
    } | right


@pytest.mark.parametrize(
    ("recording", "disturbance", "right"),
    [
        ("gloo-observed-stopped-now-and-then-rank1", "stopped 250 ms every 2 s", True),
        ("gloo-observed-stopped-now-and-then-rank1", "none", False),
        ("mpi-observed-even-1", "none", True),
        ("mpi-observed-even-1", "half a core by quota", False),
        ("mpi-observed-died-rank1", "killed", True),
        ("mpi-observed-even-1", "killed", False),
        ("mpi-observed-killed-in-setup-rank1", "killed", True),  # while all computed for 6 s, without a call
    ],
)
def test_a_run_is_right_if_who_was_disturbed_is_named(recording: str, disturbance: str, right: bool) -> None:
    """And if none is, in one that was not."""
    assert graded(DISTURBANCES[disturbance], RECORDINGS / f"{recording}.tar.xz")["names_right"] is right


@pytest.mark.parametrize(
    ("recording", "disturbance", "right"),
    [
        ("gloo-observed-stopped-now-and-then-rank1", "stopped 250 ms every 2 s", True),
        ("gloo-observed-stopped-now-and-then-rank1", "half a core by quota", True),  # a quota stops ranks, too
        ("ddp-observed-slow-compute-rank1", "half a core by quota", False),
        ("mpi-observed-even-1", "half a core by quota", None),  # no rank is named
        ("mpi-observed-even-1", "none", None),
        ("mpi-observed-died-rank1", "killed", None),  # no verdict has such a cause
    ],
)
def test_a_cause_is_right_or_wrong_only_of_a_named_rank(recording: str, disturbance: str, right: bool | None) -> None:
    """Without a name, or without a cause to name, it is blank."""
    assert graded(DISTURBANCES[disturbance], RECORDINGS / f"{recording}.tar.xz")["cause_right"] is right


def test_a_disturbance_that_other_work_repeats_on_the_peer_is_none() -> None:
    """The kernel counts for how long both wait for a CPU."""
    stress = DISTURBANCES["core shared with stress-ng"]
    assert stress.disappeared({"0": 9.4, "1": 9.2})
    assert not stress.disappeared({"0": 2.4, "1": 6.9})
    assert not DISTURBANCES["killed"].disappeared({"0": 9.4, "1": 9.2})


def test_the_table_stands_between_its_marks_and_lists_what_is_missing() -> None:
    """What is around it stays; a second time replaces the first."""
    found = results(
        [row("hpcc", "none", True, None), {"program": "hpcc", "disturbance": "killed", "missing": "not run"}],
        {"lammps": "no lmp"},
    )
    text = document(found, f"# Page\n\n{BEGIN}\nold\n{END}\n\nmore\n")
    assert text.startswith("# Page")
    assert text.endswith(f"{END}\n\nmore\n")
    assert "old" not in text
    assert "| lammps | | missing: no lmp |" in text
    assert "- not run: hpcc, killed" in text
    assert document(found, text) == text


def test_figures_of_undisturbed_and_disturbed_runs_stand_apart() -> None:
    """Causes count where a name is right and has a cause to judge."""
    clean = [row("hpcc", "none", True, None), row("hpcc", "none", False, None)]
    rows = [
        *clean,
        row("hpcc", "quota", True, False),
        row("hpcc", "killed", True, None),
        row("lammps", "quota", False, True),
    ]
    lines = document(results(rows, {}), f"{BEGIN}\n{END}\n").splitlines()
    assert [line.rpartition("(")[2] for line in lines if line.startswith("- ")] == [
        "1/2)",
        "2/3)",
        "0/1), unknown in 0",
    ]


def test_undisturbed_runs_that_agree_share_a_row() -> None:
    """Of three the one that disagrees stands apart."""
    rows = [row("hpcc", "none", True, None, cores=cores) for cores in (1.7, 1.4)] + [row("hpcc", "none", False, None)]
    lines = document(results(rows, {}), f"{BEGIN}\n{END}\n").splitlines()
    assert "| hpcc | none, 2 runs |  | 1.4 to 1.7 | yes |  |" in lines
    assert "| hpcc | none |  | 0.5 | **no** |  |" in lines


def test_what_a_disturbance_did_is_known_if_undisturbed_runs_agree() -> None:
    """Else the table gives no error of the verdict's cost."""
    told = {"program": "miniFE", "disturbance": "quota", "did_ms": 40.0, "cost_ms": 44.0}
    costs = [told | {"clean_ms": [50.0, 60.0]}, told | {"clean_ms": [50.0, 90.0]}]
    found = results([], {}) | {"costs": costs}
    lines = document(found, f"{BEGIN}\n{END}\n").splitlines()
    assert "| miniFE | quota | 50.0 and 60.0 | 40.0 ± 5.0 | 44.0 | +10% |" in lines
    assert "| miniFE | quota | 50.0 and 90.0 | 40.0 ± 20.0 | 44.0 | unknown: undisturbed runs differ |" in lines
