"""A run directory is told from a foreign folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hindmost.errors import UsageError
from hindmost_collector.sources import hindmost_run, load

if TYPE_CHECKING:
    from pathlib import Path


def _run(folder: Path) -> Path:
    (folder / "segments").mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps({"schema": "hindmost.run/1", "job_id": "j7", "command": "train"}))
    return folder


def test_a_run_directory_is_read_as_one(tmp_path: Path) -> None:
    """Named directly, or as the only folder in what was named, as an archive holds it."""
    _run(tmp_path / "deep" / "run")
    assert load(tmp_path / "deep" / "run").job.id == "j7"
    assert load(tmp_path / "deep").job.id == "j7"


def test_someone_else_s_meta_json_makes_no_run(tmp_path: Path) -> None:
    """Only our own schema counts; a file of the same name is nothing special."""
    (tmp_path / "meta.json").write_text('{"schema": "other/1"}')
    assert hindmost_run.find(tmp_path) is None
    with pytest.raises(UsageError, match=r"meta\.json starts with"):
        load(tmp_path)
