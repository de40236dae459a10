"""What ``hindmost run`` prints while the job runs: a line a verdict, and how to see the page over ssh."""

from __future__ import annotations

import getpass
import os
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

from hindmost_proto.address import parse

from hindmost_cli import stdio

if TYPE_CHECKING:
    from collections.abc import Mapping

_BOLD, _NORMAL = "\x1b[1m", "\x1b[0m"


def say(event: Mapping[str, Any]) -> None:
    """One verdict as it opens, changes or closes, on stderr; the end of the job closes none, as the report follows."""
    if not event.get("ended"):
        stdio.say(line(event, columns(), color=stdio.colored(sys.stderr)))


def none(_: Mapping[str, Any]) -> None:
    """For those who want none."""


def columns() -> int:
    """The width of the terminal that stderr is; 0 where it is none, or takes no escape sequences."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return 0
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:
        return 0


def line(event: Mapping[str, Any], columns: int = 0, *, color: bool = False) -> str:
    """The line of an event: on a terminal of so many ``columns``, with local time, below what the job is writing; in a
    log, with the date.

    Blanks fill the line in which the cursor is: they reach the next line unless it was the first column.
    """
    at = time.localtime(event["time_ns"] / 1e9)
    text = str(event["text"])
    if not columns:
        return f"hindmost: {time.strftime('%Y-%m-%dT%H:%M:%S%z', at)} {text}\n"
    shown = f"{_BOLD}{text}{_NORMAL}" if color else text
    return f"{' ' * columns}\r\x1b[Khindmost: {time.strftime('%H:%M:%S', at)} {shown}\n"


def tunnel(page: str, environ: Mapping[str, str]) -> str:
    """The ``ssh -L`` command that brings the page to the machine from which the user came here; empty without ssh."""
    try:
        _, _, host, port = environ.get("SSH_CONNECTION", "").split()
    except ValueError:
        return ""
    found = parse(page)
    if found is None:
        return ""
    behind = found.host if found.host not in ("", "0.0.0.0", "::") else "127.0.0.1"  # noqa: S104 - compared
    where = f"[{behind}]" if ":" in behind else behind
    user = environ.get("USER") or getpass.getuser()
    other = [] if port == "22" else ["-p", port]
    command = ["ssh", "-N", *other, "-L", f"{found.port}:{where}:{found.port}", f"{user}@{host}"]
    return f"{shlex.join(command)}  then http://127.0.0.1:{found.port}/"
