"""A Python that has imported torch, from which training processes are forked: most tests take less time than the
import.

Each line on stdin names processes that run in parallel; once all have ended, a line on stdout has exit codes. A
process is what ``python SCRIPT`` would be in its environment, but that torch is there before the probe is.
"""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401 - which DistributedDataParallel imports when it wraps a model


def asked() -> dict[str, Any] | None:
    """In a forked process what it is to be; in the server, at the end of its stdin, ``None``."""
    for line in sys.stdin:
        started = []
        for process in json.loads(line):
            pid = os.fork()
            if pid == 0:
                return dict(process)
            started.append(pid)
        ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started]
        sys.stdout.write(json.dumps(ended) + "\n")
        sys.stdout.flush()
    return None


def become(process: dict[str, Any]) -> None:
    """Take the place of a Python that has just started, and looks on its PYTHONPATH for who wants to come first."""
    for descriptor, path in enumerate((os.devnull, process["stdout"], process["stderr"])):
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.clear()
    os.environ.update(process["environ"])
    sys.argv[:] = process["argv"]
    sys.path[:1] = [str(Path(sys.argv[0]).parent), *os.environ.get("PYTHONPATH", "").split(":")]
    sys.modules.pop("sitecustomize", None)
    with suppress(ModuleNotFoundError):
        __import__("sitecustomize")


process = asked()
if process is not None:
    become(process)
    __file__ = sys.argv[0]
    exec(compile(Path(__file__).read_bytes(), __file__, "exec"))  # noqa: S102 - here, so that it ends as Python does
