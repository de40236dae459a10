"""Print each finding as ``path:line: message``, and exit with 1 where there is one.

``python -m style_check [PATH…]`` reads the files that git knows of, or those under the paths."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from style_check import names, prose, rules


def check(root: Path, paths: Sequence[str], rulebook: rules.Rules) -> list[str]:
    """One line for each finding in the files, which are given relative to the repository."""
    findings = []
    for path in paths:
        reader, applying = prose.reader(path), rulebook.applying(path)
        if reader and applying and (root / path).is_file():
            source = (root / path).read_text(encoding="utf-8")
            findings += [f"{path}:{line}: {what}" for line, what in names.findings(path, source)]
            findings += [
                f"{path}:{source.count(chr(10), 0, at) + 1}: {what}"
                for at, what in rulebook.findings(reader(source), applying)
            ]
    return findings


def main(arguments: Sequence[str]) -> int:
    """Check the repository of the current folder."""
    root = Path.cwd()
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *arguments],
        capture_output=True,
        check=True,
        text=True,
    )
    paths = [path for path in listed.stdout.split("\0") if path]
    findings = check(root, paths, rules.load(root))
    for finding in findings:
        sys.stdout.write(finding + "\n")
    if findings:
        sys.stderr.write(
            f"style_check: {len(findings)} findings; styles/Hindmost says which words and sentences to avoid\n"
        )
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
