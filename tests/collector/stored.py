"""What a collector has stored."""

from pathlib import Path

import duckdb


def steps(directory: Path) -> list[tuple[int, int]]:
    """``(rank, step)`` of every row of steps, in order."""
    stored = duckdb.read_parquet(f"{directory}/segments/steps/*.parquet")
    return stored.project("rank, step").order("rank, step").fetchall()
