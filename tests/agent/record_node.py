#!/usr/bin/env python3
"""Records what the samplers read of this machine, as a fixture: ``python tests/agent/record_node.py FOLDER``.

Every file that a sampler opens is copied below FOLDER/{proc,sys,cgroup,dev}, and what it only asks the existence of is
there too. One process, this one's child, is a rank. Look the result over before it is committed: names of hosts, users
and mounts are in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / part) for part in ("agent", "proto")]

from hindmost_agent import samplers  # noqa: E402 - after the repository is on the path
from hindmost_agent.ranks import RankProcess  # noqa: E402
from hindmost_agent.runner import NS, Runner  # noqa: E402
from hindmost_agent.sampler import Host  # noqa: E402

HOST = Host()
#: Longest roots first: /sys/fs/cgroup is below /sys.
ROOTS = {HOST.cgroup: "cgroup", HOST.proc: "proc", HOST.sys: "sys", HOST.dev: "dev"}
LARGEST = 1 << 20


def looked_at() -> tuple[set[Path], set[Path]]:
    """The files that two rounds of all samplers open, and the paths that they find to exist."""
    opened, existing = set[Path](), set[Path]()
    os_open, exists = os.open, Path.exists

    def watched_open(path: str | Path, *args: int, **kwargs: int) -> int:
        descriptor = os_open(path, *args, **kwargs)
        opened.add(Path(path))
        return descriptor

    def watched_exists(path: Path, **kwargs: bool) -> bool:
        found = exists(path, **kwargs)
        if found:
            existing.add(path)
        return found

    runner = Runner(samplers.load(), HOST, NS)
    with mock.patch.object(os, "open", watched_open), mock.patch.object(Path, "exists", watched_exists):
        for second in (0, 1000):
            runner.run(second * NS)
    return opened, existing


def place(path: Path, folder: Path) -> Path | None:
    """Where a path goes; ``None``: it is below no root."""
    for root, name in ROOTS.items():
        if path.is_relative_to(root):
            return folder / name / path.relative_to(root)
    return None


def record(folder: Path) -> int:
    """Copy what is looked at; returns how many files. One that cannot be read any more is left out."""
    opened, existing = looked_at()
    count = 0
    for path in sorted(opened):
        target = place(path, folder)
        if target is None or path == HOST.dev / "kmsg":
            continue
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            content = os.read(descriptor, LARGEST)
            while piece := os.read(descriptor, LARGEST):
                content += piece
            os.close(descriptor)
        except OSError:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        count += 1
    for path in existing - opened:
        target = place(path, folder)
        if target is not None:
            target.mkdir(parents=True, exist_ok=True)
            (target / ".keep").touch()
    return count


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        start = int(Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
        HOST.ranks.put(RankProcess("recorded", 0, 1, 0, child.pid, start))
        count = record(Path(sys.argv[1]))
        sys.stdout.write(f"{count} files; the rank was process {child.pid}\n")
    finally:
        child.communicate()


if __name__ == "__main__":
    main()
