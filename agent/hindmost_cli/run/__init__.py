"""``hindmost run``: a training job, observed from its start to its verdict, with a line for each verdict on the way."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

from hindmost.errors import HindmostError, UsageError
from hindmost_proto.address import parse

from hindmost_cli import ONE_THREAD, arguments, launchers, loading, stdio
from hindmost_cli.run import foreground
from hindmost_cli.run.session import RunRequest, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_BOLD, _NORMAL = "\x1b[1m", "\x1b[0m"


def say(event: Mapping[str, Any]) -> None:
    """One verdict as it opens, changes or closes, on stderr; the end of the job closes none, as the report follows."""
    if not event.get("ended"):
        stdio.say(line(event, columns(), color=stdio.colored(sys.stderr)))


def say_stops(event: Mapping[str, Any]) -> None:
    """The same of a job that stopped, and of no other verdict: a log without its hang is worth nothing."""
    from hindmost_judge.verdict.schema import STOPS

    if event["kind"] in STOPS:
        say(event)


def listener(quiet: bool, log_verdicts: bool) -> Callable[[Mapping[str, Any]], None]:
    """What hears of verdicts while the job runs, by the options and by where stderr goes."""
    if quiet:
        return none
    return say if log_verdicts or sys.stderr.isatty() else say_stops


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


#: Hosts of a port that listens on every address: none that another machine could open.
_EVERY = ("", "0.0.0.0", "::")  # noqa: S104 - compared


def reachable(page: str) -> str:
    """The address to open: with this host's name where the page listens on every address."""
    found = parse(page)
    return str(found._replace(host=os.uname().nodename)) if found is not None and found.host in _EVERY else page


def ssh_tunnel(page: str, environ: Mapping[str, str], query: str = "") -> str:
    """The ``ssh -L`` command that brings the page to the machine from which the user came here; empty without ssh.

    ``query`` is what the page's address ends in.
    """
    try:
        _, _, host, port = environ.get("SSH_CONNECTION", "").split()
    except ValueError:
        return ""
    found = parse(page)
    if found is None:
        return ""
    behind = found.host if found.host not in _EVERY else "127.0.0.1"
    where = f"[{behind}]" if ":" in behind else behind
    user = environ.get("USER") or getpass.getuser()
    other = [] if port == "22" else ["-p", port]
    command = ["ssh", "-N", *other, "-L", f"{found.port}:{where}:{found.port}", f"{user}@{host}"]
    return f"{shlex.join(command)}  then http://127.0.0.1:{found.port}/{query}"


#: Columns of a summary that goes to a file or a pipe.
PLAIN_WIDTH = 100
EPILOG = """\
examples:
  hindmost run -- mpirun -np 4 python train.py
  hindmost run --out runs/baseline -- torchrun --nproc-per-node 8 train.py
  hindmost run --listen 127.0.0.1:9090 -- srun -N 4 python train.py

COMMAND keeps its terminal, signals and exit code. If hindmost cannot start, COMMAND runs without it."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.usage = "hindmost run [options] -- COMMAND ..."
    parser.add_argument(
        "--out",
        type=arguments.path("--out"),
        metavar="DIR",
        help="write the run directory here, next to other files into DIR/JOB (default: hindmost-runs/JOB)",
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
    parser.add_argument(
        "--on-verdict", metavar="CMD|URL", help="run this, or post JSON there, when a verdict opens, changes or closes"
    )
    verdicts = parser.add_mutually_exclusive_group()
    verdicts.add_argument("--quiet", action="store_true", help="print no verdicts while the job runs")
    verdicts.add_argument(
        "--log-verdicts", action="store_true", help="print all of them where stderr is no terminal, not only hangs"
    )
    arguments.add_thresholds(parser, config=False)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="the job, as you start it without hindmost"
    )


def run(args: argparse.Namespace) -> int:
    """Run COMMAND observed, or unobserved where that cannot be; leave as it left."""
    request = _request(args)
    environ = dict(os.environ)
    foreground.program_path(request.command[0], environ)
    try:
        session = Session.start(request, launchers.find(request.command), environ, _say)
    except UsageError:
        raise
    except HindmostError as error:
        _say(f"the job runs unobserved: {error}")
        return foreground.exit_like(foreground.run(request.command, environ))
    return foreground.exit_like(_observed(session, listener(args.quiet, args.log_verdicts)))


def _observed(session: Session, tell: Callable[[Mapping[str, Any]], None]) -> int:
    if session.page:
        token = f"?token={session.opens}" if session.opens else ""
        page = f"http://{reachable(session.page)}"
        _say(f"page {page}/{token}  metrics {page}/metrics{token}  run {_short(session.directory)}")
        if tunnel := ssh_tunnel(session.page, session.environ, token):
            _say(f"from your own machine: {tunnel}")

    def started(pid: int) -> None:
        session.begin(pid)
        session.collector.follow("verdict", tell)

    try:
        returncode = foreground.run(session.argv, session.environ, session.heard, started)
    except HindmostError:
        session.abandon()
        raise
    try:
        said = session.finish(returncode, _say)
        with contextlib.suppress(OSError):  # the terminal is gone; report.json has the verdict
            show(session.directory, said)
            say_files(session.directory)
    except KeyboardInterrupt:
        session.abandon()
        again = f"{stdio.program()} report {_short(session.directory)}"
        _say(f"interrupted before the report was ready; print it with: {again}")
    return returncode


def _request(args: argparse.Namespace) -> RunRequest:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UsageError("no COMMAND given; for example: hindmost run -- mpirun -np 4 python train.py")
    if args.listen and not args.live:
        raise UsageError("--listen and --no-live contradict each other: drop one")
    try:
        arguments.thresholds(args.set)
        if args.on_verdict:
            from hindmost_collector.live.notification import destination

            destination(args.on_verdict)
    except UsageError:
        raise
    except (HindmostError, ImportError):
        pass  # no collector here: the session says so, and the job runs
    return RunRequest(
        tuple(command), args.out, args.job_id, args.live, _endpoint(args.listen), args.on_verdict, tuple(args.set or ())
    )


def _endpoint(text: str | None) -> str | None:
    """``HOST:PORT``; a bare ``:PORT`` means every address of this machine."""
    if text is None:
        return None
    found = parse(text)
    if found is None:
        raise UsageError(f"--listen {text!r}: write HOST:PORT or :PORT, PORT from 0 to 65535")
    return str(found._replace(host=found.host or "0.0.0.0"))  # noqa: S104 - asked for by writing no host


def _short(path: Path) -> str:
    """Relative to where the user stands where that is shorter."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)


def _say(sentence: str) -> None:
    stdio.say(f"hindmost: {sentence}\n")


def show(directory: Path, said: str) -> None:
    """Print the report of ``directory`` on stderr, as ``hindmost report`` does.

    Where the disk would not take it: the one that the collector ``said``.
    """
    report = _written(directory) or _spoken(said)
    if report is None:
        again = f"{stdio.program()} report {directory}"
        stdio.say(f"hindmost: no report was written; see {directory / 'logs'}, or try: {again}\n")
        return
    with loading(ONE_THREAD):
        from hindmost_collector.report import text

    width = stdio.width(unknown=80) if sys.stderr.isatty() else PLAIN_WIDTH
    path = shlex.quote(_short(directory))
    shown = text.render(report, width, stdio.colored(sys.stderr), path=path, program=stdio.program())
    stdio.say(shown.rstrip("\n") + "\n")


def say_files(directory: Path) -> None:
    """Say where the page of the report is, and event traces of ranks that it names."""
    if (directory / "report.html").exists():
        _say(f"report {_short(directory / 'report.html')}")
    named = {rank for verdict in (_written(directory) or {}).get("verdicts", ()) for rank in verdict["ranks"]}
    traces = [trace for rank in sorted(named) for trace in sorted(directory.glob(f"stacks/{rank}-trace-*.json"))]
    if traces:
        more = f" and {len(traces) - 1} more" if traces[1:] else ""
        whose = f"a timeline of the calls of rank {traces[0].name.partition('-')[0]} in slow steps"
        _say(f"{whose}: drop {_short(traces[0])}{more} on https://ui.perfetto.dev")


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
