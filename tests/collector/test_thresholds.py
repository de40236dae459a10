"""Thresholds: one table, four layers, each mistake in one line; and no number of the judge without a reason."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
from hindmost.errors import UsageError
from hindmost_cli import main
from hindmost_collector.live import jobs
from hindmost_collector.live.evaluation_schedule import Judging
from hindmost_collector.options import resolve_thresholds, with_thresholds
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.settings import DEFAULT, Settings

from docs.generate import settings as documentation


def slow(seed: int = 1) -> Scenario:
    """A job with a rank that is 6 % slower."""
    return Scenario(ranks=8, steps=100, seed=seed, faults=(Fault(cause="compute", ranks=(3,), size=0.06),))


def test_what_is_set_wins_over_the_environment_over_the_file_over_the_default(tmp_path):
    """Four layers, as the collector's other settings have."""
    file = tmp_path / "c.toml"
    file.write_text('listen = "127.0.0.1:1"\n[judge]\nmin_effect = 0.02\nmin_steps = 20\nmin_z = 6\n')
    environ = {"HINDMOST_JUDGE_MIN_STEPS": "30", "HINDMOST_JUDGE_MIN_Z": "7", "HINDMOST_COLLECTOR_HTTP": "none"}
    found = resolve_thresholds(["min_z=8"], environ, file)
    assert found == dataclasses.replace(DEFAULT, min_effect=0.02, min_steps=30, min_z=8.0)


def test_a_former_name_is_understood_wherever_a_threshold_is_set():
    """Scripts, files and recordings of an older version still hold."""
    renamed = dataclasses.replace(DEFAULT, max_segments=5)
    assert resolve_thresholds(["max_stretches=5"], {}) == renamed
    assert resolve_thresholds([], {"HINDMOST_JUDGE_MAX_STRETCHES": "5"}) == renamed
    assert with_thresholds({"max_stretches": 5}, {}) == renamed


@pytest.mark.parametrize(
    ("sets", "environ", "toml", "said"),
    [
        (
            ["min_efect=1"],
            {},
            "",
            "--set min_efect is not a threshold: did you mean min_effect? docs/reference/thresholds.md",
        ),
        (["zzz=1"], {}, "", "--set zzz is not a threshold: docs/reference/thresholds.md lists them"),
        (["min_effect"], {}, "", "--set min_effect: write NAME=VALUE, like --set min_effect=0.02"),
        (["min_effect=2"], {}, "", "--set min_effect is 2: between 0 and 1 (of the step)"),
        (["min_effect=nan"], {}, "", "--set min_effect is 'nan', which is not a number"),
        (["min_effect=1%"], {}, "", "--set min_effect is '1%', which is not a number"),
        (["min_steps=2.5"], {}, "", "--set min_steps is '2.5', which is not a whole number"),
        (["min_steps=0"], {}, "", "--set min_steps is 0: between 1 and 100000 (steps)"),
        ([], {"HINDMOST_JUDGE_MIN_STEPS": ""}, "", "HINDMOST_JUDGE_MIN_STEPS is '', which is not a whole number"),
        ([], {"HINDMOST_JUDGE_MINSTEPS": "1"}, "", "HINDMOST_JUDGE_MINSTEPS is not a threshold: did you mean"),
        ([], {}, "[judge]\nmin_z = true", "c.toml: judge.min_z is True, which is not a number"),
        ([], {}, "judge = 3", "c.toml: judge is 3: write thresholds under [judge]"),
        ([], {}, "[jugde]\nmin_z = 1", "c.toml: jugde is neither [judge] nor a setting of the collector"),
        (["hang_seconds=1"], {}, "", "hang_way_seconds is 1: less than hang_seconds, which is 1"),
    ],
)
def test_a_mistake_is_one_line_that_names_what_was_written(tmp_path, sets, environ, toml, said):
    """Unknown names, other kinds and values out of range, from each layer."""
    file = tmp_path / "c.toml"
    file.write_text(toml)
    with pytest.raises(UsageError) as error:
        resolve_thresholds(sets, environ, file)
    assert str(error.value).replace(f"{tmp_path}/", "").startswith(said)
    assert "\n" not in str(error.value)


def test_every_default_is_within_its_range_and_has_unit_and_reason():
    """What the table says of itself holds."""
    for field in dataclasses.fields(Settings):
        low, high = field.metadata["low"], field.metadata["high"]
        assert low <= field.default <= high, field.name
        assert field.metadata["unit"], field.name
        assert len(field.metadata["reason"].split()) > 5, field.name


def test_no_number_of_the_judge_is_without_a_reason():
    """Each module-level number of each module that judges has a comment above it."""
    found = documentation.constants()
    assert [f"{one.module}.{one.name}" for one in found if len(one.reason.split()) < 5] == []


def test_the_numbers_are_found_in_all_that_judges():
    """The search follows the judge's own imports: detectors, causes, costs and words, and what is asked live."""
    wanted = ["detect.straggler", "detect.nested_segments", "whatif.pipeline_replay", "whatif.savings", "causes.table"]
    wanted = [f"hindmost_judge.{one}" for one in wanted]
    assert {*wanted, "hindmost_collector.live.verdicts", "hindmost_collector.live.jobs"} <= set(documentation.modules())
    known = {f"{constant.module}.{constant.name}": constant.value for constant in documentation.constants()}
    assert known["hindmost_judge.detect.straggler._STANDS_OUT"] == "3.5"
    assert known["hindmost_judge.whatif.pipeline_replay._HELD, _HELD_NS"] == "2.0, 50000.0"


def test_a_set_threshold_decides_and_is_reported():
    """A slow rank below what was set is not named, and the report says by what it was judged."""
    run = simulate(slow()).run
    usual, other = judge(run), judge(run, Settings(min_effect=0.2))
    assert usual.verdicts[0].ranks == (3,)
    assert other.verdicts[0].kind == "balanced"
    assert "judged with other thresholds: min_effect 0.2 (default 0.01)" in other.notes
    assert not [note for note in usual.notes if "thresholds" in note]


def test_report_takes_them_from_the_command_line(tmp_path, says, monkeypatch):
    """``--set`` and the environment reach the judge; a mistake is said before anything is read."""
    says(0, ["simulate", "--ranks", "8", "--steps", "60", "--fault", "compute:3:6%", str(tmp_path / "r")])
    asked = ["report", str(tmp_path / "r"), "--format", "json"]
    assert json.loads(says(0, [*asked, "--set", "min_effect=0.2"]).out)["verdicts"][0]["kind"] == "balanced"
    monkeypatch.setenv("HINDMOST_JUDGE_MIN_EFFECT", "0.3")
    assert json.loads(says(0, asked).out)["verdicts"][0]["kind"] == "balanced"
    assert main(["report", "/nowhere", "--set", "min_effect=x"]) == 2
    assert "did you mean min_effect?" in says(2, ["run", "--set", "min_efect=1", "--", "true"]).err


def test_a_later_report_judges_by_what_was_set_for_the_run(tmp_path, says):
    """It is in its ``meta.json``; the report's own settings count more, and a wrong value there does no harm."""
    says(0, ["simulate", "--ranks", "8", "--steps", "60", "--fault", "compute:3:6%", str(tmp_path / "r")])
    meta = json.loads((tmp_path / "r/meta.json").read_text())
    stored = {"min_effect": 0.2, "min_steps": "x", "of_another_version": 1}
    (tmp_path / "r/meta.json").write_text(json.dumps({**meta, "thresholds": stored}))

    asked = ["report", str(tmp_path / "r"), "--format", "json"]
    report = json.loads(says(0, asked).out)
    assert report["verdicts"][0]["kind"] == "balanced"
    assert "judged with other thresholds: min_effect 0.2 (default 0.01)" in report["notes"]
    assert json.loads(says(0, [*asked, "--set", "min_effect=0.01"]).out)["verdicts"][0]["ranks"] == [3]


def test_a_running_job_is_judged_by_them():
    """The collector's judge and its patience with a hang are those that were set."""
    run = simulate(slow()).run
    report = Judging(settings=Settings(min_effect=0.2)).judged("j", lambda: run)
    assert report is not None
    assert report["verdicts"][0]["kind"] == "balanced"
    watch = jobs.StallWatch(Settings(hang_seconds=20.0))
    job = SimpleNamespace(report={"job": {}}, window=SimpleNamespace(waiting=True, quiet_ns=30e9))
    assert watch.urgent(job)
    assert not jobs.StallWatch(Settings()).urgent(job)
