"""Folders of /proc and /sys that a test writes itself, and lets go."""

from pathlib import Path


def write(folder: Path, files: dict[str, str]) -> None:
    """Put these files below ``folder``, by their names there."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def gone(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
