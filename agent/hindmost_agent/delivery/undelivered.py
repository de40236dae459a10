"""What is left undelivered when an agent leaves: its spool stays for the next agent, a job's for a week at most."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from hindmost.errors import UsageError

from hindmost_agent.delivery.spool import Spool

if TYPE_CHECKING:
    from pathlib import Path

    from hindmost_agent.settings import Settings

log = logging.getLogger(__name__)

#: A job's spool that no agent used for this long (s) is removed: temporary folders must not grow forever.
EXPIRY_S = 7 * 86400.0


def closed(spool: Spool, settings: Settings) -> dict[str, Any]:
    """Close the spool, removed when it is empty; returns the account of samples as it stands then.

    ``produced`` is ``delivered`` plus all of ``dropped`` plus ``kept``; where the last is not 0, one line says so. What
    was given up after it had been sent, and may have arrived, is none of what is kept.
    """
    ledger = spool.ledger
    spool.close(remove=not ledger.pending)
    dropped = Counter(ledger.dropped)
    for _, samples, reason in ledger.doubt:
        dropped[reason] += samples
    kept = ledger.produced - ledger.delivered - dropped.total()
    account: dict[str, Any] = {
        "produced": ledger.produced,
        "delivered": ledger.delivered,
        "dropped": dict(dropped),
        "kept": kept,
    }
    if kept:
        command = f"hindmost agent{f' --job-id {settings.job_id}' * bool(settings.job_id)} --spool {settings.spool}"
        log.warning(
            "%d samples were not acknowledged by %s and stay in %s; deliver them with: %s --collector HOST:PORT",
            kept, settings.collector, settings.spool, command,
        )  # fmt: skip
    return account


def expire(base: Path, now_s: float) -> int:
    """Remove spools of jobs below ``base`` that did not change for a week; returns how many. ``now_s``: Unix."""
    removed = 0
    for ledger in base.glob("*/ledger.json"):
        try:
            if now_s - ledger.stat().st_mtime < EXPIRY_S:
                continue
            spool = Spool(ledger.parent, 1 << 62)
        except (OSError, UsageError):  # in use, or gone by now
            continue
        log.warning("dropped %d samples that were in %s for a week", spool.ledger.pending, ledger.parent)
        spool.close(remove=True)
        removed += 1
    return removed
