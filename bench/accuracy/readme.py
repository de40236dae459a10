"""Writes the measured figures and goals into the README, between two comments."""

from pathlib import Path

README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- figures: written by --readme -->", "<!-- end of figures -->"


def write(title: str, tables: list[str]) -> None:
    """Replace the README's figures by these tables and the line above them."""
    before, rest = README.read_text().split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    README.write_text("\n".join([before + BEGIN, f"{title}:", "", *tables, END + after]))
