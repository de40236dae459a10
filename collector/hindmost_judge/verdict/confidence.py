"""How often a name is right that stands out so far: a monotone map, fitted on simulated jobs that are hard to judge.

``bench/accuracy`` fits it and shows how it holds: of the names said with some confidence, the share right. Those
jobs have few ranks and steps, and noise as large as their faults, some of it so slow that a healthy rank is slow for
most of the run; in calmer jobs more names are right than this says.
"""

from __future__ import annotations

import numpy as np

#: Margin above the thresholds: how many times as far as it must a name stands out, by its weakest criterion.
MARGINS = (1.0, 1.2, 1.4, 2.0, 3.0, 5.0, 10.0)
#: Share of names right at each of these margins or further out in simulated jobs, pooled so that it never falls.
RIGHT = (0.65, 0.72, 0.85, 0.89, 0.93, 0.97, 0.99)


def of_margin(margin: float) -> float:
    """0.65 to 0.99: of names that stand out ``margin`` times as far as they must (by their weakest criterion)."""
    return float(np.interp(np.log(max(margin, MARGINS[0])), np.log(MARGINS), RIGHT))
