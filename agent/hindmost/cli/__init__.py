"""The ``hindmost`` command: one file a subcommand, each with ``configure(parser)`` and ``run(args) -> int``."""

from __future__ import annotations

import argparse
import errno
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from hindmost import __version__
from hindmost.cli import streams
from hindmost.errors import HindmostError, MissingError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Subcommand to what it does, in the order in which ``--help`` shows them. The module is ``hindmost.cli.NAME``.
COMMANDS = {
    "run": "run a training job under observation and print the verdict",
    "report": "judge a recorded run, or a folder of a foreign format",
    "compare": "say what changed between two recorded runs, and how surely",
    "top": "watch the verdict and the ranks of a running job in the terminal",
    "query": "SQL over a recorded run, also while it is written",
    "agent": "sample this node and its training processes",
    "collector": "receive agents, judge live, serve metrics and the page",
    "native": "build the C libraries for the MPI that jobs use",
    "simulate": "write the recording of a job whose faults are known",
    "attach": "look into training processes that are already running",
    "doctor": "say what can be seen on this machine, and what cannot, and why",
}
#: Why a write fails.
_UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


class Parser(argparse.ArgumentParser):
    """One whose errors are one line, as all of ours."""

    def error(self, message: str) -> NoReturn:
        """Raises UsageError."""
        raise UsageError(f"{message}; `{self.prog} --help` says what it takes")


def parser() -> argparse.ArgumentParser:
    """The whole command line. Each subcommand's module is imported only when it is the one named."""
    root = Parser(prog="hindmost", description="Which rank everyone else is waiting for, and why.")
    root.add_argument("--version", action="version", version=f"hindmost {__version__}")
    root.add_argument("command", choices=COMMANDS, metavar="COMMAND", help=", ".join(COMMANDS))
    root.epilog = "\n".join(f"  {name:<10} {what}" for name, what in COMMANDS.items())
    root.formatter_class = argparse.RawDescriptionHelpFormatter
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; return its exit code. What is wrong with its input or around it is one line on stderr."""
    streams.prepare()
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments[:1] and arguments[0] in COMMANDS else ""
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever reads our output has read enough
        streams.discard()
        return 141
    except (HindmostError, ImportError, MemoryError, OSError, UnicodeEncodeError) as error:
        return _fail(name, _in_words(name, error))
    except Exception as error:
        if not _refused_by_protobuf(error):
            raise
        return _fail(name, _not_installed(name, error))


def _fail(name: str, why: HindmostError) -> int:
    streams.say(f"{f'hindmost {name}'.rstrip()}: {why}\n")
    return why.exit_code


def _run(arguments: list[str]) -> int:
    try:
        name = parser().parse_args(arguments[:1] or ["--help"]).command
        module = importlib.import_module(f"hindmost.cli.{name}")
        command = Parser(prog=f"hindmost {name}", description=COMMANDS[name])
        module.configure(command)
        code = int(module.run(command.parse_args(arguments[1:])))
    except SystemExit:  # --help, --version
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return code


def _in_words(name: str, error: Exception) -> HindmostError:
    """What went wrong as people are told of it."""
    if isinstance(error, HindmostError):
        return error
    if isinstance(error, ImportError):
        return _not_installed(name, error)
    if isinstance(error, UnicodeEncodeError):
        return UsageError(f"{error.object}: a name that is not UTF-8; give it one that is: ln -s, or mv")
    if isinstance(error, MemoryError):
        return HindmostError(f"out of memory ({error or 'nothing is left'}): ask for less at a time, or give it more")
    if isinstance(error, PermissionError):
        where = error.filename if error.filename is not None else "a file"
        return UsageError(f"{where}: {error.strerror or error}: ask its owner, or copy what may be read")
    return _of_the_system(error)


def _not_installed(name: str, error: Exception) -> HindmostError:
    return MissingError(error, "agent" if name == "agent" else "collector")


def _refused_by_protobuf(error: Exception) -> bool:
    """Whether the runtime is older than the code that was generated for it, which is no ImportError."""
    return type(error).__module__ == "google.protobuf.runtime_version"


def _of_the_system(error: Exception) -> HindmostError:
    """What the operating system refused, and of what: where it names no file, it was asked to write our output."""
    if isinstance(error, FileNotFoundError) and error.filename is None and not _somewhere():
        return UsageError("the current folder was removed: cd to one that is there")
    why, file = getattr(error, "strerror", None) or error, getattr(error, "filename", None)
    if file is not None or getattr(error, "errno", None) not in _UNWRITTEN:
        return HindmostError(f"{file}: {why}" if file is not None else str(why))
    streams.discard()
    return HindmostError(f"its output cannot be written ({why}): make room there, or send it elsewhere")


def _somewhere() -> bool:
    """Whether the current folder is still there."""
    try:
        Path.cwd()
    except OSError:
        return False
    return True
