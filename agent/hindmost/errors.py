"""The two kinds of failure a user can see, each a line that is fit for a terminal; and the warning of the probe.

``hindmost_cli.main`` maps them to exit codes. What they quote may be of unknown origin: a file's bytes may hold escape
sequences, or a line of a megabyte.
"""

from __future__ import annotations

import contextlib
import sys

#: An error's line: what is wrong stands at its begin, what helps at its end.
MOST = 600
_END = 160


def printable(text: str, keep: str = "") -> str:
    """The text with everything that is no visible character spelled out (``\\x1b``), but the characters of ``keep``."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else _spelled(one) for one in text)


def one_line(text: str, most: int = MOST) -> str:
    """The text in one line of at most so many characters, its middle left out where it is longer."""
    if len(text) > 4 * most:  # spelling out makes a character up to ten, never fewer
        text = f"{text[: 2 * most]}{text[-2 * most :]}"
    line = printable(text)
    end = min(_END, (most - 1) // 2)
    return line if len(line) <= most else f"{line[: most - end - 1]}…{line[len(line) - end :]}"


def _spelled(one: str) -> str:
    return one.encode("unicode_escape").decode("ascii")


class HindmostError(Exception):
    """Something hindmost needs is not as it should be: one line that names it and the remedy. Exit code 1."""

    exit_code = 1

    def __str__(self) -> str:
        """Its line as a terminal may show it, whatever the file held that it quotes."""
        return one_line(super().__str__())


class MissingError(HindmostError):
    """A package is missing or broken that a part of hindmost needs, and training processes do not."""

    def __init__(self, error: Exception, extra: str) -> None:
        """``error`` is what importing raised; ``extra`` is the part of hindmost that imports it."""
        from hindmost import requirements  # noqa: PLC0415 - training processes need it not

        missing = requirements.unmet(extra)
        if missing:
            super().__init__(f"{requirements.faults(missing)}: {requirements.install(*missing)}")
            return
        what = f"no module {error.name}" if isinstance(error, ModuleNotFoundError) else str(error)
        super().__init__(f"{what}: pip install --force-reinstall '.[{extra}]' in a clone of hindmost")


class UsageError(HindmostError):
    """The input is wrong: one line that names the input and what would be right. Exit code 2."""

    exit_code = 2


warned = False


def warn_once(what: str) -> None:
    """Say on stderr, once a process, what hindmost cannot see; never raises."""
    global warned  # noqa: PLW0603 - one line a process, for its first fault
    if warned:
        return
    warned = True
    with contextlib.suppress(Exception):  # stderr is closed or full
        sys.stderr.write(f"hindmost: {what}; the job goes on without it\n")
