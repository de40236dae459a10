"""Answers of NCCL's RAS that were kept: who is waited for.

Those of tests/fixtures/ras are of NCCL 2.28.9 in a job of two ranks on an H200.
"""

import os
import shutil
from pathlib import Path

import pytest
from hindmost_collector.recordings.load import load
from hindmost_judge.judge import judge
from hindmost_judge.verdict.schema import Report
from hindmost_judge.verdict.wording import ONE_ANSWER

ANSWERS = Path(__file__).parents[2] / "fixtures" / "ras"
#: The second of the answer "hang_json".
WHEN = b"23:42:47"


def keep(folder: Path, *names: str) -> Report:
    """The report on these answers, 2 s apart."""
    for place, name in enumerate(names):
        path = folder / f"{place}.txt"
        path.write_bytes((ANSWERS / name).read_bytes().replace(WHEN, b"23:42:%d" % (47 + 2 * place)))
        os.utime(path, (1000 + 2 * place, 1000 + 2 * place))
    return judge(load(folder))


@pytest.mark.parametrize("kind", ["json", "text"])
def test_two_answers_alike_name_who_is_waited_for(tmp_path: Path, kind: str) -> None:
    """By rank and communicator, in both formats; the advice is to ask RAS again."""
    verdict = keep(tmp_path, f"hang_{kind}", f"hang_{kind}").verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("hang", (1,), (0,))
    assert "that all_reduce is number 20 of communicator 0xabe8b168ccb1ed8" in "\n".join(verdict.evidence)
    assert verdict.advice[-1].startswith("ask RAS again")


@pytest.mark.parametrize(
    "names",
    [
        ("hang_json", "healthy_json"),
        ("healthy_json", "hang_json"),
        ("healthy_json", "healthy_json"),
        ("stopped_json", "stopped_json"),
    ],
)
def test_what_moves_or_lacks_a_rank_names_nobody(tmp_path: Path, names: tuple[str, ...]) -> None:
    """A job at work has ranks ahead of each other, and a rank that does not answer may be the last."""
    assert {verdict.kind for verdict in keep(tmp_path, *names).verdicts} == {"insufficient_data"}


def test_one_answer_is_a_moment_and_a_copy_of_it_is_the_same(tmp_path: Path) -> None:
    """The advice is what is missing: a second answer."""
    report = keep(tmp_path, "hang_json")
    assert {verdict.kind for verdict in report.verdicts} == {"insufficient_data"}
    assert report.verdicts[0].advice[0].startswith("keep a second answer")
    assert ONE_ANSWER in report.notes
    (tmp_path / "copy.txt").write_bytes((tmp_path / "0.txt").read_bytes())
    assert {verdict.kind for verdict in judge(load(tmp_path)).verdicts} == {"insufficient_data"}


def test_two_answers_of_a_job_at_work_ask_for_a_recording(tmp_path: Path) -> None:
    """A third answer would not find a slow rank."""
    (verdict,) = keep(tmp_path, "healthy_json", "hang_json").verdicts
    assert verdict.advice == ("to find a slow rank, record the job with `hindmost run -- COMMAND`",)


def test_a_copy_of_a_text_has_its_time(tmp_path: Path) -> None:
    """A text does not say when it was made: two answers of a hang are the same bytes."""
    keep(tmp_path, "hang_text")
    shutil.copy2(tmp_path / "0.txt", tmp_path / "copy.txt")
    assert {verdict.kind for verdict in judge(load(tmp_path)).verdicts} == {"insufficient_data"}
