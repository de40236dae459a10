"""Receives, aligns, judges, stores and shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hindmost_collector.recording_api import Recording
    from hindmost_collector.store.clickhouse.reading import ClickHouseRecording


def open(path: str | Path, *others: str | Path) -> Recording | ClickHouseRecording:  # noqa: A001 - hindmost_collector.open reads as what it does
    """The recording at ``path``: a run directory, a store or the URL of one. ``.steps()``, ``.sql(…)``: Arrow, pandas.

    ``others`` are directories of other collectors, to which agents of the same jobs sent: each job is read as one.

    Raises:
        hindmost.errors.UsageError: there is no recording at a path.
    """
    from hindmost_collector.recording_api import open_recording  # noqa: PLC0415 - DuckDB is loaded only where used

    return open_recording(path, *others)
