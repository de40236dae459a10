"""Which word of a command line is the script that a person would call the job after."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from hindmost_judge import command_line
from hindmost_judge.isolation import INTERPRETER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
#: What a shell's text has besides programs and their arguments.
_NO_PROGRAM = re.compile(rf"-.*|{_ASSIGNMENT.pattern}|exec|[\W_]*", re.DOTALL)
_SHELL = re.compile(r"(ba|da|z|k|c|tc)?sh")
#: Programs that take a module for a script, as Python does.
_TAKE_MODULES = command_line.TORCHRUN | command_line.ACCELERATE
#: Programs that start Python without naming it.
START_PYTHON = _TAKE_MODULES | command_line.HOROVODRUN
_MODULE = re.compile(r"-[A-Za-z]*m|--module")
#: Programs a shell's text begins with, besides Python, a shell and an assignment.
_RUN_OTHERS = command_line.WRAPPERS | START_PYTHON | command_line.MPIRUN | command_line.SRUN | {"cd"}
#: Modules that run the script, or the module, in their arguments.
RUNNERS = tuple(
    f"{name}."
    for name in (
        "torch.distributed.run torch.distributed.launch torch.distributed.launcher horovod.runner accelerate.commands"
        " deepspeed.launcher hindmost mpi4py cProfile profile trace pdb debugpy coverage"
    ).split()
)


def script(words: Sequence[str]) -> str | None:
    """The first Python script or module of a command line, else its first shell script, else the program.

    ``None``: no word of it. Python first: launchers' own options name shell scripts, as ``--host-discovery-script``
    does. The program is the one that mpirun starts, where mpirun's own options show it.
    """
    each = list(_each(words))
    programs = [(at, word) for at, word in enumerate(each) if not _NO_PROGRAM.fullmatch(word)]
    python = [word for at, word in programs if word.endswith(".py") or _is_module(each, at)]
    shell = [word for _, word in programs if word.endswith(".sh")]
    started = [] if python or shell else _started(each)
    return next(iter(python or shell or started or [word for _, word in programs]), None)


def split(line: str) -> list[str]:
    """The words of a command line as a shell reads them; by blanks where a quotation mark stands alone."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _is_module(words: Sequence[str], at: int) -> bool:
    """Whether this is the module that Python, or a launcher of Python, runs; not one that runs another.

    What a rank says of itself has no interpreter in front.
    """
    if at == 0 or not _MODULE.fullmatch(words[at - 1]) or f"{words[at]}.".startswith(RUNNERS):
        return False
    before = [command_line.name(word) for word in words[: at - 1]]
    return all(word.startswith("-") for word in before) or any(
        INTERPRETER.fullmatch(word) or word in _TAKE_MODULES for word in before
    )


def _started(words: Sequence[str]) -> list[str]:
    """The program that mpirun starts; empty where there is none, or an option may be any of its words."""
    at = command_line.position(words, command_line.MPIRUN)
    if at is None:
        return []
    rest = list(words[at + 1 :])
    while rest and rest[0].startswith("-"):
        option, equals, _ = rest[0].partition("=")
        if not equals and option not in command_line.MPIRUN_ARITY and option not in command_line.MPIRUN_FLAGS:
            return []
        rest = rest[1 + (0 if equals else command_line.MPIRUN_ARITY.get(option, 0)) :]
    while rest and (command_line.name(rest[0]) in command_line.WRAPPERS or _ASSIGNMENT.fullmatch(rest[0])):
        rest = rest[1:]
    return rest[:1] if rest and not _NO_PROGRAM.fullmatch(rest[0]) and not rest[0].isdigit() else []


def _each(words: Sequence[str]) -> Iterator[str]:
    """The words, and those of a shell's text among them, as in ``sh -c 'RANK=$SLURM_PROCID exec python train.py'``."""
    for at, word in enumerate(words):
        inner = split(word)
        runs = _reads_code(words[:at])
        if runs and INTERPRETER.fullmatch(runs):
            yield ""  # Python's code
        elif len(inner) > 1 and (runs or _is_text(inner)):
            yield from (one.strip("'\";&|(){}") for one in inner)
        else:
            yield word.strip("'\";&|(){}")


def _reads_code(before: Sequence[str]) -> str | None:
    """The shell, or the Python, whose ``-c`` ends these words; ``None`` where none does."""
    if not before or not re.fullmatch(r"-\w*c", before[-1]):
        return None
    names = [command_line.name(word) for word in reversed(before)]
    return next((name for name in names if INTERPRETER.fullmatch(name) or _SHELL.fullmatch(name)), None)


def _is_text(inner: Sequence[str]) -> bool:
    """Whether a word with blanks is a shell's text, as ssh takes it, rather than a path that has some."""
    first = command_line.name(inner[0])
    runs = INTERPRETER.fullmatch(first) or _SHELL.fullmatch(first) or _ASSIGNMENT.fullmatch(first)
    return bool(runs) or first.startswith("-") or first in _RUN_OTHERS
