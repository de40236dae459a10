"""The rank of a file, where only a name shows it: ``trace.3.json.gz``, ``nccl_trace_rank_3``, ``rank3/dump``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_SAID = re.compile(r"rank[-_.=]?(\d{1,7})(?!\d)", re.IGNORECASE)
#: What torch's ``tensorboard_trace_handler`` calls its files: host, process, time in ns. None of them is a rank.
_TENSORBOARD = re.compile(r"_\d+\.\d{13,}\.")
_TIME = re.compile(r"\.\d{10,}(?=\.)")
_LAST = re.compile(r"(?<!\d)(\d{1,7})(?:\.\w*[A-Za-z]\w*)*$")
_FOLDER = re.compile(r"^(?:worker|proc|process|gpu|r)?[-_.]?(\d{1,7})$", re.IGNORECASE)


def rank_in_name(path: Path) -> int | None:
    """The number after the word rank in the file's name or its folder's.

    Else the last one before the file's suffixes that is no time and no process, else that of a folder with a number
    as its name."""
    name, folder = path.name, path.parent.name
    found = _SAID.search(name) or _SAID.search(folder)
    if found is None and not _TENSORBOARD.search(name):
        found = _LAST.search(_TIME.sub("", name))
    found = found or _FOLDER.search(folder)
    return int(found[1]) if found is not None else None
