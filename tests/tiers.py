"""Suites that run only where the files that they cover have changed: `.ci/tiers` lists them, a line each.

    python3 tests/tiers.py changed     runs the suites whose files have changed
    python3 tests/tiers.py all         runs all of them, and renews the hash of each that passed (`make test-all`)

A line of `.ci/tiers` holds a suite's name (`make test-NAME` runs it), a hash of its files, and their paths.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = ROOT / ".ci/tiers"


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


def main(which: str) -> int:
    """Run suites; 1 if any failed."""
    failed = []
    for line in LIST.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        name, kept, *paths = line.split()
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
        elif which == "all":
            LIST.write_text(LIST.read_text().replace(f"{name} {kept} ", f"{name} {now} "))
    if failed:
        sys.stderr.write(f"Failed: {', '.join(failed)}\n")
    return bool(failed)


if __name__ == "__main__":
    if sys.argv[1:] not in (["changed"], ["all"]):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
