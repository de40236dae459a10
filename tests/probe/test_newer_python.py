"""What hooks do only in a Python newer than this is tried there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ("test_torch_copies.py", "test_guarded_functions.py")


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="they are run by this Python itself")
def test_hooks_in_functions_and_watched_copies(python_314: str) -> None:
    """Tests of hooks that stand in the functions themselves, and of copies that ``sys.monitoring`` tells of, hold."""
    packages = [str(ROOT / part) for part in ("agent", "collector", "proto", ".")] + [
        str(Path(pytest.__file__).parents[1])
    ]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(packages), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    tests = [str(ROOT / "tests/probe" / name) for name in TESTS]
    # Not with tests/conftest.py: hypothesis is compiled for this Python.
    line = [python_314, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--confcutdir={ROOT / 'tests/probe'}", *tests]
    done = subprocess.run(line, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout.splitlines()[-1]
