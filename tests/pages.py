"""Pages: what is at an address, and what one that is one file holds inside."""

import json
import re
import urllib.error
import urllib.request
from typing import Any


def fetched(url: str, headers: dict[str, str] | None = None) -> tuple[int, str]:
    """Status and text."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=200) as answer:  # noqa: S310 - loopback
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def inside(document: str) -> dict[str, Any]:
    """The data of a report's page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', document, re.DOTALL)
    assert found is not None, "a page without data inside"
    held: dict[str, Any] = json.loads(found[1])
    return held
