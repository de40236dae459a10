"""Values as numbers, in the order in which they first come: what joins by them sorts nothing.

pandas does that by hashing. To import it takes as long as all else that a collector imports, so it is where it is used:
a collector that starts beside a job, a query and a job that had no rank do without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def factorize(
    values: np.ndarray[Any, np.dtype[Any]],
) -> tuple[np.ndarray[Any, np.dtype[np.intp]], np.ndarray[Any, np.dtype[Any]]]:
    """``(numbers, values)``: the number of each of the values, and the different ones in order."""
    import pandas as pd  # noqa: PLC0415 - where used

    return pd.factorize(values)


def unique(values: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """The different values, in the order in which they first come."""
    return factorize(values)[1]
