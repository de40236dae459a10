"""Comparison of two runs."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hindmost.errors import UsageError
from hindmost_collector.recordings.tables import select, table
from hindmost_collector.report import columns, section_rows
from hindmost_collector.report import compare as text
from hindmost_collector.report.compare import compare, condition, measured, scaling
from hindmost_collector.report.verdict_lines import rendered
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.simulate.write import write
from hindmost_judge.judge import judge
from hindmost_judge.model import COLLECTIVES, Run, empty

from tests.commands import Says
from tests.scenarios import loads

SLOW = {"rank": 2, "compute": 3.0}


def job(seed: int = 1, command: str = "train.py", **more: Any) -> Run:
    run = loads.make(loads.Load(seed=seed, **more))
    return dataclasses.replace(run, job=dataclasses.replace(run.job, command=command))


def measure(found: dict[str, Any], name: str) -> dict[str, Any]:
    (one,) = [one for one in found["measures"] if one["name"] == name]
    return one


def test_a_slower_run_is_reported_with_its_interval_and_its_new_verdict() -> None:
    """Rank 2 computes 3 ms more: a little less than that is what the step, which waited for its latest, is longer."""
    found = compare(job(), job(2, faults=[SLOW]))
    step = measure(found, "step")
    assert step["changed"]
    assert 2.5 < step["low_ms"] < step["change_ms"] < step["high_ms"] < 3.0
    assert [(one["kind"], one["ranks"]) for one in found["verdicts"]["new"]] == [("straggler", [2])]
    assert found["verdicts"]["gone"] == []


def test_a_stall_of_a_job_that_went_on_is_new() -> None:
    """Or gone, where the first run has it; no verdict names a rank for it."""
    found = compare(job(1), job(2))
    stalls = [{"since_s": 3.0, "until_s": 15.0, "ranks": [2], "node": None}]
    for has, label in (("b", "NEW"), ("a", "GONE"), ("ab", "STILL")):
        jobs = {run: found[run] | {"stalls": stalls if run in has else [], "duration_s": 40.0} for run in "ab"}
        line = f"{label} HUNG for 12.0 s, then went on: rank 2 did not arrive; 12.0 of 40.0 s (30 %)"
        assert line in " ".join(text.render(found | jobs, width=200).split())


@pytest.mark.parametrize(("rank", "seconds"), [(5, 0.5), (2, 270.0)])
def test_stalls_of_other_ranks_or_another_length_are_gone_and_new(rank: int, seconds: float) -> None:
    """Nothing of A is still there: what B has is no part of it."""
    found = compare(job(1), job(2))
    stalls = {"a": (2, 0.5), "b": (rank, seconds)}
    for run, (who, lasts) in stalls.items():
        stall = {"since_s": 3.0, "until_s": 3.0 + lasts, "ranks": [who], "node": None}
        found[run] |= {"duration_s": 400.0, "stalls": [stall]}
    lines = [line.split()[:4] for line in text.render(found, width=200).splitlines()]
    hung = [line[::3] for line in lines if "HUNG" in line]
    assert hung == [["NEW", f"{seconds:.1f}"], ["GONE", "0.5"]]


def test_a_verdict_in_one_line_says_once_since_when() -> None:
    """Its cost is of the same steps."""
    shown = text.render(compare(job(), job(2, faults=[SLOW | {"from": 60}])), width=200)
    (line,) = (line for line in shown.splitlines() if line.startswith("NEW"))
    assert line.count("since") == 1
    assert "ms per step (" in line


def test_two_runs_of_the_same_are_no_change() -> None:
    """Other noise is no other speed."""
    found = compare(job(1), job(2))
    assert measure(found, "step")["changed"] is False
    assert not any(found["verdicts"].values())
    assert not condition("step>0%").holds(found)
    assert "RESULT no change" in text.render(found)


@pytest.mark.parametrize(("change", "reported"), [(0.3, False), (0.7, True)])
def test_a_negligible_change_is_none_however_sure(change: float, reported: bool) -> None:
    """Of steps of 100 ms that hardly differ, half a millisecond is the least."""
    steps = np.random.default_rng(1).normal(100e6, 0.1e6, 400)
    found = measured("step", steps, steps + change * 1e6, 100e6)
    assert found["changed"] is reported
    assert found["low_ms"] is not None
    assert found["low_ms"] > 0


def test_what_stays_and_what_goes() -> None:
    """The same rank in both is the same trouble; another kind or rank is not."""
    other = {"rank": 1, "compute": 6.0}
    found = compare(job(faults=[SLOW]), job(2, faults=[SLOW]))
    assert [one["b"]["ranks"] for one in found["verdicts"]["kept"]] == [[2]]
    found = compare(job(faults=[SLOW]), job(2, faults=[other]))
    assert [one["ranks"] for one in found["verdicts"]["gone"]] == [[2]]
    assert [one["ranks"] for one in found["verdicts"]["new"]] == [[1]]


def test_what_the_other_run_cannot_show_is_neither_gone_nor_new() -> None:
    """A run of too few steps, or one that was not judged, says nothing of a slow rank; a hang shows itself."""
    slow, short = job(faults=[SLOW]), job(2, steps=5)
    found = compare(slow, short)["verdicts"]
    assert ([one["ranks"] for one in found["only_a"]], found["gone"]) == ([[2]], [])
    shown = text.render(compare(slow, short), width=300)
    assert "ONLY A SLOW rank 2: computing" in shown
    assert "; B could not be judged, and may have it too" in shown
    found = compare(short, slow)["verdicts"]
    assert ([one["ranks"] for one in found["only_b"]], found["new"]) == ([[2]], [])
    found = compare(short, loads.hang(loads.Load(seed=2), [3]))["verdicts"]
    assert [one["kind"] for one in found["new"]] == ["hang"]


def test_a_run_that_hung_is_never_simply_faster() -> None:
    """What matters of it comes first, however quick its steps were until then."""
    found = compare(job(), loads.hang(loads.Load(seed=2, compute=5.0), [3]))
    (result,) = [line for line in text.render(found, width=300).splitlines() if line.startswith("RESULT")]
    assert result.split(maxsplit=1)[1].startswith("B did not finish: HUNG in step 150: rank 3 did not arrive")
    assert result.index("did not finish") < result.index("B is faster by")
    assert text.render(found, width=300).count("HUNG") == 1


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        ({"exit_code": 130, "interrupted_by": "SIGINT"}, "was interrupted by SIGINT"),
        ({"exit_code": 137}, "failed: exit code 137 (SIGKILL)"),
    ],
)
def test_a_run_that_did_not_end_well_is_never_simply_faster(ended: dict[str, Any], said: str) -> None:
    """The result begins with that, and no note repeats it."""
    cut = job(2)
    cut = dataclasses.replace(cut, job=dataclasses.replace(cut.job, **ended))
    lines = text.render(compare(job(faults=[SLOW]), cut), width=300).splitlines()
    (line,) = [line for line in lines if f"B {said}" in line]
    assert line.startswith(f"RESULT B {said}; until then B is faster by")


def test_what_acts_in_a_part_of_the_steps_is_a_change_of_the_mean() -> None:
    """The median step is one without the fault; the mean is not."""
    found = compare(job(), job(2, faults=[{"rank": 2, "compute": 3.0, "from": 100}]))
    assert measure(found, "step")["change_ms"] < 0.5
    mean = measure(found, "mean_step")
    assert mean["changed"]
    assert 0.5 < mean["change_ms"] < 1.5
    assert "slower by" in text.render(found, width=200)


def test_a_job_whose_mean_step_did_not_change_is_not_called_slower() -> None:
    """The median alone changes where steps become more alike: the job takes as long."""
    found = compare(job(), job(2, faults=[SLOW]))
    measure(found, "mean_step")["changed"] = False
    shown = text.render(found, width=200)
    assert "RESULT no sure change of the mean step" in shown
    assert "the median is slower by" in shown


def used_by_others(run: Run) -> Run:
    """A node of 4 CPUs, of which its ranks use 1 and all else 2.6."""
    total = "hindmost_node_cpu_seconds_total"
    series = (
        ("hindmost_node_cpus", {}, 4.0, 4.0),
        (total, {"mode": "user"}, 0.0, 3.6),
        (total, {"mode": "idle"}, 0.0, 0.4),
        ("hindmost_process_cpu_seconds_total", {"rank": "0"}, 0.0, 1.0),
    )
    names, labels, *values = zip(*series, strict=True)
    sampled = table(
        "metrics",
        node=np.full(2 * len(series), "vm"),
        name=np.tile(names, 2),
        labels=np.tile([json.dumps(one) for one in labels], 2),
        time_ns=np.repeat([0, 10**9], len(series)),
        value=np.concatenate(values),
    )
    return dataclasses.replace(run, metrics=sampled)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"runqueue": 3.0}, "by waiting for a CPU, not by code"),
        ({"runqueue": 3.0, "compute": 1.5}, "mostly by waiting for a CPU"),
        ({"runqueue": 1.0, "compute": 3.0}, "partly by waiting for a CPU"),
        ({"compute": 3.0}, ""),
    ],
)
def test_a_step_that_is_longer_by_waits_for_a_cpu_is_not_its_code(fault: dict[str, float], said: str) -> None:
    """One rank waits for other processes, and all wait for it; back again it is by less of that."""
    runs = job(), used_by_others(job(2, faults=[{"rank": 2, **fault}]))
    there, back = (" ".join(text.render(compare(*both), width=200).split()) for both in (runs, runs[::-1]))
    assert ("for a CPU" in there.partition("WHY")[0]) == bool(said)
    assert f"ms), {said}" in there if said else "WHY" not in there
    assert said.replace("waiting", "waiting less") in back


def test_other_processes_of_the_run_that_waits_less_blame_nothing() -> None:
    """They were on its CPUs, and it was fast."""
    calm, waits = used_by_others(job()), job(2, faults=[{"rank": 2, "runqueue": 3.0}])
    shown = [text.render(compare(*both), width=200) for both in ((calm, waits), (waits, calm))]
    assert all("for a CPU" in one for one in shown)
    assert not any("not by code" in one for one in shown)


@pytest.mark.parametrize(("kept", "who"), [((0,), "the rank waits"), ((0, 1), "the rank that takes longest waits")])
def test_no_rank_is_last_where_none_is_seen_to_arrive(kept: tuple[int, ...], who: str) -> None:
    """Of steps without collectives the longest rank is compared, rank 0."""
    runs = []
    for faults in ((), (Fault("cpu_contention", (0,), 0.3),)):
        run = simulate(Scenario(2, 60, faults=faults)).run
        tables = {name: getattr(run, name) for name in ("steps", "ranks", "intervals")}
        kept_rows = {name: select(one, np.isin(one["rank"], kept)) for name, one in tables.items()}
        runs.append(dataclasses.replace(run, **kept_rows, collectives=empty(COLLECTIVES)))
    found = compare(*runs)
    assert found["by_cpu_wait"]["wait_ms"][1] == pytest.approx(30.0, rel=0.1)
    assert f"WHY    {who} for a CPU" in text.render(found, width=200)


def test_the_same_rank_late_for_another_reason_is_reported_as_that() -> None:
    """The same rank in both, but other work to do."""
    waits = {"rank": 2, "runqueue": 3.0}
    found = compare(job(faults=[waits]), job(2, faults=[SLOW]))
    assert [one["a"]["cause"] for one in found["verdicts"]["kept"]] == ["cpu_contention"]
    assert re.search(r"; in A .* ms per step, waiting for a CPU", text.render(found, width=300))


def test_the_page_says_first_what_changed() -> None:
    """Who is compared, the result, what is new; then the table."""
    lines = text.render(compare(job(), job(2, "train.py --slow", faults=[SLOW])), width=80).splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["A", "B", "RESULT", "NEW"]
    assert "B is slower by" in lines[2]
    assert any("only B has `--slow`" in line for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("a", "b", "difference"),
    [
        ("--image-size 64", "--image-size 128", "only A has `--image-size 64`; only B has `--image-size 128`"),
        (
            "--lr 1 --epochs 2",
            "--rate 1 --epochs 3",
            "only A has `--lr 1`, `--epochs 2`; only B has `--rate 1`, `--epochs 3`",
        ),
        ("--lr=1 x", "--lr=2 x", "only A has `--lr=1`; only B has `--lr=2`"),
        ("-b 8", "-b 8 --slow --steps 9 out", "only B has `--slow`, `--steps 9`, `out`"),
        ("-b 8 --lr 1 x", "--slow -b 8 x", "only A has `--lr 1`; only B has `--slow`"),
        ("-b 8 --lr 1", "--lr 1 -b 8", ""),
        ("-b 8 in --lr 1", "-b 8 in out --lr 1", "only B has `out`"),
        ("a b", "b a", "in another place: `b`"),
        ("a --fast : b", "a : b --fast", "in another place: `--fast`"),
        ("--lr 1 a", "a --lr 1 --slow", "only B has `--slow`; in another place: `a`"),
        ("--amp data --lr 1", "data --lr 1", "only A has `--amp`"),
        ("--amp data", "--amp -b 8 out", "only A has `data`; only B has `-b 8`, `out`"),
        ("--betas 0.9 0.9", "--betas 0.9", "only A has `0.9`"),
        ("-n 2 taskset -c 0 python x", "-n 2 python x", "only A has `taskset -c 0`"),
        ("-np 2 --oversubscribe ./app", "--oversubscribe -np 2 ./app", ""),
        ("-np 4 x : -np 8 y", "-np 8 x : -np 4 y", "in another place: `-np 4`, `-np 8`"),
    ],
)
def test_commands_differ_by_whole_arguments(a: str, b: str, difference: str) -> None:
    """An option has its value, and words that are apart in the command are apart in the note."""
    found = compare(job(command=f"train.py {a}"), job(command=f"train.py {b}"))
    assert found["notes"] == [f"the command differs: {difference}"] * bool(difference)


def test_a_long_list_of_arguments_breaks_between_them() -> None:
    """No line ends inside an option."""
    options = [f"--option-{place} {place}" for place in range(12)]
    lines = text.render(compare(job(), job(command=f"train.py {' '.join(options)}")), width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert all(sum(f"`{option}`" in line for line in lines) == 1 for option in options)


def test_a_simulation_is_titled_by_its_job() -> None:
    """The program that made it is ours: its name says nothing."""
    found = {"job": {"id": "slow-rank-3", "command": "hindmost simulate --ranks 8"}}
    assert columns.title(found) == "hindmost · slow-rank-3"


def test_a_run_without_steps_is_reported_as_that() -> None:
    """Nothing is compared with nothing."""
    nothing = dataclasses.replace(job(), collectives=empty(COLLECTIVES))
    assert "no comparison" in text.render(compare(job(), nothing))


def test_the_command_compares_two_folders(tmp_path: Path, says: Says) -> None:
    """``hindmost compare A B`` takes whatever ``hindmost report`` takes."""
    for name, faults in (("a", []), ("b", [SLOW])):
        write(job(faults=faults), tmp_path / name, "run")
    found = says(0, ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--format", "json"]).out
    assert json.loads(found)["schema"] == "hindmost.compare/1"
    for command in (["compare", str(tmp_path / "a")], ["report"]):
        assert "none: no such file or folder; give a run directory" in says(2, [*command, str(tmp_path / "none")]).err


def test_a_run_is_not_compared_with_itself(tmp_path: Path, says: Says) -> None:
    """However its path is written: a condition to fail would always pass."""
    (tmp_path / "a").mkdir()
    assert "one run is named twice" in says(2, ["compare", str(tmp_path / "a"), f"{tmp_path}/b/../a/"]).err


def trained(ranks: int, batch: int, step_ms: float = 100.0, seed: int = 1) -> Run:
    """A job of so many ranks, each with a batch of so many samples a step."""
    run = simulate(Scenario(ranks, 60, seed=seed, step_ms=step_ms)).run
    return dataclasses.replace(run, steps=run.steps | {"work": np.full(len(run.steps["rank"]), batch)})


def test_a_pace_is_the_same_in_a_report_and_in_a_comparison() -> None:
    """Also where the steps of a block are not as long, or of as much work, as those of the next."""
    run = trained(4, 32)
    longer = 1 + run.steps["step"] % 7
    run = dataclasses.replace(run, steps=run.steps | {"work": run.steps["work"] * longer})
    found = judge(run)
    (pace,) = section_rows.of(run, found.to_dict(), found.overview, ("throughput",))["throughput"]["job"]
    paces = {rate["name"]: (rate["a"], rate["b"]) for rate in compare(run, trained(4, 64))["rates"]}
    row = next(row for row in scaling([run, trained(8, 32)])["runs"] if row["ranks"] == 4)
    for name in ("steps_per_s", "work_per_s"):
        assert pace[name] == paces[name][0] == row[name]


def test_runs_with_other_batches_are_compared_by_their_work() -> None:
    """Twice the batch in 1.5 times the step is a third more samples a second, though each step is longer."""
    found = compare(trained(4, 32), trained(4, 64, step_ms=150.0))
    rates = {rate["name"]: rate for rate in found["rates"]}
    assert rates["work_per_s"]["change"] == pytest.approx(1 / 3, abs=0.05)
    assert rates["work_per_s"]["changed"]
    assert rates["steps_per_s"]["change"] < -0.25
    shown = text.render(found, width=200)
    assert re.search(r"RESULT B does 3\d % more items/s: \S+ to ", shown)
    assert "a step has 128 items in A and 256 in B" in shown
    assert "PACE" not in shown


def test_an_interval_without_width_is_left_out() -> None:
    """It looks like an error."""
    found = compare(trained(4, 32), trained(4, 32, step_ms=300.0))
    (pace,) = [rate for rate in found["rates"] if rate["name"] == "work_per_s"]
    pace |= {"low": pace["change"] - 1e-4, "high": pace["change"] + 1e-4}
    shown = text.render(found, width=200)
    assert re.search(r"PACE   B does 6\d % fewer items/s: \S+ to [\d.,]+\n", shown)


@pytest.mark.parametrize("goes_on", [True, False])
def test_what_goes_on_in_one_rank_is_not_gone(goes_on: bool) -> None:
    """Input that held up all ranks, and now holds up one, reads as fixed otherwise."""
    found = compare(job(), job(2, faults=[SLOW]))
    (late,) = found["verdicts"]["new"]
    before = late | {"kind": "input_bound", "cause": "input", "ranks": [], "victims": []}
    found["verdicts"] |= {"gone": [before], "new": [late | {"cause": "input"}] * goes_on}
    assert ("GONE" in text.render(found, width=200)) is not goes_on


@pytest.mark.parametrize("counted", [{}, {"work_per_step": [None, 128.0]}])
def test_the_same_work_has_no_note_on_it(counted: dict[str, Any]) -> None:
    """Nor a change of pace beyond noise; and no work that one run did not count is compared."""
    shown = text.render(compare(trained(4, 32), trained(4, 32, seed=2)) | counted, width=200)
    assert "a step has" not in shown
    assert "PACE   " in shown
    assert "no change beyond noise" in shown


@pytest.mark.parametrize(
    ("asked", "fails"),
    [("step>3%", True), ("step>60%", False), ("step<-3%", False), ("steps_per_s<-3%", True), ("transfer>3%", False)],
)
def test_a_condition_fails_where_a_change_is_sure_and_large(asked: str, fails: bool) -> None:
    """A step of 10 ms instead of 8.5; noise is no failure."""
    found = compare(job(), job(2, faults=[SLOW]))
    assert condition(asked).holds(found) is fails


@pytest.mark.parametrize(
    ("a", "b", "asked", "fails"),
    [
        (0.0, 3.0, "gc>3%", True),
        (0.0, 3.0, "gc<-3%", False),
        (3.0, 0.0, "gc<-99%", True),
        (3.0, 0.0, "gc>3%", False),
        (0.0, 0.0, "gc>-3%", False),
    ],
)
def test_a_condition_holds_where_a_measure_comes_or_goes(a: float, b: float, asked: str, fails: bool) -> None:
    """From nothing any increase is infinite; to nothing is 100 % less."""
    steps = np.random.default_rng(1).normal(1e6, 1e4, 400)
    found = {"rates": [], "measures": [measured("gc", a * steps, b * steps, 100e6)]}
    assert condition(asked).holds(found) is fails


@pytest.mark.parametrize("asked", ["step", "step>3", "step>=3%", "step>x%", ""])
def test_a_condition_that_is_none_is_an_error(asked: str) -> None:
    """It says how one is written."""
    with pytest.raises(UsageError, match="expected MEASURE>N%"):
        condition(asked)


def test_what_was_not_measured_neither_fails_nor_passes() -> None:
    """A check in CI that cannot tell is an error, and names what there is."""
    with pytest.raises(UsageError, match=r"--fail-if input>3%: not measured in both runs; measured are .*step"):
        condition("input>3%").holds(compare(job(1), job(2)))


def test_the_command_fails_by_a_condition(tmp_path: Path, says: Says) -> None:
    """With 1, after the comparison; with 2 where it cannot be decided."""
    for name, faults in (("a", []), ("b", [SLOW])):
        write(job(faults=faults), tmp_path / name, "run")
    command = ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--fail-if"]
    says(0, [*command, "step>90%"])
    said = says(1, [*command, "step>3%"])
    assert "RESULT B is slower" in said.out
    assert said.err == "hindmost: failed by --fail-if step>3%\n"
    says(2, [*command, "input>3%"])
    write(job(faults=[{"rank": 2, "runqueue": 3.0}]), tmp_path / "c", "run")
    waits = ["compare", str(tmp_path / "a"), str(tmp_path / "c"), "--fail-if"]
    assert "--fail-if step>3%: the step changed by waiting for a CPU" in says(1, [*waits, "step>3%"]).err
    assert says(1, [*waits, "wait>3%"]).err == "hindmost: failed by --fail-if wait>3%\n"


def test_several_runs_show_how_far_more_ranks_are_faster() -> None:
    """4, 8 and 16 ranks, of which the largest run takes 125 ms a step and not 100: an efficiency of 80 %."""
    runs = [trained(16, 32, step_ms=131.0), trained(4, 32), trained(8, 32)]
    found = scaling(runs)
    assert (found["schema"], found["by"]) == ("hindmost.scaling/1", "work_per_s")
    assert [run["ranks"] for run in found["runs"]] == [4, 8, 16]
    assert [run["speed_up"] for run in found["runs"]] == pytest.approx([1.0, 2.0, 4 * 0.77], rel=0.03)
    assert [run["efficiency"] for run in found["runs"]] == pytest.approx([1.0, 1.0, 0.77], abs=0.03)
    shown = text.render_scaling(found, 80)
    by = r"RESULT 16 ranks are 3\.\d\d times as fast as 4 \(efficiency 7\d %\), by items/s"
    assert re.search(by, " ".join(shown.split()))
    assert [line.split(" ·")[0].split() for line in shown.splitlines()[:3]] == [
        [name, run["id"]] for name, run in zip("BCA", found["runs"], strict=True)
    ]
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown  # no heading is cut
    bars = [line.count("█") for line in shown.splitlines() if "█" in line]
    assert bars == sorted(bars, reverse=True)
    assert [line.split()[-1] for line in shown.splitlines() if line.startswith("A ")][-1] == "OK"


def test_a_table_of_runs_has_the_head_words_of_their_reports() -> None:
    """A job of which all ranks became slower has no slow rank, and is SLOW."""
    slow = job(ranks=1, kind="torch", steps=150, faults=[{"rank": 0, "compute": 4.0, "from": 60}])
    heads = {run["id"]: run["head"] for run in scaling([slow, trained(8, 32)])["runs"]}
    assert heads[slow.job.id] == rendered(judge(slow).to_dict())[0].head == "SLOW"


def test_runs_that_cannot_be_compared_say_so() -> None:
    """Without steps there is no speed-up, and no number in its place."""
    nothing = dataclasses.replace(job(), collectives=empty(COLLECTIVES))
    found = scaling([nothing, nothing, nothing])
    assert {run["speed_up"] for run in found["runs"]} == {None}
    assert "no comparison" in text.render_scaling(found)


def started_with(run: Run, *settings: tuple[str, str], **more: Any) -> Run:
    return dataclasses.replace(run, job=dataclasses.replace(run.job, settings=settings, **more))


def test_settings_that_changed_are_listed() -> None:
    """What both were started with alike is not; what one did not set is no value."""
    a = started_with(job(), ("OMP_NUM_THREADS", "1"), ("NCCL_ALGO", "Ring"), thresholds=(("min_steps", 15.0),))
    b = started_with(job(2), ("OMP_NUM_THREADS", "4"), ("NCCL_ALGO", "Ring"), ("NCCL_DEBUG", "INFO"))
    found = compare(a, b)
    assert found["settings"] == [
        {"name": "OMP_NUM_THREADS", "a": "1", "b": "4"},
        {"name": "--set min_steps", "a": "15", "b": None},
        {"name": "NCCL_DEBUG", "a": None, "b": "INFO"},
    ]
    shown = text.render(found, width=80)
    assert "SET    OMP_NUM_THREADS: 1 in A, 4 in B" in shown
    assert "NCCL_DEBUG: not set in A, INFO in B" in shown


def test_no_setting_changed_of_a_run_that_recorded_none() -> None:
    """Other tools' traces do not say what the job was started with."""
    assert compare(job(), started_with(job(2), ("OMP_NUM_THREADS", "4")))["settings"] == []


def with_versions(run: Run, *versions: str) -> Run:
    marks = [f"version {version}" for version in versions]
    return dataclasses.replace(run, intervals=table("intervals", rank=np.arange(len(marks)), name=marks))


def test_a_library_of_another_version_is_listed() -> None:
    """A version that only one run recorded is unknown in the other, and ranks may differ."""
    a = with_versions(job(), "torch 2.10.0", "torch 2.11.0", "horovod 0.28.1")
    b = with_versions(job(), "nccl 2.28.9", "torch 2.11.0")
    assert compare(a, b)["settings"] == [{"name": "torch", "a": "2.10.0, 2.11.0", "b": "2.11.0"}]


def test_a_framework_that_one_run_did_not_name_is_no_setting_that_changed() -> None:
    """As of a library's version: an empty name says nothing."""
    named = dataclasses.replace(job(2), ranks={**job(2).ranks, "framework": np.full(4, "torch")})
    assert compare(job(), named)["settings"] == []
    other = dataclasses.replace(named, ranks={**named.ranks, "framework": np.full(4, "mpi4py")})
    assert compare(named, other)["settings"] == [{"name": "framework", "a": "torch", "b": "mpi4py"}]


def test_two_runs_are_measured_in_the_same_phases_as_their_steps() -> None:
    """What lies inside of other phases is compared, too."""
    run = simulate(Scenario(4, 60)).run
    run = dataclasses.replace(run, steps=run.steps | {"gc_ns": np.full(len(run.steps["rank"]), 2_000_000)})
    names = {one["name"] for one in compare(run, run)["measures"]}
    assert {"step", "mean_step", "input", "gpu_forward", "gc", "wait", "transfer"} <= names
