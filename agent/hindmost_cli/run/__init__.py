"""``hindmost run``: a training job, observed from its start to its verdict."""

from __future__ import annotations

import argparse
import contextlib
import os
from typing import TYPE_CHECKING

from hindmost.errors import HindmostError, UsageError

from hindmost_cli import arguments, launchers, streams, thresholds
from hindmost_cli.run import foreground, summary
from hindmost_cli.run.session import Session, Wish

if TYPE_CHECKING:
    from pathlib import Path

EPILOG = """\
examples:
  hindmost run -- mpirun -np 4 python train.py
  hindmost run --out runs/baseline -- torchrun --nproc-per-node 8 train.py
  hindmost run --listen 127.0.0.1:9090 -- srun -N 4 python train.py

COMMAND keeps its terminal, signals and exit code. If hindmost cannot start, COMMAND runs without it."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``hindmost run``."""
    parser.epilog = EPILOG
    parser.usage = "hindmost run [options] -- COMMAND ..."
    parser.add_argument(
        "--out",
        type=arguments.path("--out"),
        metavar="DIR",
        help="write the run directory here (default: hindmost-runs/JOB)",
    )
    parser.add_argument("--job-id", metavar="ID", help="name the job (default: script, date and time)")
    parser.add_argument(
        "--live",
        action=argparse.BooleanOptionalAction,
        help="serve a page and /metrics on a free port of 127.0.0.1 (default: yes)",
    )
    parser.set_defaults(live=True)  # as ``default=`` Python 3.10 would write it behind the help once more
    parser.add_argument(
        "--listen", metavar="[HOST]:PORT", help="serve the page and /metrics here; :PORT is every address"
    )
    thresholds.configure(parser, config=False)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="the job, as you start it without hindmost"
    )


def run(args: argparse.Namespace) -> int:
    """Run COMMAND observed, or unobserved where that cannot be; leave as it left."""
    wish = _wish(args)
    environ = dict(os.environ)
    foreground.find(wish.command[0], environ)
    try:
        session = Session.start(wish, launchers.find(wish.command), environ, _say)
    except UsageError:
        raise
    except HindmostError as error:
        _say(f"the job runs unobserved: {error}")
        return foreground.exit_like(foreground.run(wish.command, environ))
    return foreground.exit_like(_observed(session))


def _observed(session: Session) -> int:
    if session.page:
        _say(f"page http://{session.page}/  metrics http://{session.page}/metrics  run {_short(session.directory)}")
    try:
        returncode = foreground.run(session.argv, session.environ, session.heard)
    except HindmostError:
        session.abandon()
        raise
    try:
        said = session.finish(returncode, _say)
        with contextlib.suppress(OSError):  # the terminal is gone; report.json has the verdict
            summary.show(session.directory, said)
    except KeyboardInterrupt:
        session.abandon()
        _say(f"interrupted before the report was ready; print it with: hindmost report {_short(session.directory)}")
    return returncode


def _wish(args: argparse.Namespace) -> Wish:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UsageError("no COMMAND given; for example: hindmost run -- mpirun -np 4 python train.py")
    if args.listen and not args.live:
        raise UsageError("--listen and --no-live contradict each other: drop one")
    try:
        thresholds.chosen(args.set)
    except UsageError:
        raise
    except HindmostError:
        pass  # no collector here: the session says so, and the job runs
    return Wish(tuple(command), args.out, args.job_id, args.live, _endpoint(args.listen), tuple(args.set or ()))


def _endpoint(text: str | None) -> str | None:
    """``HOST:PORT``; a bare ``:PORT`` means every address of this machine."""
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--listen {text!r}: write HOST:PORT or :PORT, PORT from 0 to 65535")
    return f"{host or '0.0.0.0'}:{port}"  # noqa: S104 - asked for by writing no host


def _short(path: Path) -> str:
    """Relative to where the user stands where that is shorter."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)


def _say(sentence: str) -> None:
    streams.say(f"hindmost: {sentence}\n")
