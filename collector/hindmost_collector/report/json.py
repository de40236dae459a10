"""A report as JSON: the contract ``hindmost.report/1``, for programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def render(report: Mapping[str, Any]) -> str:
    """The report as indented JSON with a final newline. NaN is refused: unmeasured is ``null``."""
    return json.dumps(report, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
