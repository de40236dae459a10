"""The table of what is measured: each filled cell says what shows it."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs/reference/coverage.md").read_text(encoding="utf-8")
NOTE = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹]+")


def table_after(heading: str) -> list[list[str]]:
    """The cells of the first table after these words, a row each, without its head."""
    lines = PAGE.partition(heading)[2].lstrip("\n").splitlines()
    rows = lines[: next(at for at, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


MEASURED = table_after("code might do.")
SHOWN = table_after("`tests/native/`.")


def test_each_filled_cell_says_what_shows_it() -> None:
    """No cell of frameworks and launchers is without a note."""
    assert [(row[0], cell) for row in MEASURED for cell in row[1:] if cell and not NOTE.search(cell)] == []


def test_each_note_is_of_a_cell_and_names_a_test_or_a_bench() -> None:
    """What is pointed to stands below, once, and is a test or a recorded run; and nothing else stands there."""
    used = {note for row in MEASURED for cell in row[1:] for note in NOTE.findall(cell)}
    assert sorted(note for note, _ in SHOWN) == sorted(used)
    assert [note for note, by in SHOWN if not re.search(r"`(tests|bench|…)[/:]", by)] == []
