"""The Python stacks of a running process, by py-spy, which reads its memory from outside."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from hindmost.errors import HindmostError
from hindmost_judge.types import UNREAD


def py_spy(path: str | None = None) -> str:
    """The py-spy to run: next to this interpreter, on the PATH (``path``, where given), or where
    ``pip install --target`` puts what belongs to a folder of modules. HindmostError where there is none."""
    on_path = shutil.which("py-spy", path=path)
    modules = [Path(folder, "bin", "py-spy") for folder in sys.path if folder]
    places = [Path(sys.executable).with_name("py-spy"), *([Path(on_path)] if on_path else []), *modules]
    found = next((str(place) for place in places if os.access(place, os.X_OK)), None)
    if found is None:
        raise HindmostError("py-spy is not installed: pip install py-spy")
    return found


def dump(pid: int, timeout_s: float = 15.0) -> str:
    """The stacks of all threads of a process as ``py-spy dump`` prints them, or one line that says why not.

    The process is not paused: a stalled one does not move, and a moving one must not be held up. Never raises.
    """
    try:
        command = [py_spy(), "dump", "--nonblocking", "--pid", str(pid)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except (HindmostError, OSError, subprocess.SubprocessError) as error:
        return f"{UNREAD} {pid}: {error}\n"
    return done.stdout if done.returncode == 0 else f"{UNREAD} {pid}: {reason(done.stderr)}\n"


#: How many stacks of a running process are taken, and the pause after each, s: pauses differ, so that stacks are not
#: all of one place in the step.
STACKS, PAUSE_S = 16, (0.1, 0.4)
#: So many failures in a row end the series: one is no more than a process that moved while it was read.
_FAILURES = 3


async def of_running(
    pid: int, read: Callable[[int], str] = dump, pause_s: tuple[float, float] = PAUSE_S
) -> list[tuple[str, int]]:
    """Several stacks of a process that goes on, each with its monotonic time, ns; where none can be read, why not."""
    taken: list[tuple[str, int]] = []
    failed: list[tuple[str, int]] = []
    for _ in range(STACKS):
        stack = await asyncio.to_thread(lambda: (read(pid), time.monotonic_ns()))
        if not stack[0].startswith(UNREAD):
            taken.append(stack)
            failed.clear()
        else:
            failed.append(stack)
            if len(failed) == _FAILURES:
                break
        await asyncio.sleep(random.uniform(*pause_s))  # noqa: S311 - no secret
    return taken or failed[-1:]


def reason(stderr: str) -> str:
    """What py-spy says went wrong, as one line, with the remedy where one is known."""
    lines = [line.removeprefix("Error: ").strip() for line in stderr.splitlines() if line.strip()]
    if "ermission" in stderr:
        return "the kernel forbids reading it (kernel.yama.ptrace_scope or a container without CAP_SYS_PTRACE)"
    known = (ended for said, ended in _ENDED.items() if said in stderr)
    return next(known, lines[0] if lines else "py-spy failed without a message")


#: What py-spy says of a process that is over, or whose Python is, and what that means.
_ENDED = {
    "Check that the process is running": "it has ended",
    "No stack counts found": "its interpreter has ended",
    "Failed to find a python interpreter": "its interpreter has ended, or has not started",
}
