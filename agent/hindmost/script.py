"""Which word of a command line is the script that a person would call the job after."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: What a shell's text has beside programs and their arguments.
_NO_PROGRAM = re.compile(r"-.*|[A-Za-z_]\w*=.*|exec|[\W_]*", re.DOTALL)


def script(words: Sequence[str]) -> str | None:
    """The first Python script of a command line, else its first shell script, else the program; None: no word of it.

    Python first: launchers' own options name shell scripts, as ``--host-discovery-script`` does.
    """
    programs = [word for word in _each(words) if not _NO_PROGRAM.fullmatch(word)]
    python, shell = ([word for word in programs if word.endswith(ending)] for ending in (".py", ".sh"))
    return next(iter(python or shell or programs), None)


def _each(words: Sequence[str]) -> Iterator[str]:
    """The words, and those of a shell's text among them, as in ``sh -c 'RANK=$SLURM_PROCID exec python train.py'``."""
    for word in words:
        try:
            inner = shlex.split(word)
        except ValueError:  # a quotation mark that stands alone
            inner = word.split()
        yield from (one.strip("'\";&|(){}") for one in (inner if len(inner) > 1 else [word]))
