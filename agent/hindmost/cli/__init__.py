"""The ``hindmost`` command: one file a subcommand, each with ``configure(parser)`` and ``run(args) -> int``."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import TYPE_CHECKING

from hindmost import __version__
from hindmost.errors import HindmostError, MissingError

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


def parser() -> argparse.ArgumentParser:
    """The whole command line. Each subcommand's module is imported only when it is the one named."""
    root = argparse.ArgumentParser(prog="hindmost", description="Which rank everyone else is waiting for, and why.")
    root.add_argument("--version", action="version", version=f"hindmost {__version__}")
    root.add_argument("command", choices=COMMANDS, metavar="COMMAND", help=", ".join(COMMANDS))
    root.epilog = "\n".join(f"  {name:<10} {what}" for name, what in COMMANDS.items())
    root.formatter_class = argparse.RawDescriptionHelpFormatter
    return root


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; return its exit code. A ``HindmostError``, or a missing package, is one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = parser().parse_args(arguments[:1] or ["--help"]).command
    try:
        module = importlib.import_module(f"hindmost.cli.{name}")
        command = argparse.ArgumentParser(prog=f"hindmost {name}", description=COMMANDS[name])
        module.configure(command)
        return int(module.run(command.parse_args(arguments[1:])))
    except HindmostError as error:
        sys.stderr.write(f"hindmost {name}: {error}\n")
        return error.exit_code
    except ImportError as error:
        sys.stderr.write(f"hindmost {name}: {MissingError(error, 'agent' if name == 'agent' else 'collector')}\n")
        return MissingError.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever reads our output has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except PermissionError as error:
        where = error.filename if error.filename is not None else "a file"
        sys.stderr.write(
            f"hindmost {name}: {where}: {error.strerror or error}: ask its owner, or copy what may be read\n"
        )
        return 2
