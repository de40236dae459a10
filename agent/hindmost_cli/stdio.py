"""stdin, stdout and stderr as they are found: closed, full, without a reader, in a poor encoding; and terminals."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys

TYPE_CHECKING = False  # the help needs no `typing`, which is slow to import
if TYPE_CHECKING:
    from typing import TextIO

_HANDLER = "hindmost.spelled"
#: What reports draw and write, for terminals that lack it; all else is spelled out, as data must not be lost.
_PLAIN = {"█": "#", "·": "-", "─": "-", "\N{EN DASH}": "-", "…": "...", "±": "+-", "→": "->"}
#: Columns of text that the eye still follows from one line to the next.
WIDEST = 120


def prepare() -> None:
    """Give closed streams somewhere to go, and let the others take every character. Opens what is closed in order, so
    that no file of ours takes the place of a standard stream.
    """
    codecs.register_error(_HANDLER, _spelled)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            from pathlib import Path  # slow to import

            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - for as long as we run
        elif isinstance(stream, io.TextIOWrapper) and mode == "w":
            stream.reconfigure(errors=_HANDLER)


def say(text: str) -> None:
    """Write to stderr; where that cannot be, it goes nowhere, and the exit code stays what it is."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO | None = None) -> None:
    """Let what standard output, or this stream, still holds go nowhere, at the interpreter's end too."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (stream or sys.stdout).fileno())
        os.close(nowhere)


def colored(stream: TextIO) -> bool:
    """Whether what is written here goes to a terminal that shows colours, and whose user wants them."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def program() -> str:
    """What starts a command of ours in the user's shell: ``hindmost`` where that is on PATH, else as it was started."""
    import shlex  # slow to import, as is shutil: the help needs neither
    import shutil

    if shutil.which("hindmost"):
        return "hindmost"
    ours = sys.argv[0]
    script = ours.rpartition("/")[2] == "hindmost" and os.access(ours, os.X_OK)
    return shlex.quote(ours) if script else f"{shlex.quote(sys.executable)} -m hindmost"


def width(least: int = 1, unknown: int = 100) -> int:
    """Columns of a page on the user's terminal, at most ``WIDEST``; ``unknown`` where there is none."""
    return min(max(_columns() or unknown, least), WIDEST)


def _columns() -> int:
    """Columns of the terminal, 0 where there is none: as ``shutil`` has it, which imports compression libraries."""
    with contextlib.suppress(KeyError, ValueError):
        if (columns := int(os.environ["COLUMNS"])) > 0:
            return columns
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns if sys.__stdout__ else 0
    except (ValueError, OSError):  # closed, or no terminal
        return 0


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(one) or one.encode("unicode_escape").decode("ascii") for one in lacking), error.end
