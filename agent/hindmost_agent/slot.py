"""One sampler of a running agent: when it is due, and what its readings are."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hindmost_agent.metric import Series
    from hindmost_agent.sampler import Host, Sampler


NS = 1_000_000_000


LONG_AGO_NS = -(1 << 62)


class Reading(NamedTuple):
    """What one sampler read at one time (ns, CLOCK_MONOTONIC); ``series`` is the same object until it changes."""

    sampler: str
    time_ns: int
    series: tuple[Series, ...]
    values: list[float]


class Outcome(NamedTuple):
    """What became of one sampler's reading, and how long it took."""

    slot: Slot
    reading: Reading | None
    error: Exception | None
    duration_s: float


class Slot:
    """One sampler, made when first due and made again after it was missing or failed to start."""

    def __init__(self, kind: type[Sampler], interval_ns: int, place: int = 0) -> None:
        self.name = kind.name
        self.kind = kind
        self.place = place
        self._interval_ns = interval_ns
        self.period_ns = max(int(kind.period * NS), interval_ns)
        self.due_ns = LONG_AGO_NS
        self.sampler: Sampler | None = None
        self.said: set[str] = set()

    def anew(self) -> Slot:
        """The same with a sampler yet to be made, due at once."""
        made = Slot(self.kind, self._interval_ns, self.place)
        made.said = self.said
        return made

    def run(self, host: Host, now_ns: int) -> Reading | None:
        """Read once. Raises whatever the sampler raises."""
        if self.sampler is None:
            self.sampler = self.kind(host)
        values = self.sampler.sample()
        if len(values) != len(self.sampler.series):
            raise ValueError(f"{len(values)} values for {len(self.sampler.series)} series")
        array("d", values)  # a number beyond every counter, as a torn file may hold, must not reach the batch
        return Reading(self.name, now_ns, self.sampler.series, values) if values else None
