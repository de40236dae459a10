"""Text of unknown origin, fit for a terminal: a file's bytes may hold escape sequences, or a line of a megabyte."""

from __future__ import annotations

#: An error's line: what is wrong stands at its begin, what helps at its end.
MOST = 600
_END = 160


def printable(text: str, keep: str = "") -> str:
    """The text with everything that is no visible character spelled out (``\\x1b``), but the characters of ``keep``."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keep else _spelled(one) for one in text)


def one_line(text: str, most: int = MOST) -> str:
    """The text in one line of at most so many characters, its middle left out where it is longer."""
    if len(text) > 4 * most:  # spelling out makes a character up to ten, never fewer
        text = f"{text[: 2 * most]}{text[-2 * most :]}"
    line = printable(text)
    return line if len(line) <= most else f"{line[: most - _END - 1]}…{line[-_END:]}"


def _spelled(one: str) -> str:
    return one.encode("unicode_escape").decode("ascii")
