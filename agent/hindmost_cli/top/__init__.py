"""``hindmost top``: the verdicts of a job, and its ranks, nodes and GPUs, in the terminal."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hindmost.errors import UsageError

from hindmost_cli import arguments, stdio
from hindmost_cli.top.source import Collector, RunDirectory

if TYPE_CHECKING:
    import argparse

EPILOG = """\
examples:
  hindmost top
  hindmost top 127.0.0.1:40123
  hindmost top hindmost-runs/JOB
  hindmost top head-node:9461 --job train-7 --once
  hindmost top head-node:9461 --tls-ca ca.pem --token-file token

`hindmost run` prints ADDRESS when it starts. For a collector it is the value of --http. `?` shows the keys."""
#: Where a collector serves its page by default.
USUAL = "127.0.0.1:9461"
#: The longest pause between two updates.
LONGEST = 86_400.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "address",
        metavar="ADDRESS",
        nargs="?",
        help=f"HOST:PORT of the page, or a run directory (default: your job on this machine, else {USUAL})",
    )
    which = "the job to show, where several run; key 4 lists them"
    parser.add_argument("--job", metavar="ID", help=which)
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="SECONDS", help="time between updates (default: 2)"
    )
    parser.add_argument(
        "--once", action="store_true", help="print the report once and exit (always, if stdout is no terminal)"
    )
    arguments.add_proofs(parser)


def run(args: argparse.Namespace) -> int:
    if not 0 < args.interval <= LONGEST:
        raise UsageError(f"--interval {args.interval:g}: use a number of seconds above 0, at most {LONGEST:g}")
    if args.address is None:
        args.address = running(args.job)
    recorded = bool(args.address) and Path(args.address).is_dir()
    source = RunDirectory(Path(args.address)) if recorded else Collector(args.address, arguments.client(args))
    if args.once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        sys.stdout.write(printed(source, args.job, shlex.quote(args.address) if recorded else ""))
        return 0
    from hindmost_cli.top.app import Top

    first = source.picture(args.job)  # what is wrong with ADDRESS is one line, before the screen changes
    top = Top(source, first, args.job, args.interval)
    top.run()
    sys.stdout.write(top.summary())
    return top.return_code or 0


def running(job: str | None, proc: Path = Path("/proc")) -> str:
    """The run directory of this user's one job, or of ``job``; without any a collector's usual address.

    Raises UsageError where several run.
    """
    from hindmost_cli.attach.target import runs

    found = runs(proc)
    if job:
        return found.get(job, USUAL)
    if len(found) > 1:
        commands = ", ".join(f"`hindmost top {shlex.quote(path)}`" for path in sorted(found.values()))
        raise UsageError(f"{len(found)} of your jobs run here; choose one: {commands}")
    return next(iter(found.values()), USUAL)


def printed(source: Collector | RunDirectory, job: str | None, path: str = "") -> str:
    """The current report as text, of the recording at ``path`` if it is one, and of a job that runs its state.

    Raises HindmostError where the source does not answer or does not know the job.
    """
    report = source.report(job)
    if report is None:
        return f"hindmost · {', '.join(source.jobs()) or 'no job yet'} · no verdict yet\n"
    from hindmost_collector.report import text

    from hindmost_cli.top import rows

    written = text.render(report, stdio.width(), stdio.colored(sys.stdout), path=path, program=stdio.program())
    if not report.get("judged"):
        return written
    picture = source.picture(job)
    lost = rows.lost(picture)
    return f"{lost}\n{written}" if lost else f"{written}{rows.state(picture)}\n"
