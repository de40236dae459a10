"""Results that the benches left can be read again."""

import json
from pathlib import Path

import pytest

RESULTS = sorted((Path(__file__).resolve().parents[2] / "bench/results").glob("*.json"))


def refuse(constant: str) -> None:
    """``NaN`` and its like are Python's own."""
    raise ValueError(f"{constant} is not JSON")


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_results_are_json(path: Path) -> None:
    """As every reader of JSON takes it, not only Python's."""
    assert json.loads(path.read_text(), parse_constant=refuse)
