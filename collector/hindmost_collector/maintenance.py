"""Maintenance twice a minute: forget silent agents and jobs, compact and expire what is stored."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from hindmost.errors import HindmostError

from hindmost_collector.live.window import window_limit
from hindmost_collector.page.history import cells_of
from hindmost_collector.store.parquet.compaction import Retention, Upkeep
from hindmost_collector.store.parquet.store import ParquetStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from hindmost_collector.components import Components

log = logging.getLogger(__name__)

#: Between rounds of compaction and retention.
UPKEEP_S = 30.0
#: Rounds that are put off while cores are full, at most.
PUT_OFF = 10
#: A series whose agent has not sent for this long has no value.
STALE_NS = 120_000_000_000
#: An agent without a stream, and a definition that nothing refers to, are forgotten after this long; both are known
#: again as soon as they come back, the agent's numbers from the store.
FORGET_NS = 3_600_000_000_000


async def tend(components: Components) -> None:
    """Forget, compact and expire, a piece at a time, when the store allows; for ever."""
    options, store = components.options, components.recorder.store
    limits = Retention(options.retention_days, int(options.retention_gib * 2**30))
    upkeep = Upkeep(store, limits) if isinstance(store, ParquetStore) else None
    put_off = 0
    while True:
        await asyncio.sleep(UPKEEP_S)
        _prune(components)
        put_off = put_off + 1 if components.cores_are_full() and put_off < PUT_OFF else 0
        if put_off:
            continue
        if upkeep is None or components.recorder.hangs_s:
            continue
        # retention holds whatever became of compaction, and is what makes room on a full disk
        for piece in (upkeep.expire,) if components.recorder.failing else (upkeep.compact, upkeep.expire):
            await _repeat(components, piece)


async def _repeat(components: Components, piece: Callable[[], int]) -> None:
    """Do a piece of upkeep until nothing is left to do; what fails is tried again in the next round."""
    try:
        while await components.shielded.whole(asyncio.to_thread(_counted, components, piece)):
            await asyncio.sleep(1.0)
    except (OSError, HindmostError) as error:
        log.warning("maintenance of the store failed and will be retried: %s", error)
    except Exception:  # a task that ended here would let the disk fill without a word
        log.exception("maintenance of the store failed and will be retried")


def _counted(components: Components, piece: Callable[[], int]) -> int:
    """Do a piece of upkeep, in a thread that does nothing else meanwhile, and count what CPU time it took."""
    began = time.thread_time()
    try:
        return piece()
    finally:
        components.upkeep_seconds += time.thread_time() - began


def _prune(components: Components) -> None:
    """Forget agents and jobs without news for long, and share the memory for windows among the remaining jobs."""
    now = components.clock.now()
    components.definitions.used(components.nodes.schemas(), now)
    components.nodes.expire(now - STALE_NS, now)
    limit, cells = window_limit(len(components.jobs)), cells_of(len(components.jobs))
    for job in components.jobs.values():
        job.window.bound(limit)
        job.history.bound(cells)
    if not components.recorder.trouble:  # what waits for the disk still needs its definitions
        components.ingest.prune(now - FORGET_NS)
        components.definitions.prune(now, FORGET_NS)
        components.decoder.prune()
        components.ingest.again.prune()
