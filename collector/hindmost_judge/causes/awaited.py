"""A wait for other threads, such as a loader's workers, is made of what these do meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def shares(waited: float, activity: Mapping[str, float]) -> dict[str, float]:
    """Name to the share of a wait, 0 to 1, that each ``activity`` of those waited for explains.

    ``waited`` and the activities are s per s, of all threads together: on a CPU, in the run queue, blocked in storage.
    They may do more than is waited for, since they work ahead; what they do less is unexplained, as a sleep is.
    """
    whole = max(waited, sum(activity.values()))
    return {name: rate / whole for name, rate in activity.items()} if whole > 0 else {}
