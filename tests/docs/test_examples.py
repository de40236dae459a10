"""The queries of docs/reference/run-directory.md and the notebooks of examples/ run as they stand."""

import json
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


NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.ipynb"))


def code(path: Path) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_finds_what_it_says(path: Path) -> None:
    """Rank 3 is slow since step 60, its GPU phases are the longest, it comes last, and it has samples."""
    known: dict[str, Any] = {}
    for cell in code(path):
        exec(compile(cell, str(path), "exec"), known)  # noqa: S102 - our own example
    (verdict,) = known["found"].verdicts
    assert (verdict.ranks, verdict.cause) == ((3,), "compute")
    assert abs(verdict.since_step - 60) <= 3
    assert known["by_rank"].loc["gpu_forward"].idxmax() == 3
    assert known["last"].idxmax() == 3
    assert len(known["samples"]) > 0
    assert len(known["p99"]) == 8


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_a_kernel(path: Path) -> None:
    """Where Jupyter is installed."""
    client = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel")
    pytest.importorskip("ipykernel", reason="needs ipykernel")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(path, as_version=4)
    client.NotebookClient(notebook, startup_timeout=300).execute()
    assert any(cell.get("outputs") for cell in notebook.cells)
