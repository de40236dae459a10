"""``torch.compile``: keep its tracer out of hindmost's hooks, as it keeps out of torch's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from hindmost.recorder import Recorder


def install(rules: ModuleType, _recorder: Recorder) -> None:
    """Have the tracer's rules, which have just been imported, skip this package's files."""
    skip: Any = getattr(rules, "add", None)
    if skip is not None:
        skip("hindmost")
