"""What the command line gave, of which nothing may be empty: a shell puts nothing where a variable is not set."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hindmost.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


def filled(name: str, text: str) -> str:
    """The text that was given as this argument. Raises UsageError where there is none."""
    if not text:
        raise UsageError(f"{name} is empty: is a variable not set?")
    return text


def path(name: str) -> Callable[[str], Path]:
    """What makes a path of this argument."""
    return lambda text: Path(filled(name, text))
