"""Suites that run only where the files that they cover have changed: `.ci/tiers` lists them, a line each.

    python3 tests/tiers.py changed     runs the suites whose files have changed
    python3 tests/tiers.py all         runs all of them, and renews the hash of each that passed (`make test-all`)
    python3 tests/tiers.py NAME        runs this one, and renews its hash if it passed

A line of `.ci/tiers` holds a suite's name (`make test-NAME` runs it), a hash of its files, and their paths.
"""

import hashlib
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = ROOT / ".ci/tiers"
#: What stands for more than one suite.
EVERY = ("all", "changed")


def digest(paths: list[str]) -> str:
    """A hash of the names and contents of all files below ``paths`` that git keeps, or would."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *paths],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    found = hashlib.sha256()
    for name in sorted(set(listed.decode().split("\0")) - {""}):
        if (ROOT / name).is_file():
            found.update(f"{name}\0{hashlib.sha256((ROOT / name).read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()[:16]


def suites(text: str) -> list[list[str]]:
    """The words of each suite's line."""
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def main(which: str) -> int:
    """Run suites; 1 if any failed."""
    failed = []
    for name, kept, *paths in suites(LIST.read_text()):
        if which not in (*EVERY, name):
            continue
        now = digest(paths)
        if which == "changed" and now == kept:
            sys.stdout.write(f"test-{name}: passed with these files\n")
            continue
        began = time.monotonic()
        code = subprocess.run(["make", "--no-print-directory", f"test-{name}"], cwd=ROOT, check=False).returncode
        sys.stdout.write(f"test-{name}: {'failed' if code else 'passed'} in {time.monotonic() - began:.0f} s\n")
        sys.stdout.flush()
        if code:
            failed.append(name)
        elif which != "changed":
            LIST.write_text(renewed(LIST.read_text(), name, now))
    if failed:
        sys.stderr.write(f"Failed: {', '.join(failed)}\n")
    return bool(failed)


def renewed(text: str, name: str, now: str) -> str:
    """The list with another hash for one suite."""
    return re.sub(rf"^{re.escape(name)} \S+", f"{name} {now}", text, flags=re.MULTILINE)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in (*EVERY, *(name for name, *_ in suites(LIST.read_text()))):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
