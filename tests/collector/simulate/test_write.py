"""``hindmost simulate`` writes recordings that are read back as any other."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hindmost.errors import UsageError
from hindmost_cli import main
from hindmost_cli.simulate import EPILOG, parse_fault
from hindmost_collector.recordings.load import load
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.simulate.scenario import CAUSES
from hindmost_collector.simulate.write import CAUSE_SHOWN, simulated, write
from hindmost_judge.judge import judge

PAGE = Path(__file__).parents[3] / "docs/how-to/simulate-faults.md"


def test_a_run_directory_holds_what_was_simulated(tmp_path: Path) -> None:
    """Every step and collective comes back, and what hung is still in flight."""
    run = simulate(Scenario(4, 12, faults=(Fault("hang", (1,), onset=9),))).run
    write(run, tmp_path / "run", "run")
    again = load(tmp_path / "run")
    for name in ("duration_ns", "rank", "seq", "op"):
        assert np.array_equal(np.sort(again.collectives[name]), np.sort(run.collectives[name]))
    assert int(again.steps["gpu_forward_ns"].sum()) == int(run.steps["gpu_forward_ns"].sum())
    assert again.in_flight["rank"].tolist() == run.in_flight["rank"].tolist()
    assert set(again.in_flight["rank"].tolist()) == {0, 2, 3}


@pytest.mark.parametrize(("fault", "code"), [("compute", 0), ("hang", -15)])
def test_a_simulated_job_is_over(tmp_path: Path, fault: str, code: int) -> None:
    """No advice looks for processes that never were, and nothing counts as missing; one that hung was cancelled."""
    simulated(Scenario(4, 12, faults=(Fault(fault, (1,), 0.1, onset=9),)), tmp_path / "run")
    again = load(tmp_path / "run")
    assert (again.at_work, again.job.exit_code) == (False, code)
    found = json.dumps(judge(again).to_dict())
    assert "--pid" not in found
    assert "is missing" not in found


@pytest.mark.parametrize("layout", ["dp", "tp_dp", "pp_dp"])
def test_a_trace_folder_holds_who_waited_how_long(tmp_path: Path, layout: str) -> None:
    """Ranks, communicators, steps and durations survive the way through CSV."""
    run = simulate(Scenario(4, 6, layout=layout, tensor=2, pipeline=2)).run
    write(run, tmp_path / "traces", "traces")
    again = load(tmp_path / "traces")
    assert again.job.world_size == 4
    for rank in range(4):
        ours, theirs = (one.collectives["rank"] == rank for one in (run, again))
        for name in ("duration_ns", "comm", "step", "peer"):
            assert np.array_equal(np.sort(run.collectives[name][ours]), np.sort(again.collectives[name][theirs])), name


def test_the_truth_is_written_apart(tmp_path: Path) -> None:
    """Only the requested file holds the ground truth; the folder that the judge reads does not."""
    out, truth = tmp_path / "run", tmp_path / "truth.json"
    fault = ["--fault", "input:1:30%"]
    assert main(["simulate", str(out), "--ranks", "4", "--steps", "12", *fault, "--ground-truth", str(truth)]) == 0
    known = json.loads(truth.read_text())
    assert known["faults"][0]["ranks"] == [1]
    assert known["total_ns"] > known["repaired_ns"]
    assert not any(b"repaired" in path.read_bytes() for path in out.rglob("*") if path.is_file())


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    """Nothing is ever written over."""
    (tmp_path / "precious").write_text("x")
    with pytest.raises(UsageError, match="not empty"):
        write(simulate(Scenario(2, 3)).run, tmp_path, "run")
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_faults_are_spelled_on_the_command_line() -> None:
    """Cause, ranks, size, and where wanted an interval and a share of steps."""
    assert parse_fault("compute:3:20%") == [Fault("compute", (3,), 0.2)]
    assert parse_fault("gc:1,4-5:7.5%@40-90~30%") == [Fault("gc", (r,), 0.075, 40, 90, 0.3) for r in (1, 4, 5)]
    assert parse_fault("network:4-6:10%@20") == [Fault("network", (4, 5, 6), 0.1, 20)]  # shared: slower once, for all
    with pytest.raises(UsageError, match="--fault compute: expected"):
        parse_fault("compute")


def test_the_help_names_every_cause_that_can_be_simulated() -> None:
    """A fault can be put into a job without reading the code."""
    words = set(re.findall(r"\w+", EPILOG))
    assert [cause for cause in CAUSES if cause not in words] == []


@pytest.mark.parametrize("cause", sorted(set(CAUSES) - {"hang", "desync", "network"}))
def test_every_cause_that_can_be_simulated_is_found_as_what_it_is(cause: str) -> None:
    """The judge names the rank and the cause of a fault of a tenth of the step."""
    (verdict,) = judge(simulate(Scenario(16, 80, seed=4, faults=(Fault(cause, (5,), 0.12),))).run).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (5,), cause)


def test_noise_and_clocks_are_set_on_the_command_line(tmp_path: Path) -> None:
    """Without noise all ranks compute alike; clocks may be a second apart and no rank is named."""
    options = ["--ranks", "16", "--noise", "0", "--clock-offset-ms", "1000", "--clock-drift-ppm", "50", "--steps", "40"]
    assert main(["simulate", str(tmp_path / "run"), *options]) == 0
    run = load(tmp_path / "run")
    first = run.steps["start_ns"][run.steps["step"] == 0]
    assert np.ptp(first) > 10e6
    assert judge(run).verdicts[0].kind == "balanced"
    assert main(["simulate", str(tmp_path / "other"), "--noise", "-1"]) == 2


#: The expected verdict on a job with each fault: kind, and the named ranks.
_WITHOUT_CAUSE = {"hang": ("hang", (5,)), "desync": ("desync", (5,)), "network": ("slow_link", ())}
#: Of these folders of traces tell that something is computed longer at the usual clock, and no more.
_COMPUTED = ("compute", "gpu_contention", "workload")


def faulty(cause: str) -> Scenario:
    """A job of 8 ranks with one fault, from step 40 on where it has to begin."""
    onset = 40 if cause in _WITHOUT_CAUSE else 0
    return Scenario(8, 80, seed=4, layout="fsdp", faults=(Fault(cause, (5,), 0.12, onset=onset),))


@pytest.mark.parametrize("cause", CAUSES)
def test_what_trace_folders_hold_is_read_from_them(tmp_path: Path, cause: str) -> None:
    """The judge names who does not come, or the cause; where no file shows that, whose it is and what it costs."""
    made = simulate(faulty(cause))
    write(made.run, tmp_path / "traces", "traces")
    first = judge(load(tmp_path / "traces")).verdicts[0]
    assert (first.kind, first.ranks) == _WITHOUT_CAUSE.get(cause, ("straggler", (5,)))
    assert first.cause == (cause if cause in CAUSE_SHOWN and cause not in ("hang", "desync") else "unknown")
    if first.kind == "straggler":
        lost = (made.truth.total_ns - made.truth.repaired_ns) / 80 / 1e6
        assert first.cost_ms_per_step == pytest.approx(lost, rel=0.1)


def test_the_page_has_a_row_for_every_fault_and_output() -> None:
    """The page describes each fault's effect and its verdict as the tests here find them."""
    rows = dict(re.findall(r"^\| `(\w+)` \|(.*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert sorted(rows) == sorted(CAUSES)
    for cause, row in rows.items():
        _, run, traces, collector = (cell.strip() for cell in row.split(" | "))
        assert run == f"`{cause}`"
        assert collector.removesuffix(", live") == f"`{cause}`"
        causes = "`compute` or `unknown`" if cause in _COMPUTED else "`unknown`"
        assert traces == f"`{cause}`" if cause in CAUSE_SHOWN else traces.startswith(f"the rank, cause {causes}: ")


@pytest.mark.parametrize("cause", _COMPUTED)
def test_slightly_longer_computing_is_reported_as_compute_from_traces(tmp_path: Path, cause: str) -> None:
    """Files alone do not tell a GPU's other user, or more tokens, from a slow GPU."""
    made = simulate(Scenario(8, 80, seed=4, faults=(Fault(cause, (5,), 0.05),)))
    write(made.run, tmp_path / "traces", "traces")
    first = judge(load(tmp_path / "traces")).verdicts[0]
    assert (first.ranks, first.cause) == ((5,), "compute")


@pytest.mark.parametrize("layout", [{"layout": "dp"}, {"layout": "pp_dp", "pipeline": 2}])
def test_a_run_made_in_parts_is_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: dict[str, Any]) -> None:
    """What memory need not hold at once makes no difference to what is written."""
    scenario = Scenario(4, 12, seed=3, faults=(Fault("hang", (1,), onset=9),), **layout)
    write(simulate(scenario).run, tmp_path / "whole", "run")
    monkeypatch.setattr("hindmost_collector.simulate.write.ROWS_AT_ONCE", 60)
    simulated(scenario, tmp_path / "pieces")
    whole, made = load(tmp_path / "whole").tables(), load(tmp_path / "pieces").tables()
    for name in ("ranks", "steps", "collectives", "communicators", "in_flight", "metrics"):
        for column, values in whole[name].items():
            assert np.array_equal(np.sort(values), np.sort(made[name][column])), (name, column)
    assert len(list((tmp_path / "pieces" / "segments" / "collectives").glob("*.parquet"))) > 1
