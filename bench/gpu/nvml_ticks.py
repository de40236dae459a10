"""What a tick of the agent's GPU samplers is made of: a part of agent_gpu.py.

The agent's own runner with its GPU samplers: us a GPU of whole ticks and of each call. At 1 Hz the ticks of a minute
are taken, so that every sampler is due in them; they may follow each other sooner than that.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from hindmost_agent import samplers as folder
from hindmost_agent.gpu import GpuSampler
from hindmost_agent.nvml import opened
from hindmost_agent.runner import Runner
from hindmost_agent.sampler import Host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NS = 1_000_000_000


def quantiles(times: list[float]) -> dict[str, float]:
    times = sorted(times)
    return {
        "mean_us": round(statistics.fmean(times), 1),
        "p50_us": round(statistics.median(times), 1),
        "p99_us": round(times[min(int(len(times) * 0.99), len(times) - 1)], 1),
        "max_us": round(times[-1], 1),
        "count": len(times),
    }


def pacing(period_s: float, seconds: float) -> Iterator[int]:
    """0, 1, 2, … once a period until the time is spent."""
    start = time.monotonic()
    for tick in range(max(int(seconds / period_s), 1)):
        time.sleep(max(start + tick * period_s - time.monotonic(), 0))
        yield tick


class Split:
    """The time of each call that the cards of a sampler make, taken around it."""

    def __init__(self) -> None:
        self.us: defaultdict[str, list[float]] = defaultdict(list)

    def timed(self, name: str, call: Callable[[], Any]) -> Callable[[], Any]:
        def read() -> Any:
            began = time.perf_counter_ns()
            try:
                return call()
            finally:
                self.us[name].append((time.perf_counter_ns() - began) / 1e3)

        return read

    def watch(self, kind: type[GpuSampler]) -> type[GpuSampler]:
        """The same sampler, whose cards' calls are timed."""
        split = self

        class Watched(kind):  # type: ignore[misc, valid-type]
            def cards(self) -> Any:
                cards = super().cards()
                for card in cards:
                    named = zip(card._names, card._calls, strict=True)
                    card._calls = [split.timed(f"{kind.name}: {name}", call) for name, call in named]
                return cards

        return Watched


def ticks(interval_s: float, seconds: float, pace_s: float | None = None) -> dict[str, Any]:
    """us a GPU of whole ticks and of samplers; then, in as much time again, of each call."""
    split = Split()
    kinds = {name: kind for name, kind in folder.load().items() if name.startswith("nvidia")}
    watched = {name: split.watch(kind) if issubclass(kind, GpuSampler) else kind for name, kind in kinds.items()}
    when = interval_s, round(seconds / interval_s), pace_s or interval_s
    found = _ticks(kinds, *when)
    _ticks(watched, *when, warm=split.us.clear)
    found["calls"] = {name: quantiles(took) for name, took in split.us.items()}
    periods = {name: max(kinds[name].period, interval_s) for name in found["samplers"]}
    found["mean_a_tick_us"] = round(
        sum(row["mean_us"] * interval_s / periods[name] for name, row in found["samplers"].items()), 1
    )
    return found


def _ticks(
    kinds: Any, interval_s: float, count: int, pace_s: float, warm: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """The first tick makes everything, and is left out; ``warm`` is called after it."""
    host = Host()
    runner = Runner(kinds, host, int(interval_s * NS))
    runner.run(0)
    warm()
    gpus, times, read = len(opened(host).devices), list[float](), defaultdict[str, list[float]](list)
    for tick in pacing(pace_s, count * pace_s):
        began = time.perf_counter_ns()
        readings = runner.run(int((tick + 1) * interval_s * NS))
        times.append((time.perf_counter_ns() - began) / 1e3 / gpus)
        for reading in readings:
            read[reading.sampler].append(host.own.duration_s[reading.sampler] * 1e6 / gpus)
    return {"tick": quantiles(times), "samplers": {name: quantiles(took) for name, took in read.items()}}


def show(title: str, rows: dict[str, dict[str, float]]) -> None:
    print(f"{title:<58}     mean      p50      p99      max  count")
    for name, row in sorted(rows.items(), key=lambda item: -item[1]["mean_us"]):
        cells = "".join(f"{row[key]:9.1f}" for key in ("mean_us", "p50_us", "p99_us", "max_us"))
        print(f"  {name:<56}{cells}{row['count']:7.0f}")


def show_ticks(rate: str, found: dict[str, Any]) -> None:
    show(f"{rate}: whole tick, us a GPU", {"tick": found["tick"]})
    print(f"  of samplers, each spread over its period: {found['mean_a_tick_us']} us a GPU and tick")
    show(f"{rate}: samplers when they are due, us a GPU", found["samplers"])
    show(f"{rate}: calls, us", found["calls"])
