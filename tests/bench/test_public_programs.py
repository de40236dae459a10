"""The bench of public programs: what is graded right, and the table in the page."""

from pathlib import Path
from typing import Any

import pytest
from disturbances import DISTURBANCES
from page import BEGIN, END, document, results
from truth import _first_death, graded

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "tests/fixtures/recordings"


def row(
    program: str, disturbance: str, names: bool, cause: str | None, kind: str = "balanced", cores: float = 0.5
) -> dict[str, Any]:
    """One run with one verdict, and whether its ranks and its cause were right."""
    return {
        "program": program,
        "disturbance": disturbance,
        "verdicts": [{"kind": kind, "ranks": [], "cause": None}],
        "other_work_cores": cores,
        "names_right": names,
        "cause": cause,
    }


@pytest.mark.parametrize(
    ("recording", "disturbance", "right", "cause"),
    [
        ("gloo-observed-stopped-now-and-then-rank1", "stopped 250 ms every 2 s", True, "unknown"),
        ("gloo-observed-stopped-now-and-then-rank1", "none", False, None),
        ("mpi-observed-even-1", "none", True, None),
        ("mpi-observed-even-1", "half a core by quota", False, None),
        ("mpi-observed-even-1", "killed", False, None),
        ("mpi-observed-died-rank1", "segmentation fault", True, "right"),
        ("mpi-observed-died-rank1", "killed", True, "wrong"),  # how a rank died is a cause
        ("mpi-observed-killed-in-setup-rank1", "killed", True, "unknown"),  # while all computed for 6 s, without a call
        ("mpi-observed-stopped-often-rank1", "stopped 30 ms every 100 ms", True, "right"),
        ("mpi-observed-stopped-often-rank1", "half a core by quota", True, "right"),  # a quota stops ranks, too
        ("mpi-observed-stopped-often-rank1", "core shared with stress-ng", True, "wrong"),
        (
            "ddp-observed-slow-compute-rank1",
            "stopped for good",
            False,
            None,
        ),  # it was late
    ],
)
def test_a_run_is_right_if_who_was_disturbed_is_named(
    recording: str, disturbance: str, right: bool, cause: str | None
) -> None:
    """And if none is, in one that was not; a cause is judged only of the right ranks."""
    found = graded(DISTURBANCES[disturbance], RECORDINGS / f"{recording}.tar.xz")
    assert (found["names_right"], found["cause"]) == (right, cause)


def test_a_node_that_ran_out_of_memory_kills_by_one_signal() -> None:
    """Another job's process was killed for memory; this rank died of something else, and the report says so."""
    memory = "0.1 s before rank 0; vm ran out of memory: its kernel killed 1 process"
    for how, cause in (("SIGKILL", "out of memory"), ("SIGSEGV", "SIGSEGV"), ("raised KeyError at a.py:1", "KeyError")):
        assert _first_death(f"exit code 1; rank 1 on vm died first ({how}), {memory}") == (1, cause)


@pytest.mark.parametrize("version", [1, 2])
def test_control_groups_of_both_versions_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """One tree in the second version, a tree for each controller in the first."""
    tree = tmp_path if version == 2 else tmp_path / "cpu"
    tree.mkdir(exist_ok=True)
    (tree / "cgroup.procs").touch()
    monkeypatch.setattr("disturbances.CGROUPS", tmp_path)
    lacks = DISTURBANCES["half a core by quota"].lacks
    if version == 2:
        (tmp_path / "cgroup.controllers").touch()
        (tmp_path / "cgroup.subtree_control").write_text("memory\n")
        assert "no cpu in" in str(lacks())
        (tmp_path / "cgroup.subtree_control").write_text("cpu memory\n")
    assert lacks() is None


def test_a_disturbance_that_other_work_repeats_on_the_peer_is_none() -> None:
    """The kernel counts for how long both wait for a CPU."""
    stress = DISTURBANCES["core shared with stress-ng"]
    assert stress.disappeared({"0": 9.4, "1": 9.2})
    assert not stress.disappeared({"0": 2.4, "1": 6.9})
    assert not DISTURBANCES["killed"].disappeared({"0": 9.4, "1": 9.2})


def test_the_table_stands_between_its_marks_and_lists_what_is_missing() -> None:
    """What is around it stays; a second time replaces the first."""
    rows = [row("hpcc", "none", True, None), {"program": "hpcc", "disturbance": "killed", "missing": "not run"}]
    found = results(rows, [], {"lammps": "no lmp"})
    text = document(found, f"# Page\n\n{BEGIN}\nold\n{END}\n\nmore\n")
    assert text.startswith("# Page")
    assert text.endswith(f"{END}\n\nmore\n")
    assert "old" not in text
    assert "| lammps | | missing: no lmp |" in text
    assert "- not run: hpcc, killed" in text
    assert document(found, text) == text


def test_figures_count_all_runs_and_no_unknown_cause_as_right() -> None:
    """Undisturbed, disturbed and later runs stand apart."""
    rows = [
        row("hpcc", "none", True, None),
        row("hpcc", "none", False, None),
        row("hpcc", "quota", True, "wrong"),
        row("hpcc", "disk", True, "unknown"),
        row("hpcc", "killed", True, "right"),
        row("lammps", "quota", False, None),
    ]
    later = [row("lammps", "none", False, None), row("lammps", "quota", True, "right")]
    lines = document(results(rows, later, {}), f"{BEGIN}\n{END}\n").splitlines()
    assert [line for line in lines if line.startswith("- ")] == [
        "- undisturbed, no rank named: 0.500 [0.095, 0.905] (1/2)",
        "- disturbed, exactly the right ranks named: 0.750 [0.301, 0.954] (3/4)",
        "- disturbed, the right cause, too: 0.250 [0.046, 0.699] (1/4); unknown in 1, wrong in 1",
        "- later runs, for costs: no rank named in 0 of 1 undisturbed, the right ranks in 1 of 1 disturbed",
    ]


def test_what_was_all_right_is_counted_and_the_rest_has_a_row_each() -> None:
    """A reader looks for what was wrong or unknown."""
    rows = [row("hpcc", what, True, "right") for what in ("killed", "quota")]
    rows += [row("hpcc", "disk", True, "unknown"), row("hpcc", "memory", False, None)]
    lines = document(results(rows, [], {}), f"{BEGIN}\n{END}\n").splitlines()
    assert [line for line in lines if "hpcc" in line] == [
        "| hpcc | 2 of 4 |",
        "| hpcc | disk | balanced | 0.5 | right | unknown |",
        "| hpcc | memory | balanced | 0.5 | **wrong** |  |",
    ]


def test_undisturbed_runs_of_a_program_share_a_row() -> None:
    """It says in how many a rank was named, and counts their verdicts."""
    rows = [row("hpcc", "none", True, None, kind, cores) for kind, cores in (("balanced", 1.7), ("balanced", 1.4))]
    rows += [row("hpcc", "none", False, None, "straggler"), row("lammps", "none", True, None)]
    lines = document(results(rows, [], {}), f"{BEGIN}\n{END}\n").splitlines()
    assert "| hpcc | **1 of 3 named** | balanced: 2; straggler: 1 | 0.5 to 1.7 |" in lines
    assert "| lammps | 0 of 1 named | balanced: 1 | 0.5 |" in lines


def test_what_a_disturbance_did_is_known_if_undisturbed_runs_agree() -> None:
    """Else the table gives no error of the verdict's cost."""
    disturbed = {"program": "miniFE", "disturbance": "quota", "did_ms": 40.0, "cost_ms": 44.0}
    costs = [disturbed | {"clean_ms": [50.0, 60.0]}, disturbed | {"clean_ms": [50.0, 90.0]}]
    found = results([], [], {}) | {"costs": costs}
    lines = document(found, f"{BEGIN}\n{END}\n").splitlines()
    assert "| miniFE | quota | 50.0 and 60.0 | 40.0 ± 5.0 | 44.0 | +10% |" in lines
    assert "| miniFE | quota | 50.0 and 90.0 | 40.0 ± 20.0 | 44.0 | unknown: undisturbed runs differ |" in lines
