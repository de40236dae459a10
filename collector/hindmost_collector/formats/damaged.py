"""Files that are damaged among others that are not: left out, with a note, so that the rest is judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hindmost.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

Of = TypeVar("Of")
T = TypeVar("T")

#: Files that a note names.
_NAMED = 4


class DamagedError(UsageError):
    """A file that cannot be read, as a full disk or a killed process leaves it: no attack, and no reason to stop."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path, self.why = path, why


def whole(files: Iterable[Of], read: Callable[[Of], T]) -> tuple[list[T], list[str]]:
    """What was read of each file, or kind of files, and a note on those that are damaged; raises where all are."""
    tried = [_tried(one, read) for one in files]
    damaged = [one for one in tried if isinstance(one, DamagedError)]
    found = [one for one in tried if not isinstance(one, DamagedError)]
    if damaged and not found:
        rest = [one.path.name for one in damaged[1:]]
        others = f"; so {'is' if len(rest) == 1 else 'are'} {', '.join(rest[:_NAMED])}" if rest else ""
        others += f" and {len(rest) - _NAMED} more" if len(rest) > _NAMED else ""
        raise DamagedError(damaged[0].path, f"{damaged[0].why}{others}")
    more = f"; and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
    told = "; ".join(f"{one.path.name}: {one.why}" for one in damaged[:_NAMED])
    return found, [f"Left out: {told}{more}."] if damaged else []


def _tried(one: Of, read: Callable[[Of], T]) -> T | DamagedError:
    try:
        return read(one)
    except DamagedError as error:
        return error
