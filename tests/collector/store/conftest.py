"""A store that a module's tests share: each gets a copy."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hindmost_collector.store.parquet.store import ParquetStore


@pytest.fixture
def store(written: Path, tmp_path: Path) -> Iterator[ParquetStore]:
    """The store in the folder ``written``, opened again."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    made = ParquetStore(tmp_path, single=False)
    yield made
    made.close()
