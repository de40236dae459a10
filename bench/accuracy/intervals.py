"""Intervals of 95 %: of rates by Wilson, of counted events by Poisson, of statistics of values by resampling."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

Z = 1.959964


def wilson(hits: int, of: int) -> str:
    """``0.993 [0.981, 0.997] (404/407)``."""
    if not of:
        return "-"
    rate, spread = hits / of, Z * np.sqrt(hits * (of - hits) / of + Z * Z / 4)
    low, high = ((hits + Z * Z / 2 + sign * spread) / (of + Z * Z) for sign in (-1, 1))
    return f"{rate:.3f} [{low:.3f}, {high:.3f}] ({hits}/{of})"


def share(hits: Iterable[bool]) -> str:
    """The share of those that are true, as :func:`wilson` shows it."""
    each = list(hits)
    return wilson(sum(each), len(each))


def poisson(events: int, of: int, per: int) -> str:
    """``0.25 [0.01, 1.39] in 10,000 (1 in 40,000)``: of rare events the number is Poisson's, and none is not never."""
    if not of:
        return "-"
    low, high = _mean_of(events - 1, 0.975) if events else 0.0, _mean_of(events, 0.025)
    rate, *ends = (per * number / of for number in (events, low, high))
    return f"{rate:.2f} [{ends[0]:.2f}, {ends[1]:.2f}] in {per:,} ({events} in {of:,})"


def _mean_of(events: int, chance: float) -> float:
    """The mean of which so many events or fewer have this chance."""
    low, high = 0.0, 10.0 * (events + 5)
    for _ in range(100):
        mean = (low + high) / 2
        fewer = sum(math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(events + 1))
        low, high = (mean, high) if fewer > chance else (low, mean)
    return low


def bootstrap(values: list[Any], statistic: Callable[[Any], float], digits: int = 4) -> str:
    """A statistic of values with the interval of 1,000 resamples."""
    if not values:
        return "-"
    data = np.array(values)
    random = np.random.default_rng(0)
    again = [statistic(data[random.integers(0, len(data), len(data))]) for _ in range(1000)]
    low, high = np.percentile(again, [2.5, 97.5])
    return f"{statistic(data):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}] (n={len(data)})"
