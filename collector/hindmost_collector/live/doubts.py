"""Claims of incremental evaluations that the full evaluation does not confirm, each time that it runs for them.

A fault that has just begun shows in the newest steps first; the full evaluation needs more of it and runs again
soon. Chance claims from few steps trigger full evaluations less and less often.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from hindmost_collector.live.incremental import Key

#: Unconfirmed claims trigger the next full evaluation after this many seconds, then twice as many, and so on up to the
#: second number.
_FIRST_S, _MOST_S = 1.0, 60.0


class _Doubt(NamedTuple):
    """No full evaluation for this before ``until``; the last one was ``wait_s`` earlier."""

    until: float
    wait_s: float


class Doubts:
    """The unconfirmed claims on one job, and when each may be checked again."""

    def __init__(self) -> None:
        self._known: dict[Key, _Doubt] = {}
        self._one_at_a_time = threading.Lock()  # looks and wholes are judged by threads of their own

    def __contains__(self, key: Key) -> bool:
        return key in self._known

    def worth(self, said: Iterable[Key], now: float, *, again: bool = True) -> set[Key]:
        """Which claims of incremental evaluations justify a full evaluation; unconfirmed ones only if allowed
        ``again``.

        A claim that is no longer made is forgotten after as long as it would have waited."""
        said = set(said)
        with self._one_at_a_time:
            self._known = {key: one for key, one in self._known.items() if key in said or now < one.until + one.wait_s}
            return {key for key in said if key not in self._known or (again and now >= self._known[key].until)}

    def asked(self, new: Collection[Key], answered: Iterable[Key], in_vain: Iterable[Key], now: float) -> None:
        """A full evaluation ran for what was ``new``: it confirmed what was ``answered``; the rest is unconfirmed.

        After a claim that was never checked before, all others may soon change.
        """
        with self._one_at_a_time:
            changed = any(key not in self._known for key in new)
            for key in answered:
                self._known.pop(key, None)
            for key in in_vain:
                before = self._known.get(key) if key in new or not changed else None
                wait_s = min(2 * before.wait_s, _MOST_S) if before else _FIRST_S
                self._known[key] = _Doubt(now + wait_s, wait_s)
