"""The figures of the pages are those that were measured."""

import pytest

from bench import figures


@pytest.mark.parametrize("page", [figures.README, figures.PERFORMANCE], ids=lambda page: page.name)
def test_the_table_is_that_of_its_results(page: figures.Path) -> None:
    """``python -m bench.figures --table`` changes nothing."""
    assert len(figures.TABLE.findall(page.read_text(encoding="utf-8"))) == 1
    assert figures.pages()[page] == page.read_text(encoding="utf-8")
