"""``hindmost collector``: receive agents, judge live, serve metrics and the page."""

from __future__ import annotations

import argparse
import dataclasses
import os
from functools import partial
from pathlib import Path

from hindmost_cli import ONE_THREAD, QUIET_GRPC, arguments, loading

#: gRPC's own event engine hands a message from thread to thread; its older poller does not, and halves what the library
#: costs a collector (measured with 1.85 by bench/collector_load). A version without these switches ignores them.
POLLER = "-event_engine_client,-event_engine_listener,-event_engine_callback_cq"
#: For Arrow and all else: what is free in it goes back to the system with the rest (``pyarrow.set_memory_pool`` would
#: leave out what Parquet allocates).
_ONE_ALLOCATOR = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
EPILOG = """\
examples:
  hindmost collector --store /var/lib/hindmost --listen 0.0.0.0:9460
  hindmost collector --out runs/job-7 --job-id job-7

Each option is also an environment variable, e.g. HINDMOST_COLLECTOR_STORE, and a key of the TOML file."""


def configure(parser: argparse.ArgumentParser) -> None:
    """A flag for each setting; each is also a key of the TOML file and HINDMOST_COLLECTOR_KEY in the environment."""
    with loading(ONE_THREAD | _ONE_ALLOCATOR):
        import pyarrow  # it loads numpy, too

        pyarrow.default_memory_pool()
    from hindmost_collector.options import Options, flag

    parser.epilog = EPILOG
    parser.usage = "hindmost collector [options]"
    for field in dataclasses.fields(Options):
        form, choices, meaning = field.metadata["form"], field.metadata["choices"], field.metadata["meaning"]
        text = meaning if "default" in meaning or not field.default else f"{meaning} (default: {field.default})"
        if isinstance(field.default, bool):
            parser.add_argument(flag(field.name), action=argparse.BooleanOptionalAction, help=text)
            if former := field.metadata["formerly"]:
                hidden = argparse.SUPPRESS
                parser.add_argument(flag(former), dest=field.name, action=argparse.BooleanOptionalAction, help=hidden)
        else:
            kind = partial(arguments.filled, flag(field.name)) if form == "FILE" else str
            parser.add_argument(flag(field.name), type=kind, metavar=form or None, choices=choices or None, help=text)
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="read settings from this TOML file, thresholds from its table [judge]",
    )
    arguments.add_thresholds(parser, config=False)


def run(args: argparse.Namespace) -> int:
    from hindmost_collector.options import resolve

    ours = ("config", "set")
    options = resolve({name: value for name, value in vars(args).items() if name not in ours}, os.environ, args.config)
    settings = arguments.thresholds(args.set, args.config)
    with loading(QUIET_GRPC | {"GRPC_EXPERIMENTS": POLLER}):
        import grpc  # noqa: F401
    from hindmost_collector.main import run_collector

    return run_collector(options, settings)
