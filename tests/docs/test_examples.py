"""The queries that docs/reference/run-directory.md shows, run as they stand over a small run directory."""

import re
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
from hindmost_judge.model import TABLES

PAGE = Path(__file__).parents[2] / "docs/reference/run-directory.md"
STEPS = 20


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three ranks, twenty steps, rank 1 last into every all-reduce; one duration of rank 0 is not measured."""
    rank, step = (grid.ravel() for grid in np.meshgrid(range(3), range(STEPS)))
    steps = {"rank": rank, "step": step, "duration_ns": 10_000_000 + rank}
    steps["duration_ns"][0] = -1
    calls = {"rank": rank, "seq": step, "op": "all_reduce", "duration_ns": np.where(rank == 1, 10, 5000 + rank)}
    for table, columns in (("steps", steps), ("collectives", calls)):
        folder = tmp_path / "segments" / table
        folder.mkdir(parents=True)
        blank: dict[str, Any] = {name: "" if kind is np.str_ else 0 for name, kind in TABLES[table].items()}
        pd.DataFrame({**blank, **columns}, index=range(len(rank))).to_parquet(folder / "0.parquet")
    return tmp_path


def block(language: str, run: Path) -> str:
    """The page's code in one language, with RUN as this run directory."""
    found = re.search(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1].replace("RUN", str(run))


def test_the_duckdb_queries_answer_what_they_say(run: Path) -> None:
    """Step times per rank leave out what was not measured; the last to arrive is the rank with the shortest calls."""
    per_rank, last = (
        duckdb.connect().execute(query).fetchall() for query in block("sql", run).split(";") if query.strip()
    )
    assert [rank for rank, _, _ in per_rank] == [0, 1, 2]
    assert per_rank[0][1] == pytest.approx(10.0)
    assert last == [(1, STEPS)]


def test_the_pandas_lines_run(run: Path) -> None:
    """The lines give one row a rank, without the unmeasured duration."""
    lines = block("python", run).strip().splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(lines[:-1]), names)  # noqa: S102 - the documentation's own lines
    described = eval(lines[-1], names)  # noqa: S307 - the documentation's own line
    assert described["count"].tolist() == [STEPS - 1, STEPS, STEPS]
