"""``hindmost compare``: two recorded runs, what changed and how surely; or several, how far more ranks are faster."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from hindmost.errors import UsageError

from hindmost_cli import arguments, stdio
from hindmost_cli.report import place

if TYPE_CHECKING:
    import argparse

FORMATS = ("text", "json")
#: Measures that change as the step does.
OF_STEP = frozenset({"step", "mean_step", "steps_per_s", "work_per_s"})
EPILOG = """\
examples:
  hindmost compare hindmost-runs/before hindmost-runs/after
  hindmost compare hindmost-runs/before hindmost-runs/after --fail-if 'step>3%'
  hindmost compare hindmost-runs/before hindmost-runs/after hindmost-runs/JOB"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.epilog = EPILOG
    parser.add_argument("a", metavar="A", type=place, help="the run before: a run directory or a folder of traces")
    parser.add_argument("b", metavar="B", type=place, help="the run after")
    parser.add_argument(
        "more", metavar="C", type=place, nargs="*", default=[], help="more runs: how far more ranks make the job faster"
    )
    parser.add_argument(
        "--fail-if",
        metavar="CONDITION",
        action="append",
        default=[],
        help="exit with 1 where a measure surely changed from A to B by more, such as 'step>3%%' or 'work_per_s<-5%%'",
    )
    parser.add_argument("--format", choices=FORMATS, default="text", help="output format (default: text)")
    arguments.add_thresholds(parser)


def run(args: argparse.Namespace) -> int:
    """Load, compare, print. Exit code 0 whatever changed; 1 where a condition to fail holds."""
    from hindmost_collector.recordings.load import load
    from hindmost_collector.report import compare as text
    from hindmost_collector.report.cpu_change import blame
    from hindmost_collector.runtime import put_off_pandas

    put_off_pandas()
    conditions = [text.condition(one) for one in args.fail_if]
    settings = arguments.thresholds(args.set, args.config)
    if args.more and conditions:
        raise UsageError("--fail-if compares two runs; give A and B only")
    every = [args.a, args.b, *args.more]
    names = [one if isinstance(one, str) else str(one.resolve()) for one in every]
    if twice := next((one for at, one in enumerate(every) if names[at] in names[:at]), None):
        raise UsageError(f"{twice}: one run is named twice; name different runs")
    a, b, *more = (load(one) for one in every)
    found = text.scaling([a, b, *more], settings) if more else text.compare(a, b, settings)
    failed = [one for one in conditions if one.holds(found)]
    if args.format == "json":
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
    else:
        shown = text.render_scaling if args.more else text.render
        sys.stdout.write(shown(found, stdio.width(least=80), stdio.colored(sys.stdout)))
    for one in failed:
        cpus = blame(found["by_cpu_wait"]) if one.name in OF_STEP else ""
        sys.stderr.write(f"hindmost: failed by --fail-if {one.text}{': the step changed ' * bool(cpus)}{cpus}\n")
    return 1 if failed else 0
