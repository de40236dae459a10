"""``hindmost agent``: sample this node and its training processes."""

from __future__ import annotations

import argparse

from hindmost_cli import arguments

EPILOG = """\
examples:
  hindmost agent --listen 127.0.0.1:9400
  hindmost agent --collector head-node:9460 --tls-ca ca.pem --token-file token"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options; ``hindmost_agent.settings`` checks them."""
    parser.epilog = EPILOG
    parser.add_argument("--collector", metavar="HOST:PORT", help="send data to this collector")
    parser.add_argument("--listen", metavar="[HOST]:PORT", help="serve /metrics here; :PORT is every address")
    parser.add_argument("--job-id", default="", metavar="ID", help="observe this job only (default: all on the node)")
    parser.add_argument("--ring-dir", metavar="DIR", help="folder of the job's rings (default: below /dev/shm)")
    parser.add_argument("--spool", metavar="DIR", help="folder for data that is not yet delivered")
    parser.add_argument("--spool-size", default="256MiB", metavar="SIZE", help="limit of the spool (default: 256MiB)")
    parser.add_argument("--interval", default="1s", metavar="TIME", help="time between samples (default: 1s)")
    arguments.add_proofs(parser)
    parser.add_argument("--web-config", metavar="FILE", help="TLS and passwords of --listen, as Prometheus has them")
    parser.add_argument("--insecure", action="store_true", help="permit --listen on a network without --web-config")
    parser.add_argument("--exit-when-stdin-closes", action="store_true", help="exit when stdin closes")
    name = "exit_when_stdin_closes"
    parser.add_argument("--hold", dest=name, action="store_true", help=argparse.SUPPRESS)  # its name in 0.1


def run(args: argparse.Namespace) -> int:
    from hindmost_agent.daemon import serve
    from hindmost_agent.settings import settings

    return serve(settings(**vars(args)))
