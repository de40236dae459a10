"""Slurm's accounting: jobs by number, their AdminComment read by sacct and written by sacctmgr."""

from __future__ import annotations

import os
import re
import subprocess
from typing import NamedTuple

from hindmost.errors import HindmostError, UsageError, one_line

#: A job, one of an array or a heterogeneous job, and a step of it.
_NUMBER = re.compile(r"(\d+(?:_\d+|\+\d+)?)(?:\.\w+)?")
_TIME = re.compile(r"[\w:+\-/.]+")
_PREFIX = re.compile(r"HM\d+:", re.IGNORECASE)
_STATES = "CD,F,TO,CA,NF,OOM,PR,DL,BF"
_FIELDS = "JobID,JobIDRaw,State,ExitCode,Elapsed,End,NodeList,AdminComment"
_TIMEOUT_S = 60.0


class Job(NamedTuple):
    """A job as Slurm shows it (``123_4``), by its own number; its state, exit code, run time, end, nodes and comment.

    Ends are in the order of their texts, such as 2026-01-31T23:59:59.
    """

    name: str
    number: str
    state: str
    exit_code: str
    elapsed: str
    end: str
    nodes: str
    comment: str

    @property
    def is_ours(self) -> bool:
        """Whether its comment is a summary of any version."""
        return _PREFIX.match(self.comment) is not None


def number(text: str) -> str:
    """The job of a step or job as the user typed it. Raises UsageError."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is no Slurm job: give a number such as 123, 123_4 or 123.0")
    return found[1]


def job(text: str) -> Job:
    """One job as a user names it: of an array by its index. Raises HindmostError where Slurm does not know it, or keeps
    no accounting."""
    name = number(text)
    found = _jobs("--jobs", name)
    alone = [one for one in found if one.name == name or (one.number == name and len(found) == 1)]
    if alone:
        return alone[0]
    if found:
        names = ", ".join(one.name for one in found[:3])
        raise UsageError(f"Slurm job {name} is an array, of which {len(found)} have started: name one of it ({names})")
    raise HindmostError(f"Slurm job {name}: sacct has no such job, or does not show it to this user")


def by_number(text: str) -> Job:
    """One job by its own number (``SLURM_JOB_ID``), which of an array the last job shares with the array."""
    found = [one for one in _jobs("--jobs", number(text)) if one.number == text]
    return found[0] if found else job(text)


def ended_since(text: str) -> list[Job]:
    """The jobs of all users that have ended since a time that sacct reads."""
    if not _TIME.fullmatch(text):
        raise UsageError(f"--since {text!r}: expected a time as sacct has it, such as now-2days or 2026-01-31")
    return _jobs("--allusers", "--starttime", text, "--endtime", "now", "--state", _STATES)


def comment(number: str, text: str) -> None:
    """Set a job's AdminComment, which takes an operator of Slurm's accounting. Raises HindmostError."""
    where = ("modify", "job", "where", f"jobid={number}", "set", f"admincomment={text}")
    _said("sacctmgr", "--immediate", "--quiet", *where)


def _jobs(*options: str) -> list[Job]:
    wanted = ("--allocations", "--noheader", "--parsable2", "--format", _FIELDS)
    lines = _said("sacct", *wanted, *options).splitlines()
    last = len(Job._fields) - 1
    return [Job(*line.split("|", last)) for line in lines if line.count("|") >= last]


def _said(program: str, *options: str) -> str:
    """What a program of Slurm prints. Raises HindmostError with what it calls fatal, else with its first line."""
    try:
        done = subprocess.run(
            [program, *options],
            env={**os.environ, "SLURM_TIME_FORMAT": "standard"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise HindmostError(f"{program} is not on PATH: run this where Slurm's commands are") from None
    except subprocess.TimeoutExpired:
        raise HindmostError(f"{program} gave no answer in {_TIMEOUT_S:.0f} s: is slurmdbd running?") from None
    if done.returncode or (done.stderr and not done.stdout):
        lines = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()
        said = next((line for line in lines if "fatal: " in line), lines[0])
        raise HindmostError(one_line(f"{program}: {said.removeprefix(f'{program}: ')}"))
    return done.stdout
