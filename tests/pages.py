"""What a page that is one file holds inside."""

import json
import re
from typing import Any


def inside(document: str) -> dict[str, Any]:
    """The data of a report's page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', document, re.DOTALL)
    assert found is not None, "a page without data inside"
    held: dict[str, Any] = json.loads(found[1])
    return held
