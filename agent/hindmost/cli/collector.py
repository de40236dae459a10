"""``hindmost collector``: receive agents, judge live, serve metrics and the page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

#: gRPC's own event engine hands a message from thread to thread; its older poller does not, and halves what the library
#: costs a collector (measured with 1.85 by bench/collector_load). A version without these switches ignores them.
POLLER = "-event_engine_client,-event_engine_listener,-event_engine_callback_cq"
HELP = "receive agents, judge live, serve metrics and the page"


def configure(parser: argparse.ArgumentParser) -> None:
    """The flags; each is also a key of the TOML file and HINDMOST_COLLECTOR_KEY in the environment."""
    parser.add_argument("--listen", metavar="HOST:PORT", help="where agents connect (default 127.0.0.1:9460)")
    parser.add_argument("--http", metavar="HOST:PORT", help="page, /metrics, /api/report (default 127.0.0.1:9461)")
    parser.add_argument("--out", metavar="RUN_DIR", help="record one job into this run directory")
    parser.add_argument("--store", metavar="URL", help="record every job into this store: a directory or a URL")
    parser.add_argument("--remote-write", metavar="URL", help="send every metric to this Prometheus receiver, too")
    parser.add_argument(
        "--relay-to", metavar="HOST:PORT", help="be a relay: pass all agents on to this collector, in one stream"
    )
    parser.add_argument("--job-id", metavar="ID", help="the job that --out and --command are about")
    parser.add_argument("--command", dest="job_command", metavar="TEXT", help="the job's command line, for reports")
    parser.add_argument("--launcher", metavar="NAME", help="what launched the job, for reports")
    parser.add_argument("--hold", action="store_true", default=None, help="leave when stdin ends")
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings as TOML")
    parser.add_argument("--log-format", choices=["text", "json"], help="how to log to stderr (default text)")


def run(args: argparse.Namespace) -> int:
    """Serve until stopped."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what gRPC would print is said in our own one line
    os.environ.setdefault("GRPC_EXPERIMENTS", POLLER)  # read when the library is loaded
    from hindmost_collector.main import run_collector
    from hindmost_collector.options import resolve

    flags = {**vars(args), "command": args.job_command}
    options = resolve({k: v for k, v in flags.items() if k not in {"config", "job_command"}}, os.environ, args.config)
    return run_collector(options)
