"""Options of Python that keep the probe out: ``-S`` runs no start-up file, ``-I`` and ``-E`` ignore PYTHONPATH.

By the shim (``native/python_entry.c``), and where hindmost is installed, the probe gets into the latter two.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERPRETER = re.compile(r"python(3(\.\d+)?)?t?")


def option(argv: Sequence[str]) -> tuple[str, str] | None:
    """The interpreter of a command line and which of ``-S``, ``-I`` and ``-E`` it is given; ``None``: none of them."""
    for at, word in enumerate(argv):
        if INTERPRETER.fullmatch(Path(word).name):
            letters = _letters(argv[at + 1 :])
            found = next((letter for letter in "SIE" if letter in letters), None)
            if found:
                return word, f"-{found}"
    return None


def _letters(words: Sequence[str]) -> str:
    """The one-letter options before the script, ``-c`` or ``-m``; several may share a word (``-Iu``)."""
    found, value = "", False
    for word in words:
        if value:
            value = False
            continue
        if not word.startswith("-") or word.startswith("--") or word == "-":
            break
        for at, letter in enumerate(word[1:], 1):
            if letter in "cm":
                return found
            if letter in "WX":  # what follows is their value, here or in the next word
                value = at == len(word) - 1
                break
            found += letter
    return found


def remedy(python: str, given: str) -> str:
    """Why the probe does not start in an interpreter with this option, and the remedy."""
    if given == "-S":
        return f"`{python} -S` skips start-up files, so the probe does not start: drop -S"
    return (
        f"`{python} {given}` ignores PYTHONPATH, so the probe does not start: drop {given},"
        f" or install hindmost into that Python (`{python} -m pip install .` in a clone of it), or install a C compiler"
    )
