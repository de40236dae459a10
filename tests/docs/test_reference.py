"""The generated pages of the reference say what the code says."""

import pytest

from docs.generate.__main__ import PAGES, written


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_fresh(name: str) -> None:
    """Renew it with ``make reference``."""
    assert PAGES[name]() == written(name), f"docs/reference/{name} is stale: run make reference"
