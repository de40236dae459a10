"""The process that does the work of a command which no launcher starts."""

from pathlib import Path

from hindmost.identity import UNKNOWN

from hindmost_agent.jobs.discovery import carries, command_line
from hindmost_agent.jobs.processes import children
from hindmost_agent.jobs.ranks import RankProcess
from hindmost_agent.jobs.rings import start_ticks


def at_work(proc: Path, job: str, pid: int) -> RankProcess | None:
    """That process, below shells and what runs one program; ``None`` of several. It is no rank, so that ranks that come
    later have series of their own."""
    while argv := command_line(proc, pid):
        ticks = start_ticks(proc, pid)
        if not carries(argv) and ticks is not None:
            return RankProcess(job, UNKNOWN, 1, 0, pid, ticks, command=" ".join(argv))
        below = children(proc / str(pid)) or ()
        if len(below) != 1:
            break
        (pid,) = below
    return None
