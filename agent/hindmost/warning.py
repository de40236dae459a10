"""The one line on stderr that says what of a training process hindmost cannot see."""

from __future__ import annotations

import contextlib
import sys

warned = False


def warn_once(what: str) -> None:
    """Say on stderr, once a process, what hindmost cannot see; never raises."""
    global warned  # noqa: PLW0603 - one line a process, for its first fault
    if warned:
        return
    warned = True
    with contextlib.suppress(Exception):  # stderr is closed or full
        sys.stderr.write(f"hindmost: {what}; the job goes on without it\n")
