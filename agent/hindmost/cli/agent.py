"""``hindmost agent``: sample this node and its training processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

HELP = "sample this node and its training processes"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options; ``hindmost_agent.settings`` checks them."""
    parser.add_argument("--collector", metavar="HOST:PORT", help="stream to this collector")
    parser.add_argument("--listen", metavar="[HOST]:PORT", help="serve /metrics to Prometheus, :PORT on every address")
    parser.add_argument("--job-id", default="", metavar="ID", help="belong to this job rather than to the node")
    parser.add_argument("--ring-dir", metavar="DIR", help="where the job's rings are")
    parser.add_argument("--spool", metavar="DIR", help="where to keep what is not yet delivered")
    parser.add_argument("--spool-size", default="256MiB", metavar="SIZE", help="at most this much (256MiB)")
    parser.add_argument("--interval", default="1s", metavar="TIME", help="time between two ticks (1s)")
    parser.add_argument("--exit-when-stdin-closes", action="store_true", help="leave when stdin is closed")


def run(args: argparse.Namespace) -> int:
    """Run an agent until there is a reason to leave."""
    from hindmost_agent.service import serve
    from hindmost_agent.settings import settings

    return serve(settings(**vars(args)))
