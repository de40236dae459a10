"""``hindmost attach``: look into training processes that are already running."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hindmost.cli import given
from hindmost.errors import HindmostError, UsageError

if TYPE_CHECKING:
    from hindmost.attach.sampling import Shares
    from hindmost.attach.target import Target

HELP = "look into training processes that are already running, without restarting them"

EPILOG = """\
examples:
  hindmost attach --pid 4711 --pid 4712
  hindmost attach --job 812345 --seconds 30      a Slurm job's ranks on this machine
  hindmost attach --stacks --job 812345          where each rank stands and what it waits in, now
  hindmost attach --stacks --job ID --save-to hindmost-runs/ID      also saved in the run directory

Python 3.14 and later is entered by sys.remote_exec and measured from inside; older ones are sampled from outside by
py-spy, and shares come with the 95 % interval that sampling has. Only your own processes; nothing stays in them."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``hindmost attach``."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--pid", type=int, action="append", metavar="PID", help="a process; may be repeated")
    which.add_argument("--job", metavar="ID", help="all ranks on this machine of a job, as its scheduler calls it")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to look (default: 10)")
    parser.add_argument("--rate", type=int, default=100, help="samples a second where sampled (default: 100)")
    parser.add_argument("--sample", action="store_true", help="sample from outside even where Python can be entered")
    parser.add_argument(
        "--stacks", action="store_true", help="print all threads' stacks and pending collectives instead"
    )
    parser.add_argument(
        "--save-to", type=Path, metavar="DIR", help="with --stacks: also append each rank's stack to DIR/stacks"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    """Look, print, leave."""
    from hindmost.attach import table, target

    if not 0 < args.seconds <= 3600 or not 1 <= args.rate <= 1000:
        raise UsageError("--seconds must be between 0 and 3600, --rate between 1 and 1000")
    if args.save_to is not None and not args.stacks:
        raise UsageError("--save-to saves stacks: add --stacks")
    if args.job is not None:
        given.filled("--job", args.job)
    targets = target.by_job(args.job) if args.job else [target.by_pid(pid) for pid in args.pid]
    if args.stacks:
        return _show_stacks(targets, args.save_to)
    method, seen = _look(targets, args)
    if args.format == "json":
        sys.stdout.write(json.dumps(table.to_dict(targets, seen, method, args.seconds), indent=2) + "\n")
    else:
        sys.stdout.write(table.render(targets, seen, method, args.seconds))
    return 0


def _show_stacks(targets: list[Target], keep: Path | None) -> int:
    """Each rank's stacks and, where `hindmost run` observes it, what it waits in: all looked at together, then said."""
    from concurrent.futures import ThreadPoolExecutor

    from hindmost.attach import pending, stacks

    with ThreadPoolExecutor(max_workers=8) as pool:
        waiting = [pending.pending(one.pid) for one in targets]
        dumped = list(pool.map(stacks.dump, [one.pid for one in targets]))
    for one, waits, text in zip(targets, waiting, dumped, strict=True):
        lines = "".join(f"{line}\n" for line in waits)
        sys.stdout.write(f"rank {one.rank if one.rank >= 0 else '-'}: {text}{lines}\n")
        if keep is not None:
            _keep(keep / "stacks", one, text + lines)
    return 0


def _keep(folder: Path, one: Target, text: str) -> None:
    """In a file named by the rank, or by the process that nobody named a rank, after what is there from before."""
    name = f"{one.rank}.txt" if one.rank >= 0 else f"pid-{one.pid}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("a") as file:
            file.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')}, on demand\n{text}")
    except OSError as error:
        raise HindmostError(
            f"--save-to: cannot write {folder} ({error.strerror}): name a folder that you may write"
        ) from error


def _look(targets: list[Target], args: argparse.Namespace) -> tuple[str, list[Shares]]:
    """Measured from inside where every target can be entered, else sampled: ranks are compared by one method."""
    from hindmost.attach import injected, sampling, table

    if not args.sample and all(one.minor >= injected.FIRST_MINOR for one in targets):
        return table.MEASURED, injected.measure(targets, args.seconds)
    return f"sampled {args.rate} times a second", sampling.sample(targets, args.seconds, args.rate)
