"""Rows of ranks, held as columns until they are read."""

import json
from typing import Any

import numpy as np
import pytest
from hindmost_judge.judge import judge
from hindmost_judge.verdict.schema import JobSummary, LiveReport, RankRow, Report
from hindmost_judge.verdict.summary import RankRows

from tests.scenarios.loads import Load, make

ROWS = RankRows(
    ranks=np.array([0, 2, 5]),
    texts={"node": ["n0", None, "n1"], "gpu": [None, None, "G"]},
    figures={"step_ms": np.array([1.0, np.nan, 3.0]), "wait_ms": np.array([np.inf, np.nan, 0.0])},
    phases={"input": np.array([0.5, np.nan])},
    judged=np.array([0, 2]),
    logged={2: {"forward": 7.0}},
)


def test_columns_read_like_the_rows_that_they_stand_for() -> None:
    """What is no finite number is ``None``; of a rank that was not judged stands what its log says."""
    assert tuple(ROWS) == (
        RankRow(0, node="n0", step_ms=1.0, phases_ms={"input": 0.5}),
        RankRow(2, phases_ms={"forward": 7.0}),
        RankRow(5, node="n1", gpu="G", step_ms=3.0, wait_ms=0.0, phases_ms={"input": None}),
    )
    assert (len(ROWS), ROWS[1].rank, [row.rank for row in ROWS[1:]]) == (3, 2, [2, 5])


def test_a_report_of_columns_is_written_as_one_of_rows() -> None:
    """The order of the fields, too."""
    columns, rows = (Report(JobSummary("j"), (), ranks=ranks) for ranks in (ROWS, tuple(ROWS)))
    assert columns == rows
    assert json.dumps(columns.to_dict()) == json.dumps(rows.to_dict())


def test_a_live_report_makes_no_row_that_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made every few seconds; who reads it finds what is written at the end of the job."""
    found, read, plain = Report(JobSummary("j"), (), ranks=ROWS), [], RankRows.plain
    written = json.dumps({**found.to_dict(), "notes": ["n"]})
    monkeypatch.setattr(RankRows, "plain", lambda rows: read.append(rows) or plain(rows))
    live = LiveReport(found)
    live["notes"] = ["n"]
    assert (live["job"]["id"], live.get("verdicts"), read) == ("j", [], [])
    assert json.dumps({**live}) == written


def test_who_reads_rows_while_another_thread_makes_them_finds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's server has a thread for each request."""
    live, plain = LiveReport(Report(JobSummary("j"), (), ranks=ROWS)), RankRows.plain
    meanwhile: list[Any] = []

    def slow(rows: RankRows) -> Any:
        if not meanwhile:
            meanwhile.append(None)
            meanwhile[0] = live["ranks"]
        return plain(rows)

    monkeypatch.setattr(RankRows, "plain", slow)
    assert live["ranks"] == meanwhile[0] == plain(ROWS)


def test_one_row_is_made_where_one_is_asked_for() -> None:
    """By any index as of a tuple: from the end, a part, every other one backwards; past the end there is none."""
    rows = tuple(ROWS)
    assert [ROWS[index] for index in range(-3, 3)] == [rows[index] for index in range(-3, 3)]
    assert (ROWS[::-2], ROWS[5:], tuple(reversed(ROWS)), ROWS.index(rows[2])) == (rows[::-2], (), rows[::-1], 2)
    with pytest.raises(IndexError):
        ROWS[3]


def test_the_only_rank_of_a_job_has_steps_and_waits_for_none() -> None:
    """Its collectives show where a step ends; a wait of 0 ms would say that there are others."""
    (row,) = judge(make(Load(ranks=1, steps=40))).ranks
    assert row.self_ms is not None
    assert (row.wait_ms, row.caused_wait_ms, row.share_last) == (None, None, None)
