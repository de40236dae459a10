"""Standard streams as they are found: closed, full, with a reader that has gone, or in a poor encoding."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from pathlib import Path
from typing import TextIO

_HANDLER = "hindmost.spelled"
#: What reports draw and write, for terminals that lack it; all else is spelled out, as data must not be lost.
_PLAIN = {"·": "-", "─": "-", "…": "...", "±": "+-", "→": "->"}


def prepare() -> None:
    """Give closed streams somewhere to go, and let the others take every character. Opens what is closed in order, so
    that no file of ours takes the place of a standard stream.
    """
    codecs.register_error(_HANDLER, _spelled)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
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


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(one) or one.encode("unicode_escape").decode("ascii") for one in lacking), error.end
