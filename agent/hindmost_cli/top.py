"""``hindmost top``: the verdict and the ranks of a running job, in the terminal, as its collector sees them."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from hindmost.errors import HindmostError, UsageError
from hindmost_proto.address import parse

from hindmost_cli import streams

if TYPE_CHECKING:
    import argparse

EPILOG = """\
examples:
  hindmost top 127.0.0.1:40123
  hindmost top head-node:9461 --job train-7 --once

`hindmost run` prints ADDRESS when it starts. For a collector it is the value of --http."""
#: Where a collector serves its page by default.
USUAL = "127.0.0.1:9461"
#: Seconds that a collector may take to answer.
TIMEOUT = 5.0
#: How an address is found.
GIVE = "give HOST:PORT from the first line of `hindmost run`"
#: The longest pause between two updates.
LONGEST = 86_400.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.epilog = EPILOG
    parser.add_argument(
        "address", metavar="ADDRESS", nargs="?", default=USUAL, help=f"HOST:PORT of the page (default: {USUAL})"
    )
    parser.add_argument("--job", metavar="ID", help="the job to show, if the collector has several")
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="SECONDS", help="time between updates (default: 2)"
    )
    parser.add_argument("--once", action="store_true", help="print once and exit (always, if stdout is no terminal)")


def run(args: argparse.Namespace) -> int:
    """Show until Ctrl-C, or until the collector leaves with its job."""
    if not 0 < args.interval <= LONGEST:
        raise UsageError(f"--interval {args.interval:g}: use a number of seconds above 0, at most {LONGEST:g}")
    base = place(args.address)
    shown = page(base, args.job)
    if args.once or not sys.stdout.isatty():
        sys.stdout.write(shown)
        return 0
    return follow(base, args.job, args.interval, shown)


def place(address: str) -> str:
    """``http://HOST:PORT`` of whatever the user pasted."""
    base = address if "://" in address else f"http://{address}"
    scheme, _, rest = base.partition("://")
    host = rest.partition("/")[0]
    if scheme not in ("http", "https") or not host or (":" in host and parse(host) is None):
        raise UsageError(f"ADDRESS {address!r}: {GIVE}")
    return f"{scheme}://{host}"


def page(base: str, job: str | None) -> str:
    """The current page. Raises HindmostError where the collector does not answer or does not know the job."""
    report = fetch(base, "/api/report", {"job": job} if job else {})
    if report is None:
        known = fetch(base, "/api/jobs", {}) or []
        names = ", ".join(str(one["id"]) for one in known)
        if job and job not in [one["id"] for one in known]:
            raise HindmostError(f"{base} has no job {job!r}; it has {names or 'none'}")
        return f"hindmost · {names or 'no job yet'} · no verdict yet\n"
    return rendered(report)


def rendered(report: dict[str, Any]) -> str:
    """A report as the terminal takes it."""
    from hindmost_collector.report import text

    return text.render(report, streams.width(), streams.colored(sys.stdout), more="on the page")


def fetch(base: str, path: str, query: dict[str, str]) -> Any:
    """A JSON answer; None for "there is none". Raises HindmostError where this is no collector."""
    url = f"{base}{quote(path)}" + (f"?{urlencode(query)}" if query else "")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:  # noqa: S310 - http or https, see place()
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == http.client.NOT_FOUND:
            return None
        raise HindmostError(f"{url} answers {error.code} {error.reason}: is this a hindmost collector?") from error
    except ValueError as error:
        raise HindmostError(f"{url} does not answer with JSON: is this a hindmost collector?") from error
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "reason", None) or error
        if isinstance(why, socket.gaierror):
            raise UsageError(f"ADDRESS {base}: no such host; {GIVE}") from error
        why = getattr(why, "strerror", None) or why
        raise HindmostError(f"no answer from {base} ({why}): is the job still running?") from error


def follow(base: str, job: str | None, interval: float, shown: str) -> int:
    """Redraw in place; the last picture stays on the terminal when the collector or the user leaves."""
    out, left = sys.stdout, ""
    out.write("\x1b[?1049h\x1b[?25l")
    try:
        while True:
            footer = f"\x1b[2mlive · {time.strftime('%H:%M:%S')} · every {interval:g} s · Ctrl-C leaves\x1b[0m"
            out.write("\x1b[H\x1b[2J" + fitting(shown, shutil.get_terminal_size().lines - 1) + footer)
            out.flush()
            time.sleep(interval)
            shown = page(base, job)
    except KeyboardInterrupt:
        pass  # that is how one leaves
    except HindmostError:
        left = "hindmost: lost contact with the collector; the job may be over. This was its last state.\n"
    finally:
        out.write("\x1b[?25h\x1b[?1049l" + shown)
        out.flush()
    sys.stderr.write(left)
    return 0


def fitting(text: str, lines: int) -> str:
    """The first lines that the terminal has room for."""
    return "".join(text.splitlines(keepends=True)[: max(lines, 1)])
