"""Folders of jobs that are over."""

import os
from pathlib import Path

from hindmost.bootstrap import ENTERED
from hindmost_agent.jobs import discovery


def test_what_the_probe_left_keeps_no_folder_and_what_others_left_does(tmp_path: Path) -> None:
    """A folder goes with the lock and the trace of a process without a ring; with anything else it stays whole."""
    folders = ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in folders:
        folder.mkdir()
        for name in ("agent.lock", ENTERED):
            (folder / name).touch()
    (theirs / "notes").touch()
    for folder in folders:
        os.utime(folder, (0, 0))
    discovery.tidy(folders, 1e9)
    assert not ours.exists()
    assert len(list(theirs.iterdir())) == 3
