"""One observed job: the collector and this node's agent around it, from before its start to the sealed run."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hindmost.bootstrap import ENTERED
from hindmost.credentials import is_loopback
from hindmost.errors import HindmostError
from hindmost_proto.address import Address, parse

from hindmost_cli import launchers
from hindmost_cli.run import environment, foreground
from hindmost_cli.run.environment import kept_out

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Mapping, Sequence

    from hindmost_cli.launchers import Launcher

#: Seconds for a daemon to say that it is ready; importing its libraries from a cold network disk takes most of it.
READY_SECONDS = 30.0
#: … and for what it printed last to be read, where a process of its own keeps its stdout open.
_LAST_LINES_S = 2.0


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
        self._reader: threading.Thread | None = None

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

    def follow(self, key: str, take: Callable[[dict[str, Any]], None]) -> None:
        """From now on give ``take`` what stands under ``key`` in each JSON line that has it, in a thread of its own."""
        self._reader = threading.Thread(target=self._follow, args=(key, take), daemon=True, name=self.name)
        self._reader.start()

    def _follow(self, key: str, take: Callable[[dict[str, Any]], None]) -> None:
        rest = b""
        while line := self._line(float("inf")):
            said = _object(line).get(key)
            if isinstance(said, dict):
                take(said)
            else:
                rest += line
        self._output = rest

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
            rest = self._rest(seconds)
            if self._process.returncode:
                wrong = f"the {self.name} ended early: {self.last_words() or self._process.returncode}"
        except subprocess.TimeoutExpired as error:
            self.kill()
            rest, wrong = error.output or b"", f"the {self.name} did not finish within {seconds:.0f} s and was stopped"
        return (self._output + rest).decode(errors="replace"), wrong

    def _rest(self, seconds: float) -> bytes:
        """Close its stdin, and wait for its end and what else it says."""
        if self._reader is None:
            return self._process.communicate(timeout=seconds)[0]
        assert self._process.stdin is not None  # noqa: S101 - we asked for a pipe
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait(seconds)
        self._reader.join(_LAST_LINES_S)
        return b""

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
            if left <= 0 or not select.select([fd], [], [], None if left == float("inf") else left)[0]:
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


#: Seconds to finish in: an agent sends what it holds; a collector waits for remote agents, seals and judges.
AGENT_SECONDS = 20.0
COLLECTOR_SECONDS = 120.0


@dataclass(frozen=True)
class RunRequest:
    """What the command line of ``hindmost run`` asks for."""

    command: tuple[str, ...]
    out: Path | None = None
    job_id: str | None = None
    live: bool = True
    listen: str | None = None
    #: A command or URL that is notified of verdicts.
    on_verdict: str | None = None
    #: Thresholds of the judge, ``NAME=VALUE`` each.
    thresholds: tuple[str, ...] = ()


@dataclass
class Session:
    """A running collector and agent, and what the command must be given to reach them."""

    job: str
    directory: Path
    rings: Path
    page: str | None
    argv: list[str]
    environ: dict[str, str]
    collector: Daemon
    agent: Daemon
    interrupted_by: str | None = None
    #: The token that opens the page; empty where only this machine reaches it.
    opens: str = ""
    no_ring: str | None = None
    #: Whether the command starts no ranks, as far as is known.
    alone: bool = False

    @classmethod
    def start(
        cls, request: RunRequest, launcher: Launcher, environ: Mapping[str, str], say: Callable[[str], None]
    ) -> Session:
        """Start both and wait until they answer. ``HindmostError`` where they do not; nothing is left then.

        ``say`` gets one sentence for each thing that will be missing.
        """
        environ = environment.without_credentials(environ)
        job = environment.job_id(request.job_id, request.command, environ)
        if request.listen:
            environment.must_be_free(request.listen)
        program = Path(foreground.program_path(request.command[0], environ))
        native, notes = environment.native_libraries([*launcher.NATIVE, "ring"], environ, program)
        directory, note = environment.run_directory(request.out, job)
        if note:
            say(note)
        rings = environment.ring_directory(job)
        started: list[Daemon] = []
        try:
            host = environment.address(launcher.remote_hosts(request.command, environ))
            elsewhere = host != environment.LOOPBACK
            proof, note = environment.proof(directory, job, encrypted=elsewhere)
            if note:
                say(note)
            collector, said = _collector(request, launcher, job, directory, environ, started, (host, proof))
            proves = proof.variables(elsewhere=elsewhere and launcher.ENVIRONMENT_IS_PRIVATE)
            arguments = ["--collector", said["grpc"], "--job-id", job, "--ring-dir", str(rings)]
            agent = _started("agent", arguments, {**environ, **proves}, directory, started)
            agent.ready("ready")
            collector.ready("loaded")
        except (HindmostError, KeyboardInterrupt):
            for daemon in started:
                daemon.kill()
            environment.remove_rings(rings)
            _remove_credentials(directory)
            raise
        no_ring = environment.no_room_for_a_ring(rings)
        ours = environment.variables(
            environ, job=job, rings=rings, collector=said["grpc"], launcher=launcher.NAME, native=native
        )
        ours |= proves
        whole = {**environ, **ours}
        for sentence in (*notes, kept_out(request.command, whole), no_ring):
            if sentence:
                say(sentence)
        argv = launcher.carry(request.command, list(ours), whole)
        page = said.get("http")
        opens = proof.reads if page and _is_open(request.listen) else ""
        own = launcher.NAME == launchers.FALLBACK
        return cls(job, directory, rings, page, argv, whole, collector, agent, None, opens, no_ring, own)

    def begin(self, pid: int) -> None:
        """The command runs as this process: the job's time begins. One that no launcher starts is sampled itself."""
        self.collector.tell({"begun": True})
        if self.alone:
            self.agent.tell({"command": pid})

    def heard(self, number: signal.Signals) -> None:
        """Remember the first signal that asked the job to end: ranks that exit after it did not crash."""
        if self.interrupted_by is None and number in foreground.STOPPING:
            self.interrupted_by = number.name

    def finish(self, returncode: int, say: Callable[[str], None]) -> str:
        """Let both finish what they hold, agent first; return what the collector said last. Never raises for them."""
        no_ring = self.no_ring or environment.no_room_for_a_ring(self.rings)  # the job itself may have filled it
        how = {"exit_code": returncode, "interrupted_by": self.interrupted_by, "no_ring": no_ring}
        self.collector.tell({**how, "entered": (self.rings / ENTERED).exists()})
        undelivered = _undelivered(_finished(self.agent, AGENT_SECONDS, say))
        if undelivered:
            say(f"{undelivered} samples of this node were not delivered (see {self.agent.log})")
        said = _finished(self.collector, COLLECTOR_SECONDS, say)
        self.clean()
        return said

    def abandon(self) -> None:
        """End both now; what was written stays."""
        self.agent.kill()
        self.collector.kill()
        self.clean()

    def clean(self) -> None:
        """Remove the rings of this node and logs in which nothing was said."""
        environment.remove_rings(self.rings)
        for daemon in (self.agent, self.collector):
            if daemon.log.exists() and not daemon.log.stat().st_size:
                daemon.log.unlink()
        _remove_credentials(self.directory)
        logs = self.directory / "logs"
        if logs.exists() and not any(logs.iterdir()):
            logs.rmdir()


def _remove_credentials(directory: Path) -> None:
    shutil.rmtree(directory / "credentials", ignore_errors=True)  # they open nothing any more


def _is_open(listen: str | None) -> bool:
    """Whether the network reaches the page."""
    where = parse(listen) if listen else None
    return where is not None and not is_loopback(where.host)


def _finished(daemon: Daemon, seconds: float, say: Callable[[str], None]) -> str:
    said, wrong = daemon.finish(seconds)
    if wrong:
        say(f"{wrong} (see {daemon.log})")
    return said


def _undelivered(said: str) -> int:
    """How many samples an agent says it still holds, in its last line on stdout."""
    try:
        count = json.loads(said.strip().rpartition("\n")[2])["samples"]["kept"]
    except (ValueError, KeyError, TypeError):  # killed, or it had no spool
        return 0
    return count if isinstance(count, int) else 0


def _collector(
    request: RunRequest,
    launcher: Launcher,
    job: str,
    directory: Path,
    environ: Mapping[str, str],
    started: list[Daemon],
    reached: tuple[str, environment.Proof],
) -> tuple[Daemon, dict[str, str]]:
    host, proof = reached
    arguments = ["--listen", str(Address(host, 0)), "--out", str(directory), "--job-id", job]
    arguments += proof.collector_options
    arguments += ["--command", shlex.join(request.command), "--launcher", launcher.NAME]
    arguments += [f"--set={threshold}" for threshold in request.thresholds]
    arguments += ["--print-verdicts"]
    if request.on_verdict:
        arguments += [f"--on-verdict={from_here(request.on_verdict)}"]
    if request.live:
        arguments += ["--http", request.listen or f"{environment.LOOPBACK}:0"]
    daemon = _started("collector", arguments, environ, directory, started)
    return daemon, daemon.ready("grpc")


def from_here(on_verdict: str) -> str:
    """The command of ``--on-verdict`` as it works in the user's directory, for the collector works in ``/``."""
    if on_verdict.startswith(("http://", "https://")):
        return on_verdict
    return shlex.join(["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(Path.cwd()), *shlex.split(on_verdict)])


def _started(
    name: str, arguments: Sequence[str], environ: Mapping[str, str], directory: Path, started: list[Daemon]
) -> Daemon:
    daemon = Daemon(name, [*arguments, "--exit-when-stdin-closes"], environ, directory / "logs" / f"{name}.log")
    started.append(daemon)
    return daemon
