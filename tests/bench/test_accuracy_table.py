"""The tables of bench/accuracy: how sure its figures are, and which seeds they are of."""

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import intervals
import pytest
import results_file
import suite
import table
from baselines import BASELINES
from grade import whole

BENCH = Path(__file__).parents[2] / "bench/accuracy"


@pytest.mark.parametrize(("events", "low", "high"), [(0, 0.0, 3.689), (1, 0.0253, 5.572), (10, 4.7954, 18.39)])
def test_events_that_are_rare_have_the_interval_of_poisson(events: int, low: float, high: float) -> None:
    """The exact bounds, as tables have them: none seen in 10,000 may be 3.7 in 10,000."""
    found = intervals.poisson(events, 10_000, 10_000)
    assert found == f"{events:.2f} [{low:.2f}, {high:.2f}] in 10,000 ({events} in 10,000)"


def test_no_edition_shares_a_seed_with_another() -> None:
    """Every family of an edition has its own seeds, which no other edition has."""
    bases = sorted(suite.EDITIONS.values())
    needed = 10_000 * len(suite.FAMILIES)
    assert all(later - base >= needed for base, later in itertools.pairwise(bases))
    assert max(suite.SHARES.values()) < 10_000


def test_enough_runs_that_all_right_is_beyond_the_goal() -> None:
    """Of as many as there are the interval's lower bound reaches what is promised, if all are right."""
    shares, wilson = suite.SHARES, intervals.wilson
    for family, goal in (("single", 0.995), ("large", 0.97), ("sets", 0.95), ("small", 0.95)):
        count = int(shares[family] * {"single": 0.9, "small": 0.4}.get(family, 1))  # others' effect is not of that size
        assert float(wilson(count, count).split("[")[1].split(",")[0]) >= goal
    assert "[0.00, 0.9" in intervals.poisson(0, 200 * shares["clean"], 10_000)


def test_every_figure_has_an_interval() -> None:
    """Also that of false alarms, and also where all or none were right."""
    lines = table.tables(runs_of_each_family())
    rows = [line.split("|")[2].strip() for line in lines if line.startswith("|") and "---" not in line]
    assert all("[" in row for row in rows if row not in ("measured", "names only ranks at fault", "precision", "-"))
    assert rows.count("-") == 1  # a rule that names no rank has no precision


def test_what_is_kept_of_runs_tells_all_that_tables_need() -> None:
    """The results' file has a short row a run: what follows from others is not in it, and comes back as it was."""
    runs = runs_of_each_family()
    kept = results_file.text({"edition": 4}, runs)
    assert results_file.read(kept) == runs
    assert len(kept.splitlines()) >= len(runs)
    assert not {"named", "true", "causes", "verdict_causes"} & set(json.loads(kept)["columns"])


def runs_of_each_family() -> list[dict[str, Any]]:
    """A run of each family, all of them judged right; two of the family whose faults are small."""
    common = {"seed": 1, "ranks": 8, "steps": 200, "layout": "dp", "top": 3, "onset": 5, "since": 5}
    measured = {"effect": 0.1, "error": 0.001, "cost": 1.0, "judge_seconds": 0.5, "confidences": [0.9], "right": [1]}
    report = {"kinds": ["slow_link", "straggler"], "faults": [[3, "input"]], "blamed": [[3, "input"]]}
    found = common | measured | report | {name: [3] * place for place, name in enumerate(BASELINES)}
    nothing = {name: [] for name in ("faults", "blamed", "confidences", "right")}
    clean = nothing | {"kinds": ["balanced"], "top": None, "onset": None, "since": None, "cost": None}
    families = [name for name, share in suite.SHARES.items() if share]
    runs = [whole(found | (clean if name in ("clean", "hidden") else {}) | {"family": name}) for name in families]
    small = next(place for place, one in enumerate(runs) if one["family"] == "small")
    return [*runs[: small + 1], runs[small] | {"effect": 0.03, "steps": 100}, *runs[small + 1 :]]


def test_figures_of_fewer_runs_than_the_suite_has_now_say_so() -> None:
    """The tables state the number of runs, the edition and the commit."""
    prose, figures = table.README.read_text().split(table.BEGIN)
    runs = f"{sum(suite.SHARES.values()):,} runs"
    assert f"The {runs} of `suite.py`" in " ".join(prose.split())
    (title,) = [line for line in figures.splitlines() if " runs, " in line and "commit" in line]
    assert title.startswith(runs) or re.match(rf"[\d,]+ of {runs}, |[\d,]+ runs, of an earlier suite, ", title)
    assert re.search(r", edition \d+ of held-out seeds \(.*, commit [0-9a-f]{7,}:", title)


@pytest.mark.parametrize("family", ["stops", "stages", "two_causes", "handover"])
def test_a_family_of_its_own_kind_of_fault_is_counted_right_where_it_is(family: str) -> None:
    """Its row counts verdicts with the true rank, cause and kind, and no others."""
    name = {"stops": "hang or desync", "stages": "a pipeline's stage", "two_causes": "two ranks, two causes: each"}
    name["handover"] = "one rank, one cause after another: both"
    each, both = [[1, "gc"], [3, "input"]], [[1, "gc"], [1, "input"]]
    right = {
        "stops": {"kinds": ["hang"], "faults": [[3, "hang"]], "blamed": [[3, "hang"]]},
        "stages": {"kinds": ["uneven_workload"], "faults": [[0, "compute"], [1, "compute"]], "blamed": []},
        "two_causes": {"kinds": ["straggler"] * 2, "faults": each, "blamed": each},
        "handover": {"kinds": ["straggler"] * 2, "faults": both, "blamed": both},
    }[family]
    wrong = {
        "stops": [{"kinds": ["desync"]}, {"blamed": [[2, "hang"]]}, {"kinds": ["hang", "straggler"]}],
        "stages": [{"kinds": ["balanced"]}, {"blamed": [[0, "compute"], [1, "compute"]]}],
        "two_causes": [{"blamed": [[1, "input"], [3, "gc"]]}, {"blamed": [[1, "gc"]]}],
        "handover": [{"blamed": [[1, "gc"]]}, {"blamed": [*both, [2, "gc"]]}],
    }[family]
    common = {"family": family, "seed": 1, "steps": 90, "effect": 0.1, "cost": 1.0, "confidences": [], "right": []}
    for report, share in ((right, "1.000"), *((right | one, "0.000") for one in wrong)):
        (row,) = [line for line in table.tables([whole(common | report)]) if name[family] in line]
        assert row.split("|")[2].split()[0] == share


@pytest.mark.parametrize(("name", "family"), [("cohorts", "single"), ("lanes", "MPI")])
def test_jobs_are_judged_in_processes_of_their_own(tmp_path: Path, name: str, family: str) -> None:
    """Each process finds what it has to run."""
    out = tmp_path / "found.jsonl"
    asked = ["--suite", name, "--tuning", "--family", family, "--runs", "1", "--jobs", "1", "--out", str(out)]
    subprocess.run([sys.executable, str(BENCH), *asked], check=True, capture_output=True, timeout=60)
    assert out.read_text().count('"seed"') == 1
