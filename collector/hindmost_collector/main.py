"""From options to a served collector: logging, signals, the event loop."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
import sys
from typing import TYPE_CHECKING

from hindmost.open_files import allow_files
from hindmost_judge.settings import DEFAULT

from hindmost_collector import allocator, lazy_pandas
from hindmost_collector.ingest import relay
from hindmost_collector.serving import serve

if TYPE_CHECKING:
    from hindmost_judge.settings import Settings

    from hindmost_collector.options import Options


#: How long a thread that writes or judges may keep the event loop waiting for the interpreter's lock.
SWITCH_S = 0.0005
#: Messages make many objects and hardly a cycle: look for cycles a hundredth as often as Python's default.
GARBAGE = (70_000, 20, 50)


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
    # A user who starts a job by hand also keeps its collector, and reads its log only for trouble.
    logging.basicConfig(level=logging.WARNING if options.exit_when_stdin_closes else logging.INFO, handlers=[handler])
    logging.getLogger("grpc").setLevel(logging.ERROR)
    allow_files()
    sys.setswitchinterval(SWITCH_S)
    allocator.set_up()
    lazy_pandas.put_off()
    gc.freeze()
    gc.set_threshold(*GARBAGE)
    return asyncio.run(_serve(options, settings))


async def _serve(options: Options, settings: Settings) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if options.relay_to:
        return await relay.serve(options, stopped)
    return await serve(options, stopped, settings)
