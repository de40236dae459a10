"""What is wrong with a real job, and what to set: recordings of jobs on two CPUs, each with one thing wrong. Made by a
bench of commit d3657faf; folders of commands and metrics of hosts that no rule reads were cut."""

import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hindmost_collector.recordings.load import load
from hindmost_collector.report import section_rows
from hindmost_collector.report.sections import added
from hindmost_judge.judge import judge
from hindmost_judge.verdict.schema import Report


class Case(NamedTuple):
    """``verdicts``, ``bounds`` and ``settings`` that are right, any of them; none: nothing should be said."""

    wrong: str
    verdicts: tuple[str, ...]
    bounds: tuple[str, ...]
    settings: tuple[str | None, ...]


CASES = {
    "reads": Case("the file gives 4 MB/s", ("input_bound",), ("input",), ("storage",)),
    "ranks": Case("3 ranks a CPU", ("oversubscribed", "balanced"), ("cpu",), ("ranks per node",)),
    "threads": Case("4 threads a CPU", ("balanced", "oversubscribed"), ("cpu", "compute"), ("threads of each rank",)),
    "link": Case("100 Mbit/s", ("slow_link", "balanced"), ("communication",), ("collectives not overlapped",)),
    "one": Case("nothing", ("insufficient_data",), ("compute",), (None,)),
}

#: Other processes used 1.7 of the 2 CPUs while this was recorded: fewer ranks would not help.
CROWDED = "ranks"
FOLDER = Path(__file__).resolve().parents[1] / "fixtures/advice"


@cache
def judged(name: str) -> tuple[Report, dict[str, Any]]:
    """The report on a recording, and its sections of limits and advice."""
    run = load(FOLDER / f"{name}.tar.xz")
    found = judge(run)
    return found, section_rows.of(run, found.to_dict(), found.overview, ("limits", "advice"))


@pytest.mark.parametrize("name", CASES)
def test_a_job_is_bound_by_what_is_wrong_with_it(name: str) -> None:
    """Its first verdict blames no rank for it."""
    found, sections = judged(name)
    (bound,) = sections["limits"]["bound"]
    assert bound["by"] in CASES[name].bounds
    assert found.verdicts[0].kind in CASES[name].verdicts


@pytest.mark.parametrize("name", CASES)
def test_the_first_setting_to_try_is_the_right_one(name: str) -> None:
    """With what was found, the threshold, and what to type."""
    rows = judged(name)[1]["advice"]["settings"]
    assert (rows[0]["name"] if rows else None) in ((None,) if name == CROWDED else CASES[name].settings)
    assert all(row["found"] and row["threshold"] and row["set"] for row in rows)


#: MPI programs of four ranks with four threads each. The last rank has half as much again of cells, memory and halo.
UNEVEN = {"spin": ["uneven domains", "threads that spin"], "domains": ["uneven domains"]}


@pytest.mark.parametrize("name", UNEVEN)
def test_an_uneven_domain_comes_before_the_threads_that_spin_meanwhile(name: str) -> None:
    """No GPU of the node is the job's. Threads spin where OMP_WAIT_POLICY is active, and sleep where it is passive."""
    found, sections = judged(name)
    rows = sections["advice"]["settings"]
    assert [row["name"] for row in rows] == UNEVEN[name]
    assert (
        "1.4 times the memory of the others and 1.5 times the bytes sent and received of the others" in rows[0]["found"]
    )
    assert found.verdicts[0].ranks == (3,)
    (first, second) = added(found.to_dict(), sections)["verdicts"][0]["advice"]
    assert first.startswith("divide the domain by work")
    assert second.startswith("run rank 3 on another core")


def test_spreading_work_evenly_saves_less_than_a_delay_that_vanishes() -> None:
    """Of 1, 1, 1 and 1.5 parts of work each has 1.125: a quarter of the longest is gone. COST is up to a third."""
    report, made = judged("domains")
    (spread,) = re.findall(r"(\d+) %", made["advice"]["settings"][0]["found"])
    assert int(spread) == pytest.approx(25, abs=3)
    assert report.verdicts[0].cost_ratio == pytest.approx(0.30, abs=0.03)
