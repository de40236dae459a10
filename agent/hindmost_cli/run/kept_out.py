"""Whether a command keeps the probe out, as its own interpreter says."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from hindmost_judge.isolation import option, remedy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Runs in the job's own interpreter: whether the .pth file of an installed hindmost, or the shim, is at work in it.
ASK = """import sys
shim = 'sitecustomize' in sys.modules and 'sitecustomize' in sys.builtin_module_names
sys.exit(not shim and 'hindmost.bootstrap' not in sys.modules)"""


def kept_out(argv: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """A sentence where the command's own options keep the probe out; ``None`` where it comes in all the same.

    Runs that interpreter once, in the job's environment, and only where it is given such an option.
    """
    found = option(argv)
    if found is None:
        return None
    asked = {**environ, "HINDMOST_JOB_ID": "asked", "HINDMOST_PROBE": "0"}
    try:
        done = subprocess.run(
            [*found, "-c", ASK], env=asked, stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):  # it is on another machine: unknown
        return remedy(*found)
    return remedy(*found) if done.returncode else None
