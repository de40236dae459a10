"""Chosen numbers of a long kernel file, found again at once where they stood the last time."""

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
        #: Names that the file has, as they are written there, and the place of each among all its words.
        self._names: list[bytes] = []
        self._places: list[int] = []
        #: For each key the place of its number among all words, -1 where the file has none.
        self._numbers: list[int] = []

    def read(self) -> list[float]:
        """A value for each key, missing where the file has none, or one that is no number."""
        words = self._file.read().split()
        if not self._hold(words):
            self._find(words)
        try:
            return [NAN if place < 0 else float(words[place]) for place in self._numbers]
        except (ValueError, IndexError):  # torn: what else the file says is still true
            return [_number(words, place) for place in self._numbers]

    def _hold(self, words: list[bytes]) -> bool:
        """Whether every name still stands where it was found."""
        places = self._places
        return bool(places) and places[-1] < len(words) and [words[place] for place in places] == self._names

    def _find(self, words: list[bytes]) -> None:
        wanted = set(self._keys)
        found: dict[bytes, int] = {}
        for place, word in enumerate(words):
            if (key := word.removesuffix(b":")) in wanted:
                found.setdefault(key, place)
        self._places = sorted(found.values())
        self._names = [words[place] for place in self._places]
        self._numbers = [found[key] + 1 if key in found else -1 for key in self._keys]


def _number(words: list[bytes], place: int) -> float:
    try:
        return float(words[place]) if 0 <= place < len(words) else NAN
    except ValueError:
        return NAN
