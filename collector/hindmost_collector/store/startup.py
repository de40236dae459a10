"""Opens the store that a collector's options name at its start, and waits for one that is down.

Meanwhile health is served, readiness says why not, and the agents' port is closed: agents keep their data in their
spools, and retry.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hindmost import __version__
from hindmost.errors import UsageError
from hindmost_proto import retry
from prometheus_client import CollectorRegistry, generate_latest

from hindmost_collector.serve.credentials import Door, Gate
from hindmost_collector.serve.exposition import INFO, STORE_FAILING, collected
from hindmost_collector.serve.http import NoJobs, Page
from hindmost_collector.store import meta
from hindmost_collector.store.clickhouse.client import Unreachable, is_url
from hindmost_collector.store.parquet.store import ParquetStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.core import Metric

    from hindmost_collector.options import Options
    from hindmost_collector.store.recorder import Store


def open_store(options: Options) -> Store | None:
    """The store that the options name; None for none.

    Raises HindmostError when it cannot be had, UsageError where ``out`` has the recording of another job.
    """
    if options.out:
        job = meta.known(Path(options.out)).get("job_id")
        if job and options.job_id and job != options.job_id:
            raise UsageError(
                f"--out {options.out}: it contains job {job}, not {options.job_id}; name another directory"
            )
        return ParquetStore(Path(options.out), single=True)
    if is_url(options.store):
        from hindmost_collector.store.clickhouse.store import ClickHouseStore  # noqa: PLC0415 - where used

        return ClickHouseStore(options.store, options.retention_days)
    if options.store:
        return ParquetStore(Path(options.store.removeprefix("file://")), single=False)
    return None


log = logging.getLogger(__name__)

#: Between two tries, at first and at last.
FIRST_S, LAST_S = 1.0, 15.0


class Awaiting(NoJobs):
    """What the HTTP side shows meanwhile."""

    def __init__(self) -> None:
        self.reason = ""
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """That there is a collector, and that it cannot store."""
        yield collected(INFO, [([__version__], 1)])
        yield collected(STORE_FAILING, [((), 1)])

    def metrics(self) -> bytes:
        """The ``/metrics`` page."""
        return generate_latest(self._registry)

    def ready(self) -> str:
        """Why this collector is not ready."""
        return f"waiting for the store: {self.reason}"


async def store_and_page(
    options: Options, stopped: asyncio.Event, opened: Callable[[Options], Store | None] = open_store
) -> tuple[Store | None, Page | None]:
    """The store as soon as it answers, and the page if it had to be served before; raises HindmostError.

    Raises the last Unreachable if ``stopped`` comes first; and at once if a job waits for this collector
    (``exit_when_stdin_closes``), so that its user learns of it.
    """
    shown, page, since = Awaiting(), None, time.monotonic()
    for attempt in itertools.count():
        store, trouble = await asyncio.to_thread(_tried, options, opened)
        if trouble is None:
            break
        if options.exit_when_stdin_closes:
            raise trouble
        if str(trouble) != shown.reason:
            log.warning("the store does not answer, retrying: %s", trouble)
        shown.reason = str(trouble)
        if page is None and options.http_address:
            page = Page(options.http_address, shown, Door(Gate(options), options))
        pause_s = retry.pause_s(attempt, LAST_S, random.random(), FIRST_S)  # noqa: S311 - no secret
        if await _stopped_within(pause_s, stopped):
            if page:
                page.close()
            raise trouble
    if shown.reason:
        log.warning("the store answered after %.0f s", time.monotonic() - since)
    return store, page


def _tried(
    options: Options, opened: Callable[[Options], Store | None]
) -> tuple[Store | None, None] | tuple[None, Unreachable]:
    try:
        return opened(options), None
    except Unreachable as error:
        return None, error


async def _stopped_within(seconds: float, stopped: asyncio.Event) -> bool:
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(stopped.wait(), seconds)
    return stopped.is_set()
