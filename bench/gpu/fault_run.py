"""One ``hindmost run`` of ``faulty_job.py``: started, struck, watched and ended, each within a time limit."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fault_cases import Case

JOB = Path(__file__).with_name("faulty_job.py")
#: Bytes that a rank without memory may have in memory from then on, of 256 MiB that it maps.
MEMORY = 64 << 20
#: Steps that ranks may be ahead of the last one in the job's log: a step so far ahead reaches all ranks in time.
AHEAD = 20
#: How long a job may take to import everything, to train its first step, and to end after the request.
IMPORTED_S, TRAINS_S, ENDED_S = 60.0, 45.0, 20.0


class JobError(Exception):
    """A job that did not get as far as its fault."""


class Running:
    """One job, whose processes wait from their start on for ``go``."""

    def __init__(self, case: Case, ranks: int, folder: Path) -> None:
        self.case, self.ranks = case, ranks
        self.room, self.out = folder / case.name, folder / f"run-{case.name}"
        self.room.mkdir()
        fault = ["--fault", case.fault, "--share", str(case.share), "--rank", str(case.rank), "--room", str(self.room)]
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        line = [sys.executable, "-m", "hindmost", "run", "--no-live", "--out", str(self.out), "--", sys.executable]
        self.log = (folder / f"{case.name}.log").open("w")
        self.started = [self._start([*line, *launch, str(JOB), *fault])]
        self.others: list[subprocess.Popen[bytes]] = []
        self.group: Path | None = None
        self.mounted: Path | None = None
        if case.fault == "neighbour":
            self.others.append(self._start([sys.executable, str(JOB), "--burn", *fault]))

    def _start(self, line: list[str]) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "NCCL_NVLS_ENABLE": "0", "OMP_NUM_THREADS": "1"}
        if self.case.profiler:
            environ["NCCL_PROFILER_PLUGIN"] = self.case.profiler
        return subprocess.Popen(line, env=environ, stdout=self.log, stderr=self.log, start_new_session=True)

    def go(self) -> None:
        """Let the ranks join, once all have imported what they need. Raises JobError."""
        deadline = time.monotonic() + IMPORTED_S
        for rank in range(self.ranks):
            self._wait_for(f"pid.{rank}", deadline, "did not start")
        (self.room / "go").touch()

    def train(self, steps: int) -> None:
        """Until so many steps are done. Raises JobError."""
        deadline = time.monotonic() + TRAINS_S
        self._wait_for("steps", deadline, "did not train")
        while len(self.steps()) < steps:
            if time.monotonic() > deadline or self.over():
                raise JobError(f"stopped training after {len(self.steps())} steps")
            time.sleep(0.05)

    def over(self) -> bool:
        return self.started[0].poll() is not None

    def _wait_for(self, what: str, deadline: float, else_: str) -> None:
        while not (self.room / what).exists():
            if self.over() or time.monotonic() > deadline:
                raise JobError(f"{else_}: " + ("it ended" if self.over() else "no " + what))
            time.sleep(0.02)

    def steps(self) -> list[tuple[int, int]]:
        """Step and ns of Unix time at which rank 0 was through with it (its GPU may be some steps behind)."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.room / "steps").read_text().splitlines()
            return [(int(words[0]), int(words[1])) for line in lines if len(words := line.split()) == 2]
        return []

    def struck(self) -> dict[str, Any]:
        """When and in which step the fault really began, as the faulty process wrote it; empty before."""
        with contextlib.suppress(OSError, ValueError):
            told: dict[str, Any] = json.loads((self.room / "struck").read_text())
            return told
        return {}

    def events(self) -> list[dict[str, Any]]:
        """What the collector has said so far, in lines that are whole."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.out / "verdicts.jsonl").read_text().splitlines(keepends=True)
            return [json.loads(line) for line in lines if line.endswith("\n")]
        return []

    def strike(self) -> None:
        """Let the fault begin. Raises JobError where this machine cannot have it."""
        if self.case.fault == "starve":
            self._starve()
        if self.case.fault == "memory":
            try:
                self._limit_memory()
            except OSError as error:
                raise JobError(f"no control group limits a rank's memory: {error}") from None
        known = self.steps()
        self._tell("strike", 0 if self.case.beside or not known else known[-1][0] + AHEAD)

    def _tell(self, what: str, step: int) -> None:
        """Write a file that is whole when it is there."""
        part = self.room / f"{what}.part"
        part.write_text(str(step))
        part.rename(self.room / what)

    def _starve(self) -> None:
        """Put the rank on one CPU together with six busy processes."""
        pid = int((self.room / f"pid.{self.case.rank}").read_text())
        cpu = max(os.sched_getaffinity(0))
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {cpu})
        code = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
        self.others += [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(6)]

    def _limit_memory(self) -> None:
        """Let the rank have little more than it has: its control group takes back what goes beyond."""
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
        top = next((Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"), None)
        if top is None:
            top = self.room.parent / "cgroup"  # apart from what is kept of a job
            top.mkdir()
            subprocess.run(["mount", "-t", "cgroup2", "none", str(top)], check=False)
            self.mounted = top
        if "memory" not in (top / "cgroup.controllers").read_text().split():
            raise OSError(f"{top} has no memory controller")
        (top / "cgroup.subtree_control").write_text("+memory")
        group = top / f"hindmost-{os.getpid()}"
        group.mkdir(exist_ok=True)
        (group / "memory.high").write_text(str(MEMORY))
        (group / "cgroup.procs").write_text((self.room / f"pid.{self.case.rank}").read_text())
        self.group = group

    def end(self) -> None:
        """Stop the ranks after some more steps, or at once where they cannot; end the processes that disturbed them."""
        known = self.steps()
        if self.case.stops or not known:
            (self.room / "quit").touch()
        else:
            self._tell("stop", known[-1][0] + AHEAD)
        for other in self.others:
            other.kill()
            other.wait(10)

    def finish(self) -> dict[str, Any] | None:
        """Wait until hindmost has sealed the job, whatever it takes within limits; the report, None where none is."""
        (self.room / "quit").touch() if self.case.stops else None
        for step in (lambda: None, (self.room / "quit").touch, lambda: self._signal(signal.SIGTERM)):
            step()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.started[0].wait(ENDED_S)
                break
        self._signal(signal.SIGKILL)
        self.started[0].wait(10)
        self.log.close()
        shutil.rmtree(self.room / "scratch", ignore_errors=True)
        with contextlib.suppress(OSError):
            self.group.rmdir() if self.group else None
        if self.mounted:
            subprocess.run(["umount", str(self.mounted)], check=False)
        with contextlib.suppress(OSError, ValueError):
            report: dict[str, Any] = json.loads((self.out / "report.json").read_text())
            return report
        return None

    def _signal(self, number: int) -> None:
        """To hindmost and everything that stayed in its session: its job is over, or shall be."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.started[0].pid, number)

    def last_words(self) -> str:
        """The end of what the job printed."""
        return Path(self.log.name).read_text(errors="replace")[-1500:]
