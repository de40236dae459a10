"""Lost contact with torn or missing dumps: the stop is reported, and no rank is named."""

import json
import pickle
from pathlib import Path

import pytest
from hindmost_collector.recordings.load import load
from hindmost_collector.report.verdict_lines import of_verdict
from hindmost_judge.judge import judge

MS = 1_000_000
_STEPS, _STEP = 40, 20 * MS


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
    """Without a readable dump of open operations no rank is named; a rank that stands alone is pointed out."""
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
    assert first.advice == ("find out what rank 1 waits for at train.py:49, in data(): all others are at another line",)
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
