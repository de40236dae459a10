"""The answer to one question about this machine, and the machine that is asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Finding:
    """``state`` is yes, part or no; ``found`` says what there is, ``lost`` the effect, ``remedy`` what to do."""

    state: str
    found: str
    lost: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Machine:
    """Where checks look: roots for tests, and the interpreter that runs the training jobs."""

    root: Path = Path("/")
    python: str = sys.executable
    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def text(self, path: str) -> str | None:
        """A file's content, stripped; ``None`` where it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace").strip()
        except OSError:
            return None

    def which(self, program: str) -> str | None:
        """The path of a program, on the user's PATH."""
        return shutil.which(program, path=self.environ.get("PATH", os.defpath))

    def ask(self, *command: str, seconds: float = 15.0) -> str | None:
        """What a command prints; ``None`` where it fails."""
        try:
            said = subprocess.run(
                command, env=self.environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return said.stdout.decode(errors="replace").strip()

    def versions(self, *distributions: str) -> dict[str, str]:
        """The installed versions of these distributions in the job's interpreter, which need not be ours."""
        script = (
            "import sys, importlib.metadata as m\n"
            "for name in sys.argv[1:]:\n"
            "    try: print(name, m.version(name))\n"
            "    except m.PackageNotFoundError: pass\n"
        )
        said = self.ask(self.python, "-c", script, *distributions) or ""
        return dict(line.split(" ", 1) for line in said.splitlines() if " " in line)
