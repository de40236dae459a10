"""Chosen lines of a long kernel file, found again at once where they stood the last time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindmost_agent.sampler import NAN

if TYPE_CHECKING:
    from hindmost_agent.files import File


class Lines:
    """Chosen lines of a file of a name and a number each. Where they stand is found once, and again when it changes."""

    def __init__(self, file: File, keys: tuple[bytes, ...]) -> None:
        self._file = file
        self._keys = keys
        self._places: list[int | None] = []

    def read(self) -> list[float]:
        """A value for each key, missing where the file has none."""
        lines = self._file.read().splitlines()
        if not self._hold(lines):
            first = {line.split(None, 1)[0].rstrip(b":"): place for place, line in enumerate(lines) if line.strip()}
            self._places = [first.get(key) for key in self._keys]
        return [NAN if place is None else float(lines[place].split(None, 2)[1]) for place in self._places]

    def _hold(self, lines: list[bytes]) -> bool:
        """Whether every key still stands where it was found."""
        return len(self._places) == len(self._keys) and all(
            place is None
            or (place < len(lines) and lines[place].startswith(key) and lines[place][len(key) : len(key) + 1] in b": ")
            for key, place in zip(self._keys, self._places, strict=True)
        )
