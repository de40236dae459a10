"""The two kinds of failure a user can see; ``hindmost_cli.main`` maps them to exit codes."""

from __future__ import annotations

from hindmost.printable import one_line


class HindmostError(Exception):
    """Something hindmost needs is not as it should be: one line that names it and the remedy. Exit code 1."""

    exit_code = 1

    def __str__(self) -> str:
        """Its line as a terminal may show it, whatever the file held that it quotes."""
        return one_line(super().__str__())


class MissingError(HindmostError):
    """A package is missing or broken that a part of hindmost needs, and training processes do not."""

    def __init__(self, error: Exception, extra: str) -> None:
        """``error`` is what importing raised; ``extra`` is the part of hindmost that imports it."""
        from hindmost import requirements  # noqa: PLC0415 - training processes need it not

        missing = requirements.unmet(extra)
        if missing:
            super().__init__(f"{requirements.faults(missing)}: {requirements.install(*missing)}")
            return
        what = f"no module {error.name}" if isinstance(error, ModuleNotFoundError) else str(error)
        super().__init__(f"{what}: pip install --force-reinstall '.[{extra}]' in a clone of hindmost")


class UsageError(HindmostError):
    """The input is wrong: one line that names the input and what would be right. Exit code 2."""

    exit_code = 2
