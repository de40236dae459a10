"""The ``hindmost`` command: one file a subcommand, each with ``configure(parser)`` and ``run(args) -> int``."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import sys

from hindmost import __version__
from hindmost.errors import HindmostError, MissingError, UsageError, one_line

from hindmost_cli import stdio

TYPE_CHECKING = False  # the help needs no `typing`, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import NoReturn

#: Subcommand to what it does, by what it is about, in the order in which ``--help`` shows them. The module is
#: ``hindmost_cli.NAME``.
_ABOUT = {
    "your job": {
        "run": "start a training or MPI job, watch it, and print the verdict",
        "attach": "show where the processes of a job that already runs spend their time",
        "top": "watch the verdict and the ranks of a running job in the terminal",
        "report": "print the verdict of a recorded run, or of traces of another tool",
        "compare": "say what changed between two recorded runs, and how sure that is",
        "query": "run SQL on a recorded run, also while it is being recorded",
    },
    "this machine": {
        "doctor": "list what hindmost can measure on this machine, and how to get the rest",
        "native": "build the C libraries now instead of at first use",
        "simulate": "write the recording of a simulated job with known faults",
    },
    "all jobs of a cluster": {
        "agent": "sample this node and its training processes",
        "collector": "receive data from agents, judge live, serve the page and metrics",
        "slurm": "write what was found into the accounting of Slurm jobs",
        "pki": "make certificates and tokens for agents and collectors",
    },
}
COMMANDS = {name: what for commands in _ABOUT.values() for name, what in commands.items()}
EPILOG = """\
start with:
  hindmost doctor
  hindmost run -- mpirun -np 4 python train.py

`hindmost COMMAND --help` explains a command and shows examples."""
#: Of an option that more commands have, its owner is no hint.
_OWNERS = 2
#: How alike a word and what was meant are, as difflib has it.
_LIKE = 0.7
#: Why a write fails.
_UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


#: Commands whose environment reaches the user's.
_START_PROGRAMS = ("run", "attach", "collector")


#: Numpy's linear algebra starts a thread for each core, which a judge has no use for.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
#: What gRPC would print is said in our own one line.
QUIET_GRPC = {"GRPC_VERBOSITY": "NONE"}


@contextlib.contextmanager
def loading(variables: Mapping[str, str]) -> Iterator[None]:
    """Set what libraries read as they are loaded, where the user has not, and only while they are.

    Programs that are started later, and the record of a job's environment, are not to see it.
    """
    ours = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            del os.environ[name]


class Parser(argparse.ArgumentParser):
    """A parser with one-line errors, and help that keeps the lines of examples."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog, description=description, formatter_class=_Help, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raises UsageError."""
        option = next((word.partition("=")[0] for word in message.split() if word.startswith("--")), "")
        hint = ""
        if option and message.startswith("unrecognized"):
            hint = _owner(option) or _meant(option, self._option_string_actions, "{}")
        raise UsageError(f"{message}; {hint or f'`{self.prog} --help` lists the options'}")


def _owner(option: str) -> str:
    """Which commands have an option that this one has not; empty where none has."""
    owners = [f"`hindmost {name}`" for name in COMMANDS if option in command(name).format_help().split()]
    return f"{option} belongs to {' and '.join(owners)}" if 0 < len(owners) <= _OWNERS else ""


def _meant(word: str, known: Iterable[str], shown: str) -> str:
    """What a word is a slip of; empty where nothing is like it."""
    from difflib import get_close_matches

    like = get_close_matches(word, list(known), 1, _LIKE)
    return f"did you mean `{shown.format(like[0])}`?" if like else ""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Options and their meaning in one line where the terminal is wide enough."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=stdio.width(unknown=80) - 2)


def parser() -> argparse.ArgumentParser:
    """The whole command line, without the options of the commands."""
    root = Parser("hindmost", "Find the rank that all others wait for, why, since when, and what it costs.")
    root.usage = "hindmost COMMAND ..."
    root.add_argument(
        "--version", action="version", version=f"hindmost {__version__}", help="print the version and exit"
    )
    root.add_argument("command", nargs="?", choices=COMMANDS, metavar="COMMAND", help=argparse.SUPPRESS)
    groups = ("\n".join((f"{about}:", *_lines(commands))) for about, commands in _ABOUT.items())
    root.epilog = "\n\n".join((*groups, EPILOG))
    return root


def _lines(commands: Mapping[str, str]) -> list[str]:
    return [f"  {name:<10} {what}" for name, what in commands.items()]


def command(name: str) -> argparse.ArgumentParser:
    """The parser of one command, whose module is imported now."""
    what = COMMANDS[name]
    found = Parser(f"hindmost {name}", f"{what[0].upper()}{what[1:]}.")
    importlib.import_module(f"hindmost_cli.{name}").configure(found)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; return its exit code. What is wrong with its input or around it is one line on stderr."""
    stdio.prepare()
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments[:1] and arguments[0] in COMMANDS else ""
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has closed it
        stdio.discard()
        return 141
    except (HindmostError, ImportError, MemoryError, OSError, UnicodeEncodeError) as error:
        return _fail(name, _in_words(name, error))
    except Exception as error:
        if not _refused_by_protobuf(error):
            raise
        return _fail(name, _not_installed(name, error))


def _fail(name: str, why: HindmostError) -> int:
    stdio.say(f"{f'hindmost {name}'.rstrip()}: {why}\n")
    return why.exit_code


def _run(arguments: list[str]) -> int:
    try:
        first = arguments[:1] or ["--help"]
        if not first[0].startswith("-") and first[0] not in COMMANDS:
            hint = f"`hindmost run -- {one_line(first[0])} ...` starts a job; `hindmost --help` lists the commands"
            hint = _meant(first[0], COMMANDS, "hindmost {}") or hint
            raise UsageError(f"{one_line(first[0])!r} is no command: {hint}")
        name = parser().parse_args(first).command
        with loading({} if name in _START_PROGRAMS else ONE_THREAD):
            args = command(name).parse_args(arguments[1:])
            code = int(importlib.import_module(f"hindmost_cli.{name}").run(args))
    except SystemExit:  # --help, --version
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return code


def _in_words(name: str, error: Exception) -> HindmostError:
    """The error as one line for the user."""
    if isinstance(error, HindmostError):
        return error
    if isinstance(error, ImportError):
        return _not_installed(name, error)
    if isinstance(error, UnicodeEncodeError):
        return UsageError(f"{error.object}: this name is not UTF-8: rename it, or link to it (ln -s)")
    if isinstance(error, MemoryError):
        return HindmostError(
            f"out of memory ({error or 'no details'}): read a smaller recording, or use a machine with more memory"
        )
    if isinstance(error, PermissionError):
        where = error.filename if error.filename is not None else "a file"
        return UsageError(
            f"{where}: {error.strerror or error}: change its permissions, or copy the files that you may read"
        )
    return _of_the_system(error)


def _not_installed(name: str, error: Exception) -> HindmostError:
    return MissingError(error, "agent" if name == "agent" else "collector")


def _refused_by_protobuf(error: Exception) -> bool:
    """Whether the runtime is older than the code that was generated for it, which is no ImportError."""
    return type(error).__module__ == "google.protobuf.runtime_version"


def _of_the_system(error: Exception) -> HindmostError:
    """What the operating system refused, and of what: where it names no file, it was asked to write our output."""
    if isinstance(error, FileNotFoundError) and error.filename is None and not _somewhere():
        return UsageError("the current folder no longer exists: cd to another")
    why, file = getattr(error, "strerror", None) or error, getattr(error, "filename", None)
    if file is not None or getattr(error, "errno", None) not in _UNWRITTEN:
        return HindmostError(f"{file}: {why}" if file is not None else str(why))
    stdio.discard()
    return HindmostError(f"cannot write the output ({why}): free some space, or write it elsewhere")


def _somewhere() -> bool:
    """Whether the current folder is still there."""
    from pathlib import Path  # slow to import, and the help needs it not

    try:
        Path.cwd()
    except OSError:
        return False
    return True
