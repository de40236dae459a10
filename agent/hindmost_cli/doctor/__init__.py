"""``hindmost doctor``: what can be seen on this machine, what cannot, why, and what to do about it."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING

from hindmost.errors import UsageError

from hindmost_cli import stdio
from hindmost_cli.doctor import checks
from hindmost_cli.doctor.checks import Machine

if TYPE_CHECKING:
    import argparse

    from hindmost_cli.doctor.checks import Finding

MARKS = {"yes": "yes ", "part": "part", "no": "no  "}
COLORS = {"yes": "32", "part": "33", "no": "31"}


EPILOG = """\
examples:
  hindmost doctor
  hindmost doctor --python /opt/conda/envs/train/bin/python"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``hindmost doctor``."""
    parser.epilog = EPILOG
    parser.add_argument("--format", choices=["text", "json"], default="text", help="output format (default: text)")
    parser.add_argument("--python", metavar="PATH", help="Python of your jobs (default: python3 on PATH)")


def run(args: argparse.Namespace) -> int:
    """Print every finding. What is missing is an answer, not a failure: the exit code is 0."""
    machine = Machine()
    asked = args.python or machine.which("python3") or sys.executable
    if machine.which(asked) is None:
        raise UsageError(f"--python {asked}: no such program; give the path of an interpreter")
    findings = checks.examine(dataclasses.replace(machine, python=asked))
    if args.format == "json":
        print(json.dumps({name: dataclasses.asdict(finding) for name, finding in findings.items()}, indent=2))
    else:
        color = stdio.colored(sys.stdout)
        print("\n".join(_lines(name, finding, color) for name, finding in findings.items()))
    return 0


def _lines(name: str, finding: Finding, color: bool) -> str:
    mark = MARKS[finding.state]
    if color:
        mark = f"\033[{COLORS[finding.state]}m{mark}\033[0m"
    text = f"{mark}  {name:<14} {finding.found}"
    if finding.state == "yes":
        return text
    more = [f"effect: {finding.lost}"] if finding.lost else []
    more += [f"remedy: {finding.remedy}"] if finding.remedy else []
    return "\n".join([text, *(" " * 21 + line for line in more)])
