"""What a test needs of the machine: programs, and rights. Without them it is skipped, and the closing line counts it.

@pytest.mark.needs("prometheus")       on a test, a parameter or a module's ``pytestmark``
need("the right to mount")             in a fixture
"""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests import programs

#: Where `make python-newer` unpacks one.
FETCHED_PYTHON = Path(__file__).parents[1] / ".cache/python3.14/bin/python3.14"


def _mounts() -> bool:
    tried = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /dev/shm"]
    return programs.is_installed("unshare") and not subprocess.run(tried, capture_output=True, check=False).returncode


#: What is no program, and whether it is here.
CONDITIONS: dict[str, Callable[[], bool]] = {
    "root": lambda: os.geteuid() == 0,
    "the right to mount": _mounts,
    "python3.14": lambda: sys.version_info >= (3, 14) or FETCHED_PYTHON.exists() or programs.is_installed("python3.14"),
}


@cache
def is_here(what: str) -> bool:
    """Whether this machine has the program or the right."""
    return CONDITIONS[what]() if what in CONDITIONS else programs.is_installed(what)


def need(*needs: str) -> None:
    """Skip this test unless the machine has all of these."""
    missing = [what for what in needs if not is_here(what)]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
