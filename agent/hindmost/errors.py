"""The two kinds of failure a user can see; ``hindmost.cli.main`` maps them to exit codes."""

from __future__ import annotations


class HindmostError(Exception):
    """Something hindmost needs is not as it should be: one line that names it and the remedy. Exit code 1."""

    exit_code = 1


class UsageError(HindmostError):
    """The input is wrong: one line that names the input and what would be right. Exit code 2."""

    exit_code = 2
