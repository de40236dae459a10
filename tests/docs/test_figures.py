"""The README's figures are those that were measured."""

from __future__ import annotations

from pathlib import Path

from bench import figures


def test_the_table_is_that_of_its_results() -> None:
    """``python -m bench.figures --table`` changes nothing."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert figures.TABLE.search(readme)
    assert figures.in_place(readme) == readme
