"""Run the user's command as if hindmost were not there: its terminal, its signals, its exit code.

The command stays in our process group, as under ``time`` or ``strace``, so a terminal's Ctrl-C, Ctrl-Z and hang-up
reach it first-hand, and pipelines keep their foreground group. A signal that was sent to us alone is passed on.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hindmost.errors import HindmostError

#: ``si_code`` of a signal that the kernel sent to the whole foreground group: Ctrl-C, Ctrl-\\, a terminal hanging up.
SI_KERNEL = 0x80
PR_SET_PDEATHSIG = 1

#: What people and batch systems send to a job. Those ignored when we were started (``nohup``) stay ignored.
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
#: Those of them that ask a job to end.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class CommandError(HindmostError):
    """The command could not be started; the exit code is the one a shell gives (126 or 127)."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run(
    argv: Sequence[str],
    environ: Mapping[str, str],
    heard: Callable[[signal.Signals], None] = lambda _: None,
    started: Callable[[int], None] = lambda _: None,
) -> int:
    """Run ``argv`` to its end; return its exit code, or minus the number of the signal that ended it.

    ``heard`` is called with each signal that we got, from any sender; ``started`` with the process once it runs: its
    threads get no signals. Raises ``CommandError`` where the command cannot be started. Should we be killed, it gets
    SIGTERM.
    """
    watched = {number for number in FORWARDED if signal.getsignal(number) != signal.SIG_IGN} | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        process = _start(argv, environ, before)
        started(process.pid)
        while process.poll() is None:
            info = signal.sigwaitinfo(watched)
            if info.si_signo != signal.SIGCHLD:
                if info.si_code != SI_KERNEL:
                    process.send_signal(info.si_signo)
                heard(signal.Signals(info.si_signo))
        # A second Ctrl-C that came while the job was leaving was meant for the job, not for what we do next.
        while (late := signal.sigtimedwait(watched, 0)) is not None:
            if late.si_signo != signal.SIGCHLD:
                heard(signal.Signals(late.si_signo))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process.returncode


def exit_like(returncode: int) -> int:
    """Leave as the command left: its exit code, or, where a signal ended it, die of the same signal."""
    if returncode >= 0:
        return returncode
    number = -returncode
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core dump that matters is the job's
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def program_path(name: str, environ: Mapping[str, str]) -> str:
    """The path of the program that ``name`` means; ``CommandError`` as a shell would say it."""
    path = shutil.which(name, path=environ.get("PATH", os.defpath))
    if path is not None:
        return path
    where = Path(name)
    if os.sep not in name or not where.exists():
        what = "no such file" if os.sep in name else "command not found; give its path or check PATH"
        raise CommandError(f"{name}: {what}", 127)
    what = "is a directory" if where.is_dir() else "is not executable; chmod +x it, or name its interpreter"
    raise CommandError(f"{name}: {what}", 126)


def _start(argv: Sequence[str], environ: Mapping[str, str], mask: set[signal.Signals | int]) -> subprocess.Popen[bytes]:
    path, setup = program_path(argv[0], environ), _child_setup(mask)
    try:  # preexec_fn is safe: hindmost run has no other thread yet
        return subprocess.Popen(list(argv), executable=path, env=dict(environ), preexec_fn=setup)  # noqa: PLW1509
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise CommandError(f"{path}: the interpreter on its first line is missing", 126) from error
        raise CommandError(f"{path}: cannot be run: {error.strerror}", 126) from error


def _child_setup(mask: set[signal.Signals | int]) -> Callable[[], None]:
    """What the child does between fork and exec: our original signal mask, and SIGTERM should we be killed."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def setup() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(128 + signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return setup
