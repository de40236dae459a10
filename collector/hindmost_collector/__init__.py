"""Receives, aligns, judges, stores and shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from hindmost_collector.recorded import Recording


def open(path: str | Path) -> Recording:  # noqa: A001 - hindmost_collector.open reads as what it does
    """The recording at ``path``, a run directory or a store: ``.steps()``, ``.sql(…)``, as Arrow or pandas.

    Raises:
        hindmost.errors.UsageError: there is no recording at ``path``.
    """
    from hindmost_collector.recorded import open_recording  # noqa: PLC0415 - DuckDB is loaded only where used

    return open_recording(path)
