"""One clock for a job: the collector's own, and the map from each node's CLOCK_MONOTONIC to it.

A round trip bounds the offset from both sides: a message cannot arrive before it was sent. With node times ``s`` and
``e`` and collector times ``r`` and ``t`` (sent, returned; received, replied), ``t - e <= offset <= r - s``. The
tightest interval of each half minute is kept; a weighted line through them gives offset and drift, and its error is the
half width of the best interval plus what the line misses (Cristian 1989; the same selection as in NTP's clock filter).
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hindmost_collector.ingest.row_builder import bounded

#: Of each window, so long, the best round trip is kept.
WINDOW_NS = 30_000_000_000
#: Of so many windows, the last: twenty minutes show the drift.
WINDOWS = 40
#: Crystal oscillators stay well under this; more is a stopped or stepped clock.
DRIFT_LIMIT = 500e-6
#: What an estimate without any round trip is good for.
GUESS_NS = 1_000_000_000
#: Offsets below this need not be looked at twice: 146 years.
_ANY = 1 << 62
#: Samples in a row that contradict the map before it is thrown away.
CONTRADICTIONS = 3


def boot_id(root: Path = Path("/")) -> str:
    """The boot of this machine from which CLOCK_MONOTONIC counts; empty where the kernel does not say."""
    try:
        return (root / "proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class JobClock:
    """Unix time that never steps: read once, then carried on by CLOCK_MONOTONIC, also across a restart.

    Its error is that of this host's clock when the store was first used since the host's last boot, plus the drift of
    CLOCK_MONOTONIC since: a clock that was set later is seen after the next reboot.

    Args:
        remembered: what ``state()`` gave before a restart; ignored after a reboot.
    """

    def __init__(
        self,
        remembered: dict[str, Any] | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        realtime_ns: Callable[[], int] = time.time_ns,
        boot: str | None = None,
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._boot = boot_id() if boot is None else boot
        if remembered and self._boot and remembered.get("boot_id") == self._boot:
            self._base = int(remembered["base_ns"])
        else:
            self._base = realtime_ns() - monotonic_ns()

    def now(self) -> int:
        """Job time, ns."""
        return self._monotonic_ns() + self._base

    def state(self) -> dict[str, Any]:
        """What a restarted collector needs to carry the same clock on."""
        return {"boot_id": self._boot, "base_ns": self._base}


@dataclass(frozen=True)
class Sample:
    """Bounds on a node's offset, from one round trip, at node time ``at`` (all ns)."""

    at: int
    low: int
    high: int

    @property
    def middle(self) -> float:
        """The offset in the middle of the bounds."""
        return (self.low + self.high) / 2

    @property
    def half(self) -> float:
        """Half the width: the error the middle cannot exceed."""
        return max((self.high - self.low) / 2, 1.0)


class NodeClock:
    """Maps one node's CLOCK_MONOTONIC to the job clock."""

    def __init__(self, hello_monotonic_ns: int, arrived_ns: int) -> None:
        """Start from the Hello: its arrival bounds the offset from above, good enough until the first round trip."""
        self._guess = bounded(arrived_ns - hello_monotonic_ns)
        self._best: deque[Sample] = deque(maxlen=WINDOWS)
        self._contradictions = 0
        self.round_trip_ns = -1
        self._origin, self._offset, self._drift, self._error = 0, float(self._guess), 0.0, float(GUESS_NS)

    def add(self, sent: int, received: int, replied: int, returned: int) -> bool:
        """Take one finished round trip; False when it is impossible (times out of order) and was ignored."""
        round_trip = (returned - sent) - (replied - received)
        if round_trip < 0 or replied < received or returned < sent:
            return False
        sample = Sample(returned, replied - returned, received - sent)
        if self._best and self._contradicts(sample):
            self._contradictions += 1
            if self._contradictions < CONTRADICTIONS:
                return True
            self._best.clear()
        self._contradictions = 0
        self.round_trip_ns = bounded(round_trip)
        self._keep(sample)
        self._fit()
        return True

    def _contradicts(self, sample: Sample) -> bool:
        """Whether the bounds exclude the present estimate, its error and any drift since the last sample included."""
        since = abs(sample.at - self._best[-1].at)
        slack = self._error + DRIFT_LIMIT * since
        expected = self._offset + self._drift * (sample.at - self._origin)
        return sample.low - slack > expected or sample.high + slack < expected

    def _keep(self, sample: Sample) -> None:
        if self._best and sample.at // WINDOW_NS == self._best[-1].at // WINDOW_NS:
            if sample.half <= self._best[-1].half:
                self._best[-1] = sample
            return
        self._best.append(sample)

    def _fit(self) -> None:
        """Weighted least squares through the best samples; only a span of a minute says anything of drift."""
        origin = self._best[-1].at
        weights = [1 / one.half**2 for one in self._best]
        total = sum(weights)
        mean_at = sum(w * (one.at - origin) for w, one in zip(weights, self._best, strict=True)) / total
        mean_offset = sum(w * one.middle for w, one in zip(weights, self._best, strict=True)) / total
        drift = 0.0
        if origin - self._best[0].at >= 2 * WINDOW_NS:
            spread = sum(w * (one.at - origin - mean_at) ** 2 for w, one in zip(weights, self._best, strict=True))
            joint = sum(
                w * (one.at - origin - mean_at) * (one.middle - mean_offset)
                for w, one in zip(weights, self._best, strict=True)
            )
            drift = max(-DRIFT_LIMIT, min(DRIFT_LIMIT, joint / spread)) if spread else 0.0
        self._origin, self._drift = origin, drift
        self._offset = mean_offset - drift * mean_at
        misses = sum(
            w * abs(one.middle - self._offset - drift * (one.at - origin))
            for w, one in zip(weights, self._best, strict=True)
        )
        self._error = min(one.half for one in self._best) + misses / total

    def offset(self, node_ns: int) -> int:
        """What to add to node time ``node_ns`` to get job time, ns."""
        if not self._best:
            return self._guess
        found = round(self._offset + self._drift * (node_ns - self._origin))
        return found if -_ANY < found < _ANY else bounded(found)

    @property
    def uncertainty_ns(self) -> int:
        """How far ``offset`` may be off, ns."""
        return bounded(round(self._error))

    @property
    def drift_ppb(self) -> int:
        """How much faster the job clock runs, parts in 10^9."""
        return round(self._drift * 1e9)
