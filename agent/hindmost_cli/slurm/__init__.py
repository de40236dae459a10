"""``hindmost slurm``: write what hindmost found into the accounting of Slurm jobs."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from hindmost.errors import HindmostError, UsageError

from hindmost_cli import arguments, stdio
from hindmost_cli.slurm import accounting
from hindmost_cli.top.source import Collector

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

EPILOG = """\
examples:
  hindmost slurm 812345 --wait 120                 # EpilogSlurmctld, as the Slurm user
  hindmost slurm --since now-2days                 # a timer: jobs that have ended and have no summary
  hindmost slurm --since now-2days --collector head-node:9461 --tls-ca ca.pem --token-file token

Read a summary with `hindmost report --slurm JOBID`."""
#: Where a collector serves its page by default.
USUAL = "127.0.0.1:9461"
#: How often the collector is asked whether a job is over, s.
AGAIN_S = 5.0
#: A job that the collector does not know so long after its end was not observed.
UNKNOWN_S = 15.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.epilog = EPILOG
    parser.add_argument("jobs", metavar="JOBID", nargs="*", help="jobs, as Slurm numbers them: 123, 123_4")
    parser.add_argument("--since", metavar="TIME", help="all jobs that ended since, as sacct has it: now-2days")
    parser.add_argument(
        "--collector", metavar="ADDRESS", default=USUAL, help=f"HOST:PORT of the collector's page (default: {USUAL})"
    )
    parser.add_argument(
        "--wait", type=float, default=0.0, metavar="SECONDS", help="wait until the collector has the last of a job"
    )
    arguments.add_proofs(parser)


def run(args: argparse.Namespace) -> int:
    """Write summaries. Exit code 1 where a job that was named got none, or where one could not be written."""
    if not args.jobs and not args.since:
        raise UsageError("give JOBID or --since TIME")
    if not 0 <= args.wait < math.inf:
        raise UsageError(f"--wait {args.wait:g}: use a number of seconds, 0 or more")
    collector = Collector(args.collector, arguments.client(args))
    until = time.monotonic() + args.wait
    failed = False
    for name in args.jobs:
        job = accounting.by_number(name)
        if job.comment and not job.is_ours:
            said = "has another AdminComment, which stays"
        else:
            said = written(job, report_of(collector, job.number, until))
        if said:
            failed = True
            stdio.say(f"hindmost slurm: job {job.name}: {said}\n")
    if args.since:
        ended = accounting.ended_since(args.since)
        collector.jobs()  # raises once where it is away, not for each job
        for job in sorted(ended, key=lambda job: job.end, reverse=True):  # the timer may not come to the last of them
            try:
                report = None if job.comment else report_of(collector, job.number, until)
                if report is not None and is_final(report):  # else a later run of the timer writes it
                    written(job, report)
            except HindmostError as error:  # noqa: PERF203 - the jobs after it get theirs
                failed = True
                stdio.say(f"hindmost slurm: job {job.name}: {error}\n")
    return int(failed)


def report_of(
    collector: Collector,
    number: str,
    until: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any] | None:
    """The report of a job: the last one, unless ``until`` comes before; None where hindmost knows no such job."""
    given_up = clock() + UNKNOWN_S
    while True:
        report = collector.report_if_any(number)
        if (report is not None and is_final(report)) or clock() >= until:
            return report
        if report is None and clock() >= given_up and number not in collector.jobs():
            return None
        sleep(min(AGAIN_S, max(until - clock(), 0.0)))


def is_final(report: dict[str, Any]) -> bool:
    """Whether the job is over for the collector: only a job in memory has the time of the last judgement."""
    return "judged" not in report


def written(job: accounting.Job, report: dict[str, Any] | None) -> str:
    """Write a job's summary, unless it has it; what was wrong."""
    if report is None:
        return "the collector has no report of it: it was not observed"
    from hindmost_collector.report.admin_comment import packed

    comment = packed(report)
    if comment.lower() != job.comment.lower():  # Slurm 22.05 keeps small letters only
        accounting.comment(job.number, comment)
    return ""
