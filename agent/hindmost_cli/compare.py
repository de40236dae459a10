"""``hindmost compare``: two recorded runs, what changed between them, and how surely."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from hindmost_cli import arguments, stdio
from hindmost_cli.report import place

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from hindmost_judge.settings import Settings

FORMATS = ("text", "json")
EPILOG = """\
example:
  hindmost compare hindmost-runs/before hindmost-runs/after"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.epilog = EPILOG
    parser.add_argument("a", metavar="A", type=place, help="the run before: a run directory or a folder of traces")
    parser.add_argument("b", metavar="B", type=place, help="the run after")
    parser.add_argument("--format", choices=FORMATS, default="text", help="output format (default: text)")
    arguments.add_thresholds(parser)


def run(args: argparse.Namespace) -> int:
    """Load both, compare, print. Exit code 0 whatever changed."""
    found = compared(args.a, args.b, arguments.thresholds(args.set, args.config))
    if args.format == "json":
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
        return 0
    from hindmost_collector.report import compare as text

    sys.stdout.write(text.render(found, stdio.width(least=80), stdio.colored(sys.stdout)))
    return 0


def compared(a: Path | str, b: Path | str, settings: Settings | None = None) -> dict[str, Any]:
    """``hindmost.compare/1`` of two recordings, by the default thresholds unless others are given."""
    from hindmost_collector.comparison import compare
    from hindmost_collector.formats import recordings
    from hindmost_judge.settings import DEFAULT

    return compare(recordings.load(a), recordings.load(b), settings or DEFAULT)
