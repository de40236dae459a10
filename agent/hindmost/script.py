"""Which word of a command line is the script that a person would call the job after."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def script(words: Sequence[str]) -> str | None:
    """The first Python script of a command line, else its first shell script, else the program; None: no word of it.

    Python first: launchers' own options name shell scripts, as ``--host-discovery-script`` does.
    """
    programs = [word for word in words if not word.startswith("-")]
    python, shell = ([word for word in programs if word.endswith(ending)] for ending in (".py", ".sh"))
    return next(iter(python or shell or programs), None)
