"""A process that serves the job from the side: it holds our pipe, and leaves when the pipe breaks."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from hindmost.errors import HindmostError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: Seconds for a daemon to say that it is ready; importing its libraries from a cold network disk takes most of it.
READY_SECONDS = 30.0


class Daemon:
    """``hindmost NAME ARGUMENTS``, in a session of its own so that the terminal's Ctrl-C passes it by.

    Its stdin is the pipe whose end tells it to finish (and whose breaking does, should we be killed); its stdout says
    in one JSON line when it is ready; its stderr goes to ``log``. It works in ``/``: what lies in the job's directory
    is neither imported nor kept busy.
    """

    def __init__(self, name: str, arguments: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        try:
            with log.open("ab") as errors:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "hindmost", name, *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=dict(environ),
                    cwd="/",
                    start_new_session=True,
                )
        except OSError as error:
            raise HindmostError(f"cannot start the {name}: {error}") from error
        self._output = b""

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def ready(self, key: str, seconds: float = READY_SECONDS) -> dict[str, Any]:
        """The JSON object with this ``key`` that it prints once it serves, whatever else a sitecustomize of the user's
        or a library prints. ``HindmostError`` with its own last words where it does not.
        """
        deadline = time.monotonic() + seconds
        while line := self._line(deadline):
            said = _object(line)
            if key in said:
                return said
        self.kill()
        raise HindmostError(f"the {self.name} did not start: {self.last_words() or 'it printed no message'}")

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send one JSON line; a daemon that has gone hears nothing, and ``finish`` says so."""
        pipe = self._process.stdin
        if pipe is not None:
            with contextlib.suppress(OSError, ValueError):
                pipe.write(json.dumps(message).encode() + b"\n")
                pipe.flush()

    def finish(self, seconds: float) -> tuple[str, str]:
        """Let it finish what it holds; what else it said on stdout, and what went wrong, empty where nothing did.

        Killed where it takes longer. A collector that a hanging disk keeps from recording has a report to print.
        """
        wrong = ""
        try:
            rest, _ = self._process.communicate(timeout=seconds)
            if self._process.returncode:
                wrong = f"the {self.name} ended early: {self.last_words() or self._process.returncode}"
        except subprocess.TimeoutExpired as error:
            self.kill()
            rest, wrong = error.output or b"", f"the {self.name} did not finish within {seconds:.0f} s and was stopped"
        return (self._output + rest).decode(errors="replace"), wrong

    def kill(self) -> None:
        """End it now; nothing is left of it afterwards."""
        self._process.kill()
        self._process.wait()

    def last_words(self) -> str:
        """The last line of its stderr, without our own name in front; empty where it was silent."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - 4096))
                lines = log.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        said = [line.strip() for line in lines if line.strip()]
        return said[-1].removeprefix(f"hindmost {self.name}: ") if said else ""

    def _line(self, deadline: float) -> bytes:
        """Its next line on stdout with its end, or what there is of it at the deadline; empty at the end of all."""
        assert self._process.stdout is not None  # noqa: S101 - we asked for a pipe
        fd = self._process.stdout.fileno()
        while b"\n" not in self._output:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                break
            block = os.read(fd, 65536)
            if not block:
                break
            self._output += block
        line, end, self._output = self._output.partition(b"\n")
        return line + end


def _object(line: bytes) -> dict[str, Any]:
    """The JSON object that ends a line, for what was printed before it may have had no end of line; empty without."""
    try:
        said = json.loads(line[max(line.find(b"{"), 0) :])
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
