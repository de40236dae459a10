"""The step since which a verdict on a running job holds, as successive windows of it find it.

The first of them may have too few steps after it, a later one too few before it, or none: then it says "at or before".
What the window found that had the most of both is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hindmost_judge.verdict.wording import OLDER

if TYPE_CHECKING:
    from collections.abc import Mapping

#: More steps in the window move an onset later by no more than this in all: a much later begin is another problem.
_BETTER = 20
#: An onset that moved by no more is the same.
NEAR = 2


class Onset(NamedTuple):
    """A step, whether the onset may be earlier, the least steps that the window had on either side, and the earliest
    step reported before."""

    step: int
    older: bool
    steps: int
    earliest: int

    def better(self, other: Onset) -> Onset:
        """The one that is known better: this one, as before, or the ``other``, of a window that has moved on."""
        if not self.step or (self.older and other.older):
            return min(self, other, key=lambda one: one.step)
        if other.steps <= self.steps or other.step - self.earliest > _BETTER:
            return self
        return other._replace(earliest=min(self.earliest, other.step))


def found(verdict: Mapping[str, Any], first_step: int | None, last_step: int | None) -> Onset | None:
    """The onset of a verdict by a window of these steps, where it tells one."""
    since, until = verdict.get("since_step"), verdict.get("until_step")
    if since is None:
        return None
    last, older = last_step if until is None else until, bool(older_lines(verdict))
    before = since - (first_step or 0)
    after = before if last is None else last - since
    return Onset(since, older, 0 if older else max(min(before, after), 0), since)


def tell(verdict: dict[str, Any], best: Onset, first: Mapping[str, Any]) -> None:
    """Give a verdict the best known onset, in the form of the ``first`` that had it."""
    if verdict.get("since_step") != best.step:
        verdict["since_step"] = best.step
        rest = [line for line in verdict.get("evidence") or () if not line.startswith(OLDER)]
        verdict["evidence"] = [*rest, *(older_lines(first) if best.older else ())]


def older_lines(verdict: Mapping[str, Any]) -> list[str]:
    """What a verdict's evidence says where it may have begun before its first step."""
    return [line for line in verdict.get("evidence") or () if line.startswith(OLDER)]
