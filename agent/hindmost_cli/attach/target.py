"""Which running processes are the ranks to look into, and what they wait in; only processes of the same user."""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from hindmost import identity, ring
from hindmost.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: Variables whose value names a job, whichever launcher or scheduler set them.
JOB_VARIABLES = ("HINDMOST_JOB_ID", "SLURM_JOB_ID", "PBS_JOBID", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE")
#: What a rank can wait for others in.
WAITS = (ring.COLLECTIVE, ring.P2P)
#: IDs that an error lists.
_NAMED = 4
#: hindmost's subcommands that stay, and are no rank.
_DAEMONS = ("collector", "agent")
PYTHON = re.compile(r"(?:lib)?python3\.(\d+)")
#: What a compiled rank maps, and what stands for its version of Python.
MPI, COMPILED = re.compile(r"/lib\w*mpi\w*\.so"), -1


@dataclass(frozen=True)
class Target:
    """A running Python process, or a compiled program with MPI. ``rank`` is -1 where no launcher named one; ``minor``:
    its Python's version, 3.minor, or :data:`COMPILED`; ``stopped``: by a signal or a debugger, when it was found;
    ``tracer``: the debugger's pid, 0 where that is not known."""

    pid: int
    rank: int
    world_size: int
    command: str
    executable: str
    minor: int
    stopped: bool = False
    tracer: int | None = None

    def stop(self) -> str:
        """That it is stopped, and what lets it go on."""
        who = f"rank {self.rank}" if self.rank >= 0 else f"process {self.pid}"
        if self.tracer is None:
            return f"{who} is stopped by a signal: `kill -CONT {self.pid}` lets it go on"
        where = f"process {self.tracer}" if self.tracer else "a process that is not seen from here"
        return f"{who} is stopped by a debugger, {where}: detach the debugger"


def by_pid(pid: int, proc: Path = Path("/proc")) -> list[Target]:
    """The process with this pid; of a launcher or a shell, the ranks below it, by rank.

    UsageError where there is no such process, where it is another user's, or where neither it nor any below is a rank.
    """
    folder = proc / str(pid)
    try:
        owner = folder.stat().st_uid
        if owner != os.geteuid():
            raise UsageError(f"--pid {pid}: belongs to user {owner}; attach works on your own processes only")
        environ, argv = _environ(folder), _argv(folder)
        launches = identity.is_launcher(argv)
        itself = None if launches else _describe(folder, environ)
    except OSError as error:
        raise UsageError(f"--pid {pid}: {_refusal(error)}") from None
    if itself is not None and itself.rank >= 0:
        return [itself]
    below = _below(pid, proc)
    ranks = [target for target in below if target.rank >= 0] or ([itself] if itself is not None else below)
    if not ranks and (daemon := _daemon(argv)):
        raise UsageError(f"--pid {pid}: hindmost's own {daemon}; give the PID of a rank, or of what launched it")
    if not ranks and launches:
        raise UsageError(f"--pid {pid}: this launcher has started no rank yet; try again once ranks run")
    if not ranks:
        raise UsageError(
            f"--pid {pid}: neither it nor a process that it started runs a Python 3 interpreter or uses MPI here"
        )
    return sorted(ranks, key=lambda target: (target.rank, target.pid))


def by_pids(pids: Sequence[int], proc: Path = Path("/proc")) -> list[Target]:
    """The processes of several pids, each once."""
    return list({target.pid: target for pid in pids for target in by_pid(pid, proc)}.values())


def _daemon(argv: Sequence[str]) -> str:
    """``collector`` or ``agent`` where a command line is that of one; else empty."""
    words = [Path(word).name for word in argv[1:4]]
    return next((after for word, after in pairwise(words) if word == "hindmost" and after in _DAEMONS), "")


def _below(pid: int, proc: Path) -> list[Target]:
    """The first ranks on each way down: they launch no others and help none."""
    children: dict[int, list[tuple[Path, dict[str, str]]]] = {}
    for folder, environ in _own(proc):
        children.setdefault(_parent(folder), []).append((folder, environ))
    found, parents = list[Target](), [pid]
    while parents:
        for folder, environ in children.pop(parents.pop(), ()):
            with contextlib.suppress(OSError):  # it ended meanwhile
                argv = _argv(folder)
                target = None if identity.is_launcher(argv) else _describe(folder, environ)
                if identity.is_worker(argv):
                    continue
                if target is not None:
                    found.append(target)
                else:
                    parents.append(int(folder.name))
    return found


def launcher(pid: int, proc: Path = Path("/proc")) -> int | None:
    """The nearest process above this one that started several ranks; None where there is none of this user."""
    while (pid := _parent(proc / str(pid))) > 1:
        if sum(target.rank >= 0 for target in _below(pid, proc)) > 1:
            return pid
    return None


def _parent(folder: Path) -> int:
    """The parent's pid; 0 of a process that has ended."""
    return int(_stat(folder)[1])


def _stat(folder: Path) -> list[str]:
    """State, parent and what follows them; of a process that has ended its state and 0."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", "0"]


def _refusal(error: OSError) -> str:
    """Why nothing can be read of a process, and what helps."""
    if isinstance(error, FileNotFoundError | ProcessLookupError):
        return "there is no such process; `pgrep -af python` lists candidates"
    why = f"it cannot be read ({error.strerror or error})"
    if isinstance(error, PermissionError):
        return f"{why}: the kernel protects it, or the container lacks CAP_SYS_PTRACE (docker run --cap-add SYS_PTRACE)"
    return why


def by_job(job: str, proc: Path = Path("/proc")) -> list[Target]:
    """Every rank on this machine of the job that a launcher or scheduler calls ``job``, by rank."""
    found = [target for folder, environ in _own(proc) if (target := _member(folder, environ, job)) is not None]
    if not found:
        ranks = [environ for _, environ in _own(proc) if identity.is_named(environ)]
        # One ID a job, though its scheduler, its launcher and hindmost each gave it one.
        jobs = {next((environ[name] for name in JOB_VARIABLES if environ.get(name)), "") for environ in ranks}
        others = sorted(jobs - {""})
        instead = f"give one of {', '.join(others[:_NAMED])}, or --pid" if others else "give --pid"
        raise UsageError(f"--job {job}: no rank of yours on this machine is in a job of this ID; {instead}")
    return sorted(found, key=lambda target: target.rank)


def runs(proc: Path = Path("/proc")) -> dict[str, str]:
    """Job to run directory of each `hindmost run` of this user on this machine, from its collector's command line."""
    found: dict[str, str] = {}
    for folder, _ in _own(proc):
        with contextlib.suppress(OSError, ValueError):  # it ended meanwhile, or serves many jobs
            argv = _argv(folder)
            if _daemon(argv) == "collector":
                found[argv[argv.index("--job-id") + 1]] = argv[argv.index("--out") + 1]
    return found


def _member(folder: Path, environ: Mapping[str, str], job: str) -> Target | None:
    if job not in (environ.get(name) for name in JOB_VARIABLES) or not identity.is_named(environ):
        return None
    argv = _argv(folder)
    return None if identity.is_launcher(argv) or identity.is_worker(argv) else _describe(folder, environ)


def _own(proc: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """Processes of this user, with their environment."""
    for folder in proc.iterdir():
        if folder.name.isdigit():
            try:
                if folder.stat().st_uid == os.geteuid():
                    yield folder, _environ(folder)
            except OSError:  # it ended meanwhile
                continue


def _describe(folder: Path, environ: Mapping[str, str]) -> Target | None:
    minor = _python(folder)
    if minor is None:
        return None
    argv, state = _argv(folder), _stat(folder)[0]
    found = identity.find({**environ, "HINDMOST_JOB_ID": "attach", "HINDMOST_LAUNCHER": "mpirun"}, argv)
    return Target(
        pid=int(folder.name),
        rank=found.rank if found else identity.UNKNOWN,
        world_size=found.world_size if found else identity.UNKNOWN,
        command=" ".join(argv[1:]),
        executable=str((folder / "exe").resolve()),
        minor=minor,
        stopped=state in "Tt",
        tracer=_tracer(folder) if state == "t" else None,
    )


def _tracer(folder: Path) -> int:
    """The debugger's pid; 0 where that is not known."""
    with contextlib.suppress(OSError):
        found = re.search(r"^TracerPid:\s*(\d+)", (folder / "status").read_text(), re.MULTILINE)
        return int(found[1]) if found else 0
    return 0


def _python(folder: Path) -> int | None:
    """The minor version of the Python 3 that a process runs: of its binary, else of a libpython it maps;
    :data:`COMPILED` where it has only MPI."""
    try:
        maps = (folder / "maps").read_text()
    except OSError:
        maps = ""
    found = PYTHON.search((folder / "exe").resolve().name) or PYTHON.search(maps)
    return int(found[1]) if found else COMPILED if MPI.search(maps) else None


def environ_of(pid: int, proc: Path = Path("/proc")) -> dict[str, str]:
    """The environment that a process was started with. OSError where there is none, or it is another user's."""
    return _environ(proc / str(pid))


def _environ(folder: Path) -> dict[str, str]:
    entries = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _argv(folder: Path) -> list[str]:
    return (folder / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")


def pending(pid: int, proc: Path = Path("/proc"), now_ns: int | None = None) -> list[str]:
    """A line for every collective and message that the process waits in, the longest first; none: nothing is open.

    Empty, too, for a process that no ``hindmost run`` observes. Never raises.
    """
    now_ns = time.monotonic_ns() if now_ns is None else now_ns
    try:
        folder = environ_of(pid, proc).get("HINDMOST_RING_DIR")
        paths = sorted(Path(folder).glob(f"*.{pid}.ring")) if folder else []
    except OSError:  # the process has ended, or is another user's
        return []
    events = [event for path in paths for event in _open_events(path) if event.kind in WAITS]
    return [_wait(event, now_ns) for event in sorted(events, key=lambda event: event.start_ns)]


def _open_events(path: Path) -> list[ring.Event]:
    try:
        reader = ring.Reader(path)
    except (OSError, ring.RingError):  # it was removed, or is being made
        return []
    try:
        return reader.open_records()
    except ring.RingError:
        return []
    finally:
        reader.close()


def _wait(event: ring.Event, now_ns: int) -> str:
    what = event.name if event.kind == ring.P2P else f"{event.name} number {event.seq}"
    peer = ""
    if event.kind == ring.P2P and event.peer != -1:
        peer = " with any rank" if event.peer == ring.ANY else f" with rank {event.peer}"
    where = f" of communicator {event.comm_id:#x}" if event.comm_id else ""
    return f"waits for {(now_ns - event.start_ns) / 1e9:.1f} s in {what}{where}{peer}"
