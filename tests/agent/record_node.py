#!/usr/bin/env python3
"""Records what the samplers read of this machine, as a fixture, as root where all of it shall be there.

    python tests/agent/record_node.py [--after SECONDS] TARGET [COMMAND ...]

TARGET is a folder or a new .tar.xz. In it: every file that a sampler opens, below proc, sys, cgroup and dev, and what
it only asks the existence of; what NVML answered, in nvml.json; the ranks and what was left out, in recorded.json. The
ranks are those that COMMAND starts (processes with a LOCAL_RANK), or COMMAND itself, or an idle child.

Names of hosts, containers, mounts and GPUs are replaced; numbers stay as they are. Of many cores and threads the first
few are kept, each with all that is read of it. Still look the result over before it is committed.
"""

import argparse
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / part) for part in ("agent", "proto", "tests/agent")]

from anonymous import Anonymous  # noqa: E402 - after the repository is on the path
from hindmost_agent import samplers  # noqa: E402
from hindmost_agent.jobs.processes import descendants, owner  # noqa: E402
from hindmost_agent.jobs.ranks import RankProcess  # noqa: E402
from hindmost_agent.runner import Runner  # noqa: E402
from hindmost_agent.sampler import NS, Host  # noqa: E402
from nvml_recording import RecordingNvml  # noqa: E402

HOST = Host()
#: Longest roots first: /sys/fs/cgroup is below /sys.
ROOTS = {HOST.cgroup: "cgroup", HOST.proc: "proc", HOST.sys: "sys", HOST.dev: "dev"}
LARGEST = 1 << 20
#: Of these folders as many are kept, the lowest numbers: cores, a process's threads.
MOST = 8
NUMBERED = re.compile(r"(sys/devices/system/cpu/cpu|proc/\d+/task/)(\d+)/")
LONG = 32 << 10


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
            time.sleep(1)  # the performance monitor needs some time between its samples
    return opened, existing


def place(path: Path) -> str | None:
    """Where a path goes; ``None``: it is below no root."""
    for root, name in ROOTS.items():
        if path.is_relative_to(root):
            return (name / path.relative_to(root)).as_posix()
    return None


def content(path: Path) -> bytes | None:
    """All of a file; ``None`` of one that cannot be read any more."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            data = os.read(descriptor, LARGEST)
            while piece := os.read(descriptor, LARGEST):
                data += piece
            return data
        finally:
            os.close(descriptor)
    except OSError:
        return None


def numbered(name: str) -> tuple[str, int] | None:
    """Folder and number of a core's or a thread's file."""
    match = NUMBERED.match(name)
    return (match[1], int(match[2])) if match else None


class Kept:
    """Which of the files are kept; ``left_out`` counts the others."""

    def __init__(self, names: list[str]) -> None:
        found: dict[str, set[int]] = {}
        for folder, number in filter(None, map(numbered, names)):
            found.setdefault(folder, set()).add(number)
        self._numbers = {folder: set(sorted(numbers)[:MOST]) for folder, numbers in found.items()}
        self.left_out = {f"{folder}*": len(numbers) - MOST for folder, numbers in found.items() if len(numbers) > MOST}

    def keeps(self, name: str) -> bool:
        """Whether a file is kept."""
        one = numbered(name)
        return one is None or one[1] in self._numbers[one[0]]

    def shortened(self, name: str, text: str) -> str:
        """A long file with lines of every core, down to those of the first few."""
        end = re.search(rf"^cpu{MOST}\b", text, re.MULTILINE) if name == "proc/schedstat" and len(text) > LONG else None
        if end is None:
            return text
        self.left_out[f"{name}: cores"] = text.count("\ncpu") - MOST
        return text[: end.start()]


def stated(anonymous: Anonymous, name: str, text: str) -> str:
    """A file's text without names. Most are numbers and left alone: a long number is no id."""
    makers = {"mounts": anonymous.mounts, "mountstats": anonymous.mountstats, "cgroup": anonymous.groups}
    return makers.get(name.rpartition("/")[2], anonymous.words if name == "proc/net/dev" else str)(text)


def named(anonymous: Anonymous, name: str) -> str:
    """A file's place without names."""
    if not name.startswith("cgroup/"):
        return anonymous.words(name)
    folder, _, last = name.removeprefix("cgroup/").rpartition("/")
    return "/".join(part for part in ("cgroup", anonymous.group(folder), last) if part)


def record(folder: Path) -> dict[str, int]:
    """Copy what is looked at; returns what was left out, and how much of it."""
    opened, existing = looked_at()
    anonymous = Anonymous(socket.gethostname())
    files = {name: path for path in sorted(opened) if (name := place(path)) and path != HOST.dev / "kmsg"}
    kept = Kept(list(files))
    for name, path in files.items():
        data = content(path) if kept.keeps(name) else None
        if data is None:
            continue
        target = folder / named(anonymous, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = kept.shortened(name, data.decode("utf-8", "surrogateescape"))
        target.write_bytes(stated(anonymous, name, text).encode("utf-8", "surrogateescape"))
    for path in existing - opened:
        name = place(path)
        if name is not None and numbered(name) is None:
            target = folder / named(anonymous, f"{name}/.keep")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
    if HOST.nvml_library is not None:
        lib = HOST.nvml_library
        answers = json.dumps({"constants": lib.constants, "answers": lib.answers}, indent=0)
        (folder / "nvml.json").write_text(anonymous.uuids(answers) + "\n")
    return kept.left_out


def find_ranks(child: int) -> None:
    """The processes with a LOCAL_RANK below the one that was started are ranks, or it alone is."""
    for pid in sorted(descendants(HOST, child) or []):
        pairs = (content(HOST.proc / str(pid) / "environ") or b"").decode("utf-8", "replace").split("\0")
        environment = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        if "LOCAL_RANK" in environment and owner(HOST, pid) is None:
            numbers = (int(environment.get(name, 0)) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
            HOST.ranks.put(RankProcess("recorded", *numbers, pid, started(pid)))
    if not len(HOST.ranks):
        HOST.ranks.put(RankProcess("recorded", 0, 1, 0, child, started(child)))


def started(pid: int) -> int:
    """When a process started, in clock ticks since boot."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])


def listen_to_nvml() -> None:
    """Have NVML's answers noted, where there is a driver and the library for Python."""
    if (HOST.dev / "nvidiactl").exists():
        try:
            HOST.nvml_library = RecordingNvml(importlib.import_module("pynvml"))
        except ImportError:
            sys.stderr.write("nvidia-ml-py is not installed: GPUs are not recorded\n")


def pack(folder: Path, target: Path) -> None:
    """The folder as the archive ``target``."""
    with tarfile.open(target, "w:xz") as archive:
        archive.add(folder, target.name.removesuffix(".tar.xz"), filter=without_owner)


def without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """An entry without its owner's name."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def options() -> argparse.Namespace:
    """The command line's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--after", type=float, default=0.0, metavar="SECONDS", help="how long COMMAND runs before")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args()


def main() -> None:
    args = options()
    idle = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    child = subprocess.Popen(args.command or idle, stdin=subprocess.PIPE, start_new_session=True)
    try:
        time.sleep(args.after)
        find_ranks(child.pid)
        listen_to_nvml()
        with tempfile.TemporaryDirectory() as temporary:
            archived = args.target.name.endswith(".tar.xz")
            folder = Path(temporary, "node") if archived else args.target
            left_out = record(folder)
            who = {"ranks": [rank._asdict() for rank in HOST.ranks], "left_out": left_out}
            (folder / "recorded.json").write_text(json.dumps(who, indent=1) + "\n")
            files = [path for path in folder.rglob("*") if path.is_file()]
            size = sum(path.stat().st_size for path in files)
            if archived:
                pack(folder, args.target)
        sys.stdout.write(f"{len(files)} files, {size >> 10} KiB, {len(HOST.ranks)} ranks; left out: {left_out}\n")
    finally:
        os.killpg(child.pid, signal.SIGTERM)
        child.communicate()


if __name__ == "__main__":
    main()
