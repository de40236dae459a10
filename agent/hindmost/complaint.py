"""The one line on stderr that says what of a training process hindmost cannot see."""

from __future__ import annotations

import contextlib
import sys

_complained = False


def complain(what: str) -> None:
    """Say on stderr, once a process, what hindmost cannot see; never raises."""
    global _complained  # noqa: PLW0603 - one line a process, for its first fault
    if _complained:
        return
    _complained = True
    with contextlib.suppress(Exception):  # stderr is closed or full
        sys.stderr.write(f"hindmost: {what}; the job goes on without it\n")
