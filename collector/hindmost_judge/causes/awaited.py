"""A wait for other threads, such as a loader's workers, is made of what these do meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


def shares(waited: Floats, activity: Mapping[str, Floats]) -> dict[str, Floats]:
    """Name to the share [R] of each rank's wait, 0 to 1, that each ``activity`` of those waited for explains.

    ``waited`` [R] and the activities [R] are s per s, of all threads together: on a CPU, in the run queue, blocked in
    storage; NaN, unmeasured, explains nothing. They may do more than is waited for, since they work ahead. What they
    do less is unexplained, as a sleep is.
    """
    rates = {name: np.nan_to_num(rate) for name, rate in activity.items()}
    whole = np.maximum(np.nan_to_num(waited), sum(rates.values(), np.zeros_like(waited)))
    return {name: np.divide(rate, whole, out=np.zeros_like(whole), where=whole > 0) for name, rate in rates.items()}
