"""What is printed when the job has ended: the verdict, on stderr, as ``hindmost report`` prints it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
from typing import TYPE_CHECKING, Any

from hindmost_cli import streams

if TYPE_CHECKING:
    from pathlib import Path

#: Columns of a summary that goes to a file or a pipe, and the most that a wide terminal is given.
PLAIN_WIDTH, WIDEST = 100, 120


def show(directory: Path, said: str) -> None:
    """Print the report of ``directory``, or the one the collector ``said`` where the disk would not take it."""
    report = _written(directory) or _spoken(said)
    if report is None:
        streams.say(f"hindmost: no report was written; see {directory / 'logs'}, or try: hindmost report {directory}\n")
        return
    from hindmost_collector.report import text

    terminal = sys.stderr.isatty()
    width = min(shutil.get_terminal_size().columns, WIDEST) if terminal else PLAIN_WIDTH
    color = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    more = f"hindmost report {shlex.quote(str(directory))} --explain"
    streams.say(text.render(report, width, color, more=more).rstrip("\n") + "\n")


def _written(directory: Path) -> dict[str, Any] | None:
    try:
        report = json.loads((directory / "report.json").read_text())
    except (OSError, ValueError):
        return None
    return report if isinstance(report, dict) else None


def _spoken(said: str) -> dict[str, Any] | None:
    """The report in the last line of ``said`` that holds one; a collector that was stopped may have cut it short."""
    for line in reversed(said.splitlines()):
        if line.startswith('{"report":'):
            with contextlib.suppress(ValueError):
                report = json.loads(line)["report"]
                return report if isinstance(report, dict) else None
    return None
