"""One log line a minute for the clients of one host that a port refuses for one reason, with their number."""

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)
#: Seconds between two such lines, and how many pairs of host and reason have lines of their own: of further hosts one
#: line stands for all.
QUIET_S, _PAIRS = 60.0, 32


class Refusals:
    """Those of one port, as ``the page's port``; any thread may report one."""

    def __init__(self, port: str, now: Callable[[], float] = time.monotonic) -> None:
        self._port, self._now, self._lock = port, now, threading.Lock()
        #: When a line was written of a reason and a host, and how many clients were refused since.
        self._reported: dict[tuple[str, str], tuple[float, int]] = {}

    def report(self, reason: str, peer: str, what: str) -> None:
        """Say it if nothing was said of this host and this reason for a minute; else count it for the next line."""
        with self._lock:
            pair, now = (reason, peer.rpartition(":")[0]), self._now()
            if pair not in self._reported and len(self._reported) >= _PAIRS:
                self._forget(now)
                pair = pair if len(self._reported) < _PAIRS else (reason, "")
            when, before = self._reported.get(pair, (-QUIET_S, 0))
            if now - when < QUIET_S:
                self._reported[pair] = (when, before + 1)
                return
            more = f" ({before} more like it since the last such line)" if before else ""
            log.warning("%s was refused on %s: %s%s", peer, self._port, what, more)
            self._reported[pair] = (now, 0)

    def _forget(self, now: float) -> None:
        """Let go of pairs that were quiet for a minute, and say of how many clients no line was written."""
        for (reason, host), (when, before) in list(self._reported.items()):
            if now - when >= QUIET_S:
                del self._reported[reason, host]
                if before:
                    log.warning("%s: refused %d times more (%s)", host or "other hosts", before, reason)
