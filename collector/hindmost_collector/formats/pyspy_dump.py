"""Stack dumps of py-spy, one a process: where a hung rank stands."""

import re
from collections.abc import Sequence
from pathlib import Path

from hindmost_judge.model import Job, Run

from hindmost_collector.recordings.tables import table
from hindmost_collector.recordings.trace_files import Sample

NAME = "py-spy stack dumps"
PRECEDENCE = 90

MAX_STACK_BYTES = 64 * 1024
_PROCESS = re.compile(rb"^Process (\d+): ")


def recognises(sample: Sample) -> bool:
    """Whether it begins as ``py-spy dump`` does."""
    return _PROCESS.match(sample.head) is not None


def load(files: Sequence[Path]) -> Run:
    """Each process's stacks, under its process id: another source has to say which rank it is."""
    texts = [_read(path) for path in files]
    pids = [int(found[1]) for found in (_PROCESS.match(text) for text in texts) if found]
    decoded = [text.decode(errors="replace") for text in texts]
    return Run(job=Job(id="", source=NAME), stacks=table("stacks", rank=[-1] * len(pids), text=decoded, pid=pids))


def _read(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(MAX_STACK_BYTES)
