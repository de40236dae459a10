"""``hindmost attach``: look into training processes that are already running."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hindmost.errors import HindmostError, UsageError

from hindmost_cli import arguments

if TYPE_CHECKING:
    from hindmost_cli.attach.phases import Shares
    from hindmost_cli.attach.target import Target

EPILOG = """\
examples:
  hindmost attach 4711
  hindmost attach --job 812345 --seconds 30
  hindmost attach --stacks --job 812345
  hindmost attach --stacks --job 812345 --save-to hindmost-runs/812345

attach needs no restart and leaves nothing in the processes. They must be yours.
It measures Python 3.14 and later inside the process. It samples older versions with py-spy, from outside.
Of compiled programs with MPI it shows no phases: --stacks has the call that each rank of a hindmost run waits in.
It gives no verdict. For one start the job with hindmost run."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    which = parser.add_mutually_exclusive_group(required=True)
    process = "a process, or a launcher of ranks"
    which.add_argument("pids", type=int, nargs="*", default=[], metavar="PID", help=process)
    which.add_argument("--pid", type=int, action="append", metavar="PID", help=f"{process}; may be repeated")
    which.add_argument(
        "--job", metavar="ID", help="all ranks of this job on this machine; ID of hindmost or the scheduler"
    )
    parser.add_argument("--seconds", type=float, default=10.0, metavar="N", help="duration, at most 3600 (default: 10)")
    parser.add_argument(
        "--rate", type=int, default=100, metavar="N", help="samples per second, 1 to 1000 (default: 100)"
    )
    parser.add_argument("--sample", action="store_true", help="sample from outside even with Python 3.14 and later")
    what = "print the stacks and pending collectives now, instead of times"
    parser.add_argument("--stacks", action="store_true", help=what)
    what = "with --stacks: also append each rank's stacks to a file in DIR/stacks"
    parser.add_argument("--save-to", type=Path, metavar="DIR", help=what)
    parser.add_argument("--keep", dest="save_to", type=Path, help=argparse.SUPPRESS)  # its name in 0.1
    parser.add_argument("--format", choices=("text", "json"), default="text", help="output format (default: text)")


def run(args: argparse.Namespace) -> int:
    from hindmost_cli.attach import phases, target

    args.pid = args.pid or args.pids
    if not 0 < args.seconds <= 3600:
        raise UsageError(f"--seconds {args.seconds:g}: use a number above 0, at most 3600")
    if not 1 <= args.rate <= 1000:
        raise UsageError(f"--rate {args.rate}: use a number from 1 to 1000")
    if args.save_to is not None and not args.stacks:
        raise UsageError("--save-to saves stacks: add --stacks")
    if args.job is not None:
        arguments.filled("--job", args.job)
    targets = target.by_job(args.job) if args.job else target.by_pids(args.pid)
    if args.stacks:
        return _show_stacks(targets, args.save_to)
    if any(one.minor == target.COMPILED for one in targets):
        what = f"--job {args.job}" if args.job else " ".join(f"--pid {pid}" for pid in args.pid)
        calls = f"`hindmost attach --stacks {what}` shows the MPI call that each rank of a `hindmost run` waits in"
        raise UsageError(f"{what}: phases of compiled programs cannot be seen from outside; {calls}")
    method, seen = _look(targets, args)
    if args.format == "json":
        sys.stdout.write(json.dumps(phases.to_dict(targets, seen, method, args.seconds), indent=2) + "\n")
    else:
        launcher = target.launcher(targets[0].pid) if len(targets) == 1 else None
        sys.stdout.write(phases.render(targets, seen, method, args.seconds, launcher))
    return 0


def _show_stacks(targets: list[Target], keep: Path | None) -> int:
    """Each rank's stacks and, where `hindmost run` observes it, what it waits in: all looked at together, then said."""
    from concurrent.futures import ThreadPoolExecutor

    from hindmost_cli.attach.target import pending

    with ThreadPoolExecutor(max_workers=8) as pool:
        waiting = [pending(target.pid) for target in targets]
        dumped = list(pool.map(_stack, targets))
    for one, waits, text in zip(targets, waiting, dumped, strict=True):
        lines = "".join(f"{line}\n" for line in [*[one.stop()] * one.stopped, *waits])
        sys.stdout.write(f"rank {one.rank if one.rank >= 0 else '-'}: {text}{lines}\n")
        if keep is not None:
            _keep(keep / "stacks", one, text + lines)
    return 0


def _stack(one: Target) -> str:
    """What Python's stacks show; of a compiled program, what shows its own."""
    from hindmost_agent import stacks

    from hindmost_cli.attach.target import COMPILED

    if one.minor != COMPILED:
        return stacks.dump(one.pid)
    shown_by = f"`gdb -p {one.pid} -batch -ex 'thread apply all bt'`"
    return f"process {one.pid} is a compiled program: {shown_by} prints its stacks\n"


def _keep(folder: Path, one: Target, text: str) -> None:
    """Append to the file of the rank, or of the process where the rank is not known."""
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
    from hindmost_cli.attach import injected, phases

    if not args.sample and all(target.minor >= injected.FIRST_MINOR for target in targets):
        return phases.MEASURED, injected.measure(targets, args.seconds)
    return f"sampled {args.rate} times a second", phases.sample(targets, args.seconds, args.rate)
