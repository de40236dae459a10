"""Start the probe in a training process: decide whether it is a rank, make its ring, wait for its framework.

Called by ``inject/sitecustomize.py`` and by the ``.pth`` file of an installed hindmost, before the job's own code. The
job comes first: whatever goes wrong here is one line on stderr, and the job runs as it would have without.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from hindmost import identity, stepping
from hindmost.errors import warn_once
from hindmost.recorder import MARK, Recorder

if TYPE_CHECKING:
    from types import ModuleType, TracebackType

    from hindmost.identity import Identity
    from hindmost.ring import Writer

ATTACHED = "HINDMOST_ATTACHED"
#: In a ring directory: the probe got into a process that no launcher named a rank, and may never make a ring.
ENTERED = ".entered"
#: Where libraries lie: an exception raised there is reported from where the job's own code called them.
LIBRARIES = ("site-packages", "dist-packages", "/lib/python", "<frozen", __file__.rpartition("/")[0])
#: Characters of an exception's message that are recorded.
LONGEST_MESSAGE = 500
RING_METHODS = ("event", "enter", "leave", "name", "communicator")

_started = False
_writer: Writer | None = None
_identity: Identity | None = None
_recorder: Recorder | None = None  # kept beyond a fork: a child may turn out to be a rank


def start() -> None:
    """Observe this process if it is a rank of a job under ``hindmost run``. Calling it again does nothing."""
    global _started  # noqa: PLW0603 - the .pth file and sitecustomize may both call
    if _started or not os.environ.get("HINDMOST_JOB_ID") or os.environ.get("HINDMOST_PROBE") == "0":
        return
    _started = True
    try:
        _go_before_another_profiler()
        found = identity.find(os.environ)
        if not _is_file_name(os.environ["HINDMOST_JOB_ID"]):  # rings are made, and looked for, in a folder of that name
            if found is not None:
                warn_once(f"HINDMOST_JOB_ID is {os.environ['HINDMOST_JOB_ID']!r}, which cannot be a folder's name")
        elif found is not None and os.environ.get(ATTACHED) != identity.token(found):
            _observe(found)
        elif identity.is_worker(sys.orig_argv) if found is None else not identity.is_named(os.environ):
            _wait_for_a_rank()
    except Exception as error:
        warn_once(f"the probe did not start ({error!r})")


def _go_before_another_profiler() -> None:
    """Where a script has set ``NCCL_PROFILER_PLUGIN`` since: take the one slot again, and pass calls on to theirs."""
    ours, theirs = os.environ.get("HINDMOST_NCCL_PLUGIN"), os.environ.get("NCCL_PROFILER_PLUGIN", "")
    if ours and theirs not in {"", ours} and theirs.lower() != "none":
        os.environ["HINDMOST_NCCL_NEXT"] = theirs
        os.environ["NCCL_PROFILER_PLUGIN"] = ours


def writer() -> Writer | None:
    """This process's ring, where it has one."""
    return _writer


def stop() -> None:
    """Close the ring: this rank has ended in order. Everything later is not recorded."""
    global _writer
    closing, _writer = _writer, None
    if closing is not None:
        stepping.finish()
        _say_what_raised(closing)
        closing.close()


def _say_what_raised(ring: Writer) -> None:
    with contextlib.suppress(BaseException):  # whatever a job has put where Python keeps its last exception
        said = last_error()
        if said:
            ring.event(MARK, ring.name(said), time.monotonic_ns(), 0)
            message = _message()
            ring.keep_text(f"{said}: {message}" if message else said)


def move(rank: int, world_size: int, local_rank: int) -> None:
    """This process has another rank now (an elastic job): its next events go to a ring that says so."""
    global _identity, _writer  # noqa: PLW0603 - see start
    old, known = _writer, _identity
    if known is None or old is None or (known.rank, known.world_size) == (rank, world_size):
        return
    _identity = known._replace(rank=rank, world_size=world_size, local_rank=local_rank)
    if known.rank == rank:  # the ring is this rank's already; how many there are, its communicators say
        return
    os.environ[ATTACHED] = identity.token(_identity)
    _writer = None
    nowhere: Any = _Nowhere()
    stepping.move(make_ring(os.path.dirname(old.path), _identity) or nowhere)
    old.close()


def place(rank: int, world_size: int) -> None:
    """``init_process_group`` has said who this process is, where no launcher did: ``mp.spawn``, ``--rank`` of a script.

    A process alone in its group, one that a launcher named, and one that has its place already, keep it.
    """
    known, recorder = _identity, _recorder
    if world_size < 2 or (known is not None and known.world_size > 1):
        return
    if _writer is not None:
        move(rank, world_size, identity.local_rank(os.environ))
        return
    found = identity.late(os.environ, rank, world_size)
    if recorder is None:
        _observe(found, named=True)
        return
    nowhere: Any = _Nowhere()
    os.environ[ATTACHED] = identity.token(found)
    recorder.begin_again(make_ring(_directory(found), found) or nowhere)
    stepping.attach(recorder)
    _register_exit()


def detach() -> None:
    """Take the probe out of a process that ``hindmost attach`` put it into: hooks, ring, environment, modules."""
    global _started  # noqa: PLW0603 - see start
    from hindmost.probes import guard

    stop()
    atexit.unregister(stop)
    guard.remove_all()
    os.environ.pop(ATTACHED, None)
    _started = False
    for name in [name for name in sys.modules if name == "hindmost" or name.startswith("hindmost.")]:
        del sys.modules[name]


def _observe(found: Identity, *, named: bool = False) -> None:
    """Make the ring and everything that writes to it. Where the rank is not ``named``, the ring waits for steps."""
    global _recorder  # noqa: PLW0603 - see start
    from hindmost import probes

    directory = _directory(found)
    named = named or identity.is_named(os.environ)
    if named:
        os.environ[ATTACHED] = identity.token(found)
    ring: Any = make_ring(directory, found) if named else _Deferred(directory, found)
    if ring is None:
        return
    if named:
        _try_to_start_agent(directory, found)
    else:
        _leave_trace(directory)
    _recorder = recorder = Recorder(ring)
    recorder.join_group, recorder.change_rank = place, move
    stepping.attach(recorder)
    os.register_at_fork(after_in_child=_leave_to_parent)
    _register_exit()
    probes.install(recorder)


def _is_file_name(job: str) -> bool:
    return "/" not in job and job not in (".", "..")


def _directory(found: Identity) -> str:
    return os.environ.get("HINDMOST_RING_DIR") or f"/dev/shm/hindmost-{os.getuid()}/{found.job_id}"  # noqa: S108


def _register_exit() -> None:
    """Close the ring when Python ends, or a forked child of ``multiprocessing``, which ends without atexit."""
    atexit.register(stop)
    processes: Any = sys.modules.get("multiprocessing.util")
    if processes is not None:
        processes.Finalize(None, stop, exitpriority=0)


def _wait_for_a_rank() -> None:
    """In a worker of ``multiprocessing``, or a script that a script started: one that joins a process group is a rank.

    Lightning, and many a script, start their ranks so, with nothing in the environment that every launcher sets.
    """
    from hindmost.probes import ImportWatch

    def imported(torch: ModuleType) -> None:
        from hindmost.probes import torch_collectives

        torch_collectives.watch_process_group(torch, place)

    ImportWatch(lambda *_: None, {"torch": imported}).install()


def _leave_trace(directory: str) -> None:
    """Let ``hindmost run`` know that the probe came in, should this process make no ring."""
    with contextlib.suppress(OSError):  # no such folder: `hindmost run` does not wait for it
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        os.close(os.open(os.path.join(directory, ENTERED), flags, 0o600))


def make_ring(directory: str | os.PathLike[str], found: Identity) -> Writer | None:
    """The ring of this process; ``None``, and a line on stderr, where it cannot be made."""
    global _identity, _writer  # noqa: PLW0603 - see start
    from hindmost import ring

    _identity = found
    try:
        _writer = ring.Writer.create(directory, found, "py", ring.capacity(os.environ))
    except (OSError, ValueError) as error:
        warn_once(f"no ring in {directory} ({error})")
        return None
    return _writer


class _Nowhere:
    """A ring that could not be made: it drops what it is given."""

    def drop(self, *_: object, **__: object) -> int:
        """Any of a ring's methods."""
        return 0

    event = enter = leave = name = communicator = drop


class _Deferred:
    """The ring of a process that no launcher named a rank: made when it begins to train.

    A shell script under ``hindmost run`` may start helpers in Python next to the launcher. They are not ranks.
    """

    def __init__(self, directory: str, found: Identity) -> None:
        self.native: Any = None
        self._where = (directory, found)
        self._said: dict[str, str] = {}

    def set_framework(self, text: str) -> None:
        self._said["set_framework"] = text

    def set_gpu(self, uuid: str) -> None:
        self._said["set_gpu"] = uuid

    def leave(self, _slot: int) -> None:
        return None

    def __getattr__(self, wanted: str) -> Any:
        """First use of ``event``, ``enter``, ``name`` or ``communicator``: from now on, calls go to the real ring."""
        if wanted not in RING_METHODS:
            raise AttributeError(wanted)
        # Only now: until this process trains, one that it started may be what trains.
        os.environ[ATTACHED] = identity.token(self._where[1])
        ring: Any = make_ring(*self._where) or _Nowhere()
        for method in RING_METHODS:
            setattr(self, method, getattr(ring, method))
        self.native = getattr(ring, "native", None)
        if _writer is not None:
            for method, text in self._said.items():
                getattr(ring, method)(text)
        return getattr(ring, wanted)


def _try_to_start_agent(directory: str, found: Identity) -> None:
    """A node without an agent loses its ranks to the report, and nothing else."""
    try:
        start_agent(directory, found)
    except Exception as error:
        warn_once(f"no agent could be started on {found.node} ({error!r})")


def _leave_to_parent() -> None:
    """In a forked child: the ring is the parent's. DataLoader workers, subprocesses and daemons are no ranks."""
    global _identity, _writer  # noqa: PLW0603 - see start
    _writer = None
    _identity = None
    stepping.abandon()
    atexit.unregister(stop)


def start_agent(directory: str, found: Identity) -> None:
    """Start this node's agent where the job has none here yet; the first local rank does it for all.

    On the node of ``hindmost run`` one holds the lock already. A second agent that lost the race for the lock leaves.
    """
    collector = os.environ.get("HINDMOST_COLLECTOR")
    if not collector or found.local_rank > 0 or _locked(os.path.join(directory, "agent.lock")):
        return
    python = os.environ.get("HINDMOST_PYTHON") or sys.executable
    command = [python, "-m", "hindmost", "agent", "--collector", collector]
    command += ["--job-id", found.job_id, "--ring-dir", directory]
    # The shell in between makes the agent a child of init: the job's own wait() must not return it.
    shell = ["/bin/sh", "-c", 'exec </dev/null >/dev/null 2>&1; "$@" &', "hindmost-agent", *command]
    child = os.posix_spawn(shell[0], shell, _agent_environment(), setsid=True)
    os.waitpid(child, 0)


def _locked(path: str) -> bool:
    """Whether an agent holds this lock. A lock that cannot be opened means that none can run here either."""
    import fcntl

    lock = -1
    try:  # it may be any file: a FIFO would block the job until it has a reader
        lock = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        if lock >= 0:
            os.close(lock)
    return False


def _agent_environment() -> dict[str, str]:
    """The job's environment without what would make the agent a rank or load a probe into it."""
    away = ("LD_PRELOAD", "NCCL_PROFILER_PLUGIN", "HINDMOST_NCCL_PLUGIN", "HINDMOST_JOB_ID")
    kept = {name: value for name, value in os.environ.items() if name not in away}
    return {**kept, "HINDMOST_PROBE": "0"}


def last_error() -> str | None:
    """The exception that ends this process, as ``raised ValueError at train.py:88``; ``None`` where none does.

    Python keeps it, once its traceback has been printed. All ranks together show whose a Ctrl-C was.
    """
    error = getattr(sys, "last_value", None)
    if not isinstance(error, (Exception, KeyboardInterrupt)):
        return None
    place = _raised_at(getattr(sys, "last_traceback", None))
    return f"raised {type(error).__name__}" + (f" at {place}" if place else "")


def _message() -> str:
    """What that exception says, in one line without control characters."""
    said = str(sys.last_value)[: 4 * LONGEST_MESSAGE]
    line = " ".join("".join(one if one.isprintable() else " " for one in said).split())
    return line if len(line) <= LONGEST_MESSAGE else f"{line[: LONGEST_MESSAGE - 1]}…"


def _raised_at(trace: TracebackType | None) -> str:
    """File and line of the innermost frame of the job's own code; of any, where there is none."""
    inner = own = ""
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        inner = f"{path.rpartition('/')[2]}:{trace.tb_lineno}"
        own = own if any(part in path for part in LIBRARIES) else inner
        trace = trace.tb_next
    return own or inner
