"""Ranks that are missing: never recorded, lost, or out of contact; what is known without them."""

import json
import os
import pickle
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import hindmost
import pytest
from hindmost_cli.run import environment
from hindmost_cli.run.environment import kept_out
from hindmost_collector.recordings.load import load
from hindmost_collector.recordings.tables import table
from hindmost_collector.report.verdict_lines import of_verdict
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge import job_command
from hindmost_judge.encoding import chosen
from hindmost_judge.judge import judge
from hindmost_judge.model import Job, Run, Unrecorded
from hindmost_judge.verdict import missing_ranks
from hindmost_judge.verdict.missing_ranks import Absent
from hindmost_judge.verdict.schema import Verdict

from tests.runs import only, with_job, with_rows


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python -I loop.py", ("python", "-I")),
        ("mpirun -np 4 /opt/bin/python3.11 -uE train.py -S", ("/opt/bin/python3.11", "-E")),
        ("python3 -W ignore -X dev -Im train", ("python3", "-I")),
        ("python -IS loop.py", ("python", "-S")),
        ("python -u -m train -I", None),
        ("python -WI loop.py", None),
        ("python loop.py -I -E", None),
        ("cat -E python", None),
    ],
)
def test_options_that_keep_the_probe_out(command: str, found: tuple[str, str] | None) -> None:
    """Only the interpreter's own options count: not the script's, nor an option's value."""
    assert job_command.isolating_option(command.split()) == found


def test_a_python_with_the_pth_file_is_seen_under_isolation(tmp_path: Path) -> None:
    """What decides is whether the job's interpreter loads the probe at its start, not the option alone."""
    environ = {"PATH": os.defpath}
    plain, ready = _interpreter(tmp_path / "plain"), _interpreter(tmp_path / "ready")
    site = next((tmp_path / "ready").glob("lib/python*/site-packages"))
    agent = Path(hindmost.__file__).parents[1]
    (site / "agent.pth").write_text(f"{agent}\n")
    shutil.copy(agent / "hindmost/inject/hindmost.pth", site / "hindmost.pth")
    said = kept_out((plain, "-I", "loop.py"), environ)
    assert said is not None
    assert f"`{plain} -m pip install ." in said
    assert kept_out((ready, "-I", "loop.py"), environ) is None
    assert "drop -S" in (kept_out((ready, "-S", "loop.py"), environ) or "")
    assert kept_out((plain, "loop.py"), environ) is None


def _interpreter(folder: Path) -> str:
    """An interpreter without anything installed."""
    import venv

    venv.create(folder, with_pip=False, symlinks=True)
    return str(folder / "bin/python")


@pytest.mark.parametrize(("together", "reported"), [(0.03, False), (0.09, True)])
def test_waiting_beyond_the_scatter_of_transfers_is_for_a_missing_rank(together: float, reported: bool) -> None:
    """The share of the time for which all who were seen wait at once: transfers alone make up to 0.025 of it."""
    run = Run(Job("a", source="inspector"), unrecorded=Unrecorded((3,), together))
    (found,) = missing_ranks.with_missing_ranks([Verdict(kind="balanced")], run, None)
    assert any("likely for rank 3" in one for one in found.evidence) == reported


@pytest.mark.parametrize(
    ("missing", "reported"),
    [(range(1, 800), "of ranks 1 to 799;"), (range(1, 99, 2), "of ranks 1, 3, 5, 7, 9, 11 and 43 more;")],
)
def test_ranks_whose_files_are_missing_are_named_as_long_as_they_can_be_read(missing: range, reported: str) -> None:
    """Those in a row as one."""
    run = Run(Job("a", source="inspector"), unrecorded=Unrecorded(tuple(missing)))
    (found,) = missing_ranks.with_missing_ranks([], run, None)
    assert reported in found.advice[0]


@pytest.mark.parametrize(
    ("job", "evidence", "advice"),
    [
        (Job("j", command="python -I loop.py"), "no rank was seen", "ignores PYTHONPATH"),
        (Job("j", command="python -S loop.py"), "no rank was seen", "drop -S"),
        (Job("j", command="python -I loop.py", entered=True), "without a step or a collective", "hindmost.step()"),
        (Job("j", command="python a.py", entered=True), "MPI (under mpirun or srun)", "`mpirun -np 1`"),
        (Job("j", command="python -c pass", entered=True), "without a step or a collective", "command's environment"),
        (Job("j", command="sh -c 'exit 3'", exit_code=3), "before the job failed", "read the job's own output"),
        (Job("j", command="python no.py", exit_code=2, entered=True), "before the job failed", "job's own output"),
        (Job("j", command="python -I no.py", exit_code=2), "before the job failed", "job's own output"),
        (Job("j", command="./a", exit_code=130, interrupted_by="SIGINT"), "was interrupted", "run for longer"),
        (Job("j", command="./bin/a.out 3", exit_code=0), "a.out ended; a rank calls MPI", "doctor"),
        (Job("j", command="true", started_ns=10**9, ended_ns=3 * 10**9), "true ended after 2.0 s; a rank", "doctor"),
        (Job("j", command="cut 'quote"), "cut ended; a rank calls", "hindmost doctor"),
        (Job("j", command="python a.py", no_ring="no ring can be made in /x (full)"), "(full)", "room in /dev/shm"),
    ],
)
def test_advice_for_a_job_under_hindmost_does_not_suggest_it(job: Job, evidence: str, advice: str) -> None:
    """For a command that ``hindmost run`` started, the note says why its ranks are missing, not to do what was done."""
    (verdict,) = judge(Run(job)).verdicts
    assert evidence in "; ".join(verdict.evidence)
    assert advice in verdict.advice[0]
    assert "hindmost run" not in verdict.advice[0]
    assert not (job.entered and "PYTHONPATH" in verdict.advice[0])


def test_advice_for_a_job_without_hindmost_run_names_it() -> None:
    """A collector that knows no command was not started by ``hindmost run``."""
    (verdict,) = judge(Run(Job("j"))).verdicts
    assert "put `hindmost run --` before the command" in verdict.advice[0]


@pytest.mark.parametrize(
    ("size", "evidence", "advice"),
    [
        (1, "no other rank to compare it with, and no step was recognised", "hindmost.steps(loader)"),
        (8, "one rank of 8 was seen", "inherit this command's environment"),
    ],
)
def test_the_report_on_one_rank_says_what_would_show_more(size: int, evidence: str, advice: str) -> None:
    """Its steps where it made none that is known, and the others where it is one of several."""
    (verdict,) = judge(Run(Job("made", world_size=size), ranks=table("ranks", rank=[0], world_size=size))).verdicts
    assert verdict.kind == "insufficient_data"
    assert evidence in verdict.evidence[0]
    assert advice in verdict.advice[0]


def test_room_for_a_ring_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's refusal is quoted; a trial leaves nothing behind."""
    assert environment.no_room_for_a_ring(tmp_path) is None
    assert not any(tmp_path.iterdir())
    gone = tmp_path / "gone"
    assert environment.no_room_for_a_ring(gone) == f"no ring can be made in {gone} (No such file or directory)"

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(environment.os, "posix_fallocate", full)
    assert "No space left on device" in (environment.no_room_for_a_ring(tmp_path) or "")
    assert not any(tmp_path.iterdir())


OF_RANKS = ("steps", "collectives", "intervals", "in_flight", "stacks", "rank_states")
#: What is gone of a rank: all that it did, that and what it was defined as, its plugin's, or every trace.
GONE = {
    "rows": OF_RANKS,
    "rows and communicators": (*OF_RANKS, "communicators"),
    "collectives": ("collectives", "communicators"),
    "all": (*OF_RANKS, "communicators", "ranks"),
}
LAYOUTS = (
    Scenario(seed=3),
    Scenario(seed=3, layout="fsdp"),
    Scenario(16, seed=18, layout="tp_dp", tensor=2),
    Scenario(seed=3, layout="pp_dp", pipeline=2),
    Scenario(4, seed=11, layout="pp_dp", pipeline=2),
)


def _without_rank(run: Run, rank: int, gone: str) -> Run:
    """As a collector has it to which nothing of this came."""
    tables = run.tables()
    left = {name: chosen(tables[name], tables[name]["rank"] != rank) for name in GONE[gone]}
    return missing_ranks.with_missing(with_job(replace(run, **left), source="hindmost"))


@cache
def _run(scenario: Scenario) -> Run:
    return simulate(scenario).run


def _verdicts(scenario: Scenario, rank: int, gone: str) -> tuple[Verdict, ...]:
    return judge(_without_rank(_run(scenario), rank, gone)).verdicts


@pytest.mark.parametrize("gone", GONE)
@pytest.mark.parametrize("scenario", LAYOUTS, ids=lambda one: f"{one.layout}-{one.ranks}")
def test_no_rank_is_named_or_cleared_if_a_partner_is_missing(scenario: Scenario, gone: str) -> None:
    """In no layout, although partners of the missing one come late to the ranks they meet next; the report says so."""
    for rank in (0, scenario.ranks - 1):
        (verdict,) = _verdicts(scenario, rank, gone)
        assert (verdict.kind, verdict.ranks) == ("insufficient_data", ())
        assert any(f"rank {rank}" in one for one in verdict.evidence)


@pytest.mark.parametrize("scenario", LAYOUTS, ids=lambda one: f"{one.layout}-{one.ranks}")
def test_a_slow_and_missing_rank_gets_no_other_named(scenario: Scenario) -> None:
    """All ranks wait for it, and it is not recorded."""
    slow = replace(scenario, faults=(Fault("compute", (1,), 0.3),))
    (verdict,) = _verdicts(slow, 1, "rows")
    assert verdict.ranks == ()
    assert verdict.kind == "insufficient_data"


def test_one_that_is_slow_itself_is_named_though_another_is_missing() -> None:
    """Its tensor partner's and its replicas' collectives show who waits for whom."""
    slow = Scenario(64, layout="tp_dp", tensor=4, faults=(Fault("compute", (9,), 0.3),))
    (verdict,) = _verdicts(slow, 63, "rows")
    assert (verdict.kind, verdict.ranks) == ("straggler", (9,))
    assert verdict.evidence[-1] == "rank 63 is missing: no collective of it was recorded"


@pytest.mark.parametrize("gone", ["rows", "collectives"])
@pytest.mark.parametrize("layout", ["dp", "tp_dp"])
def test_who_hangs_is_named_and_not_who_is_missing(layout: str, gone: str) -> None:
    """The missing rank's open operations are unknown; the culprit is known not to have come."""
    stopped = Scenario(layout=layout, tensor=2, steps=60, faults=(Fault("hang", (5,), onset=40),))
    (verdict,) = _verdicts(stopped, 0, gone)
    assert (verdict.kind, verdict.ranks) == ("hang", (5,))


def test_ranks_that_take_part_in_no_collective_lack_nothing() -> None:
    """All members of all communicators were seen: a further rank is no partner of theirs."""
    run = simulate(Scenario()).run
    further = only(run, ranks=[-1]).ranks | {"rank": [8]}
    (verdict,) = judge(with_job(with_rows(run, ranks=further), source="hindmost")).verdicts
    assert verdict.kind == "balanced"


@pytest.mark.parametrize(("late", "doubted"), [((0,), False), ((0, 1), True), ((0, 1, 2, 3), True), ((4, 5), False)])
def test_half_of_those_who_meet_a_missing_rank_may_be_late_for_it(late: tuple[int, ...], doubted: bool) -> None:
    """A rank that waits for it is not alone, and not all are late enough to be named; one of four is late alone."""
    absent = Absent((8,), (frozenset({0, 1, 2, 3}),))
    assert absent.doubts(Verdict(kind="straggler", ranks=late, cause="unknown")) == doubted


@pytest.mark.parametrize(
    "slow",
    [Verdict(kind="slow_link"), Verdict(kind="straggler", ranks=(5,), cause="network")],
    ids=lambda one: one.kind,
)
def test_slow_transfers_are_not_reported_with_a_missing_rank(slow: Verdict) -> None:
    """All that wait for a rank of which nothing is known look as if their transfers were slow."""
    assert Absent((8,), (frozenset({0, 1, 2, 3}),)).doubts(slow)


MS = 1_000_000
_STEPS = 40
_STEP = 20 * MS


def _record(folder: Path, *, silent_s: float, busy: bool = True, ranks: int = 4) -> Path:
    """These ranks' steps, and samples of their GPUs that go on for so long after the last."""
    for rank in range(ranks):
        lines = []
        for step in range(_STEPS):
            start = 10**12 + step * _STEP
            phases = {"fwd_ms": 5.0, "bwd_ms": 10.0, "opt_ms": 2.0}
            lines.append(
                json.dumps({"step": step, "t_start": start, "t_data": start + MS, "t_end": start + _STEP - MS} | phases)
            )
        (folder / f"steps.{rank}.jsonl").write_text("\n".join(lines) + "\n")
        name = f"e9a550b719f82509,{rank}"
        calls = [10**12 + step * _STEP + 9 * MS for step in range(_STEPS)]
        rows = [
            f"{name},{i},AllReduce,8,RING,LL,1,{at},{at + 9},{at + MS},{at + 2 * MS},{at}" for i, at in enumerate(calls)
        ]
        (folder / f"prof.{100 + rank}.csv").write_text("\n".join(rows) + "\n")
    last = 10**12 + _STEPS * _STEP
    times = range(10**12, last + int(silent_s * 1e9), 100 * MS)
    lines = [f"{at},{gpu},{100 if busy or at < last else 0}" for at in times for gpu in range(ranks)]
    (folder / "nvml.csv").write_text("t_ns,gpu,util\n" + "\n".join(lines) + "\n")
    return folder


def _dumps(folder: Path) -> Path:
    """What py-spy saw: rank 1 in its input, the others in backward."""
    for rank in range(4):
        where = "data (train.py:49)" if rank == 1 else "backward (train.py:64)"
        text = f'Process {100 + rank}: python train.py\n\nThread {100 + rank}: "MainThread"\n    {where}\n'
        (folder / f"pyspy.{100 + rank}.txt").write_text(text)
    return folder


def test_a_stopped_job_is_reported_with_each_rank_s_place(tmp_path: Path) -> None:
    """Without a readable dump of open operations no rank is named."""
    for rank in range(4):
        (_dumps(_record(tmp_path, silent_s=20)) / f"nccl_trace_rank_{rank}").write_bytes(
            pickle.dumps({"entries": []})[:-3]
        )
    report = judge(load(tmp_path))
    first = report.verdicts[0]
    assert (first.kind, first.ranks, first.since_step) == ("hang", (), _STEPS)
    assert of_verdict(report.to_dict()["verdicts"][0]).sentence == "HUNG in step 40: no rank makes progress"
    assert first.evidence[1:3] == (
        "ranks 0, 2 and 3 are at train.py:64, in backward()",
        "rank 1 is at train.py:49, in data()",
    )
    assert first.evidence[3].endswith(": no rank is named")
    assert first.advice == ("find the line that is no wait for others: the others wait for the ranks there",)
    (left_out,) = [note for note in report.notes if note.startswith("Left out: ")]
    assert all(f"nccl_trace_rank_{rank}" in left_out for rank in range(4))


def test_of_many_lines_those_with_most_ranks_are_reported(tmp_path: Path) -> None:
    """Eight of them: more would not be read."""
    _record(tmp_path, silent_s=20, ranks=11)
    for rank in range(11):
        text = f'Process {100 + rank}: python train.py\n\nThread 1: "MainThread"\n    f (train.py:{max(rank, 1)})\n'
        (tmp_path / f"pyspy.{100 + rank}.txt").write_text(text)
    reported = [one for one in judge(load(tmp_path)).verdicts[0].evidence if "train.py" in one]
    assert reported[0] == "ranks 0 and 1 are at train.py:1, in f()"
    assert len(reported) == 8


def test_without_any_dump_the_silence_is_a_note(tmp_path: Path) -> None:
    """It may be an unlogged evaluation: the report says what would show it."""
    report = judge(load(_record(tmp_path, silent_s=20)))
    assert report.verdicts[0].kind != "hang"
    (note,) = [one for one in report.notes if one.startswith("no operation ended in the last ")]
    assert "GPUs were busy" in note
    assert note.endswith("from then would show a hang")


@pytest.mark.parametrize(("silent_s", "busy"), [(20, False), (1, True)])
def test_a_job_that_may_be_over_or_at_work_did_not_stop(tmp_path: Path, silent_s: float, busy: bool) -> None:
    """GPUs that are idle after the last step have nothing more to do; and a second is no silence."""
    report = judge(load(_dumps(_record(tmp_path, silent_s=silent_s, busy=busy))))
    assert report.verdicts[0].kind != "hang"
    assert not any("GPUs were busy" in note for note in report.notes)
