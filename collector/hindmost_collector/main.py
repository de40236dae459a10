"""From options to a served collector: logging, signals, the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import signal
import sys
from typing import TYPE_CHECKING

from hindmost.open_files import allow_files

from hindmost_collector import relay
from hindmost_collector.serving import serve
from hindmost_collector.settings import DEFAULT

if TYPE_CHECKING:
    from hindmost_collector.options import Options
    from hindmost_collector.settings import Settings


#: How long a thread that writes or judges may keep the event loop waiting for the interpreter's lock.
SWITCH_S = 0.0005
#: Messages make many objects and hardly a cycle: look for cycles a hundredth as often as Python does by itself.
GARBAGE = (70_000, 20, 50)
#: malloc.h's numbers of options, and their values. Threads share two heaps: each would keep what the largest flush, or
#: report, that it ever made took. Arrays below 4 MiB come from a heap, which keeps 16 MiB of what is free: else each
#: is mapped and unmapped, for which the kernel stops every thread.
MALLOC = {"M_ARENA_MAX": (-8, 2), "M_MMAP_THRESHOLD": (-3, 4 << 20), "M_TRIM_THRESHOLD": (-1, 16 << 20)}


class JsonLines(logging.Formatter):
    """One JSON object a line, for log collectors."""

    def format(self, record: logging.LogRecord) -> str:
        """The record's time (Unix s), level, logger, message and traceback."""
        fields = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def run_collector(options: Options, settings: Settings = DEFAULT) -> int:
    """Serve until SIGTERM or SIGINT, or the end of stdin where held; 0."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s hindmost collector: %(levelname)s: %(message)s")
    handler.setFormatter(JsonLines() if options.log_format == "json" else text)
    # Who starts a job by hand holds its collector, and looks into its log for trouble alone.
    logging.basicConfig(level=logging.WARNING if options.hold else logging.INFO, handlers=[handler])
    logging.getLogger("grpc").setLevel(logging.ERROR)
    allow_files()
    sys.setswitchinterval(SWITCH_S)
    _set_malloc()
    gc.freeze()
    gc.set_threshold(*GARBAGE)
    return asyncio.run(_serve(options, settings))


def _set_malloc() -> None:
    """Set up glibc's malloc for a process of a few threads and many short-lived arrays."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        library = ctypes.CDLL(None)
        for option, value in MALLOC.values():
            library.mallopt(option, value)


async def _serve(options: Options, settings: Settings) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if options.relay_to:
        return await relay.serve(options, stopped)
    return await serve(options, stopped, settings)
